"""generation_config.json: default sampling parameters, and the ids that end a sequence."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeGuard

from weft.core.errors import ConfigError
from weft.model.fields import Fields, is_finite_number, shown

Reader = Callable[[Fields, str], float | int]


def _number(low: float, high: float, words: str) -> Reader:
    def read(fields: Fields, key: str) -> float:
        value = fields.values[key]
        if not is_finite_number(value) or not low <= value <= high:
            fields.refuse(key, words)
        return float(value)

    return read


def _top_k(fields: Fields, key: str) -> int:
    return fields.integer(key, low=-1)


_READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "temperature": _number(0, 2, "a number from 0 to 2"),
        "top_p": _number(1e-9, 1, "a number above 0 and at most 1"),
        "top_k": _top_k,
        "min_p": _number(0, 1, "a number from 0 to 1"),
        "repetition_penalty": _number(1e-9, 1e9, "a finite number above 0"),
    }
)


def default_sampling_params(generation: Fields) -> Mapping[str, float | int]:
    """What the checkpoint's authors sample with; nothing when they say `do_sample: false`."""
    if not generation.flag_or("do_sample", True):
        return MappingProxyType({})
    return MappingProxyType(
        {key: read(generation, key) for key, read in _READERS.items() if generation.has(key)}
    )


def eos_token_ids(
    primary: int | None, config: Fields, generation: Fields, vocab_size: int
) -> tuple[int, ...]:
    """The primary id first (the tokenizer's, else the config's), then every other one that is named."""
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
    """A begin or padding id, or None: many configs hold a placeholder outside the vocabulary."""
    value = config.values.get(key) if primary is None else primary
    return value if _is_id(value, vocab_size) else None


def _is_id(value: object, vocab_size: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size
