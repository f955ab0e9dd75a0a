"""Reads generation_config.json: default sampling parameters, and the end-of-sequence ids."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeGuard

from weft.core.errors import ConfigError
from weft.core.values.params import OF_MODELS, Parameter
from weft.model.fields import Fields, is_finite_number, shown

MAX_NEW_TOKENS = "max_new_tokens"


def _read(fields: Fields, parameter: Parameter) -> float | int:
    """Returns the default of a request parameter; raises `ConfigError` if it is outside the parameter's range."""
    name, param = parameter.name, parameter.param
    value = fields.values[name]
    if parameter.kind is int:
        whole = {name: int(value)} if isinstance(value, float) and value.is_integer() else {}
        return Fields({**fields.values, **whole}, fields.where).integer(name, low=param.low)
    if not is_finite_number(value) or not param.holds(value):
        start = f"above {param.low:g} and at most" if param.above else f"from {param.low:g} to"
        fields.refuse(name, f"a number {start} {param.high:g}")
    return float(value)


def default_sampling_params(generation: Fields) -> Mapping[str, float | int]:
    """Returns the sampling defaults of the model's authors; empty with `do_sample: false`."""
    if not generation.flag_or("do_sample", True):
        return MappingProxyType({})
    return MappingProxyType(
        {
            name: _read(generation, parameter)
            for name, parameter in OF_MODELS.items()
            if generation.has(name)
        }
    )


def max_new_tokens(generation: Fields) -> int | None:
    """Returns the model's maximum number of tokens in an answer; None if there is no limit."""
    if not generation.has(MAX_NEW_TOKENS):
        return None
    return generation.integer(MAX_NEW_TOKENS, low=1)


def eos_token_ids(
    primary: int | None, config: Fields, generation: Fields, vocab_size: int
) -> tuple[int, ...]:
    """Returns the primary id (the tokenizer's, or else the config's), then the other end-of-sequence ids in the
    files.
    """
    named = [*_ids(config, vocab_size), *_ids(generation, vocab_size)]
    ordered = dict.fromkeys(named if primary is None else [primary, *named])
    if not ordered:
        raise ConfigError(
            f"{config.where}: eos_token_id is missing, and tokenizer_config.json names no eos_token; "
            "one of them must say what ends a sequence"
        )
    return tuple(ordered)


def _ids(fields: Fields, vocab_size: int) -> list[int]:
    value = fields.values.get("eos_token_id")
    listed: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    for item in listed:
        if not _is_id(item, vocab_size):
            raise ConfigError(
                f"{fields.where}: eos_token_id holds {shown(item)}; "
                f"it must be a whole number from 0 to {vocab_size - 1}, or a list of them"
            )
    return [int(item) for item in listed]


def optional_id(primary: int | None, config: Fields, key: str, vocab_size: int) -> int | None:
    """Returns a begin or padding id; None for an id outside the vocabulary, a placeholder in many configs."""
    value = config.values.get(key) if primary is None else primary
    return value if _is_id(value, vocab_size) else None


def _is_id(value: object, vocab_size: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size
