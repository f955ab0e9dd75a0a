"""Converters of flags' values: sizes such as "32k" and "4GiB", counts, and durations."""

import re
from collections.abc import Sequence
from typing import Any, get_args

from cyclopts import Token

from weft.core.config.quantity import parse_duration_s, parse_size


def parse_count(text: str) -> int:
    """Returns the whole number in `text`. Raises `ValueError` for a fraction such as "1.5", which is not rounded."""
    if not re.fullmatch(r"-?\d+", text.strip()):
        raise ValueError(f'"{text}" is not a whole number')
    return int(text)


def size_converter(type_: Any, tokens: Sequence[Token]) -> int | str:
    """Converts a flag's value with `parse_size`; has the signature that the parser of the command line calls. Words
    that the flag's type allows are returned as they are.
    """
    text = tokens[0].value
    words = (word for kind in get_args(type_) for word in get_args(kind))
    return text if text in words else parse_size(text)


def count_converter(type_: type, tokens: Sequence[Token]) -> int:
    """Converts a flag's value with `parse_count`; has the signature that the parser of the command line calls."""
    del type_
    return parse_count(tokens[0].value)


def duration_converter(type_: type, tokens: Sequence[Token]) -> float:
    """`parse_duration` with the parser's signature."""
    del type_
    return parse_duration(tokens[0].value)


def parse_duration(text: str) -> float:
    """The seconds that `text` means: 300ms, 5s, 1m30s, or a plain number of seconds."""
    text = text.strip()
    try:
        return parse_duration_s(text) if text[-1:].isalpha() else float(text)
    except ValueError as err:
        raise ValueError(f"must be a duration such as 300ms, 5s or 1m30s, not {text!r}") from err
