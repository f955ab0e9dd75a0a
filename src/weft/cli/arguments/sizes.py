"""Numbers in human form: "32k" tokens, "4GiB". Lower-case units are powers of 1000, upper-case ones of 1024."""

import re
from collections.abc import Sequence
from typing import Any, get_args

from cyclopts import Token

from weft.core.config.quantity import parse_duration_s

_PATTERN = re.compile(r"(-?\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?B)?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Returns the whole number that `text` denotes.

    "32k" is 32,000 and "32K" 32,768; with a unit, "4GB" is 4e9 and "4GiB" is 4 * 2**30. Raises `ValueError` that lists
    the allowed forms.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'"{text}" is not a size; write a number such as 4096, 32k, 32K or 4GiB')
    number, step, unit = match.groups()
    if unit is None:
        base = 1024 if step.isupper() else 1000
    else:
        base = 1024 if unit == "iB" else 1000
    value = float(number) * base ** _POWERS[step.lower()]
    if not value.is_integer():
        raise ValueError(f'"{text}" is not a whole number')
    return int(value)


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
