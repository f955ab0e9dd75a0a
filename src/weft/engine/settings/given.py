"""Reads the values of flags: JSON, and numbers within limits. Errors are `ConfigError`s that name the flag."""

import math
from typing import Any, TypeVar

import msgspec

from weft.core.checks.allowed import explain
from weft.core.config.defaults import DEFAULTS
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.declare import INT32_MAX, spelled

MAX_MS = 10_000.0
T = TypeVar("T")


def read_json(flag: str, given: Any, kind: type[T]) -> T:
    """Decodes a flag's JSON text as a `kind`; Python callers may also give a dict or a `kind`."""
    try:
        if isinstance(given, str):
            return msgspec.json.decode(given, type=kind)
        return msgspec.convert(given, kind)
    except msgspec.DecodeError as error:  # base class of ValidationError
        raise ConfigError(f"{flag}: {explain(error, kind)}") from None


def check_between(name: str, value: int, low: int, high: int) -> None:
    """Raises a `ConfigError` that names `name` if `value` is not in [low, high]."""
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low} and {high}, not {value}")


def check_ms(name: str, value: float) -> None:
    """Raises `ConfigError` if the value of the option `name` is not a time in ms from 0 to `MAX_MS`."""
    if not (math.isfinite(value) and 0 <= value <= MAX_MS):
        raise ConfigError(f"{spelled(name)} must be between 0 and {MAX_MS:g}, not {value:g}")


def bounded(
    options: EngineOptions, name: str, most: int = INT32_MAX, *, default: int | None = None
) -> int:
    """Returns the option's value, or its default if the value is None; raises `ConfigError` unless 1 to `most`."""
    chosen: int | None = getattr(options, name)
    if chosen is None:
        chosen = DEFAULTS[name] if default is None else default
    check_between(spelled(name), chosen, 1, most)
    return chosen


def count_or_none(options: EngineOptions, name: str) -> int | None:
    """Returns the option's value, from 0 on, or None; raises `ConfigError` for a negative value."""
    chosen: int | None = getattr(options, name)
    if chosen is not None:
        check_between(spelled(name), chosen, 0, INT32_MAX)
    return chosen
