"""What users give to flags: JSON to values, and numbers within their bounds, or a `ConfigError` that says which."""

import math
from typing import Any, TypeVar

import msgspec

from weft.core.allowed import explain
from weft.core.declare import INT32_MAX, spelled
from weft.core.defaults import DEFAULTS
from weft.core.engine_options import EngineOptions
from weft.core.errors import ConfigError

MAX_MS = 10_000.0
T = TypeVar("T")


def read_json(flag: str, given: Any, kind: type[T]) -> T:
    """JSON as a `kind`; from Python the same as a dict, or a `kind` itself."""
    try:
        if isinstance(given, str):
            return msgspec.json.decode(given, type=kind)
        return msgspec.convert(given, kind)
    except msgspec.DecodeError as error:  # ValidationError is one of these
        raise ConfigError(f"{flag}: {explain(error, kind)}") from None


def check_between(name: str, value: int, low: int, high: int) -> None:
    """Refuse a number that is not in [low, high]."""
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low} and {high}, not {value}")


def check_ms(name: str, value: float) -> None:
    """Refuse what is no time in ms for the option of that name; 0 is."""
    if not (math.isfinite(value) and 0 <= value <= MAX_MS):
        raise ConfigError(f"{spelled(name)} must be between 0 and {MAX_MS:g}, not {value:g}")


def bounded(
    options: EngineOptions, name: str, most: int = INT32_MAX, *, default: int | None = None
) -> int:
    """The option of that name, or what stands for None; refused below 1 and above `most`."""
    chosen: int | None = getattr(options, name)
    if chosen is None:
        chosen = DEFAULTS[name] if default is None else default
    check_between(spelled(name), chosen, 1, most)
    return chosen
