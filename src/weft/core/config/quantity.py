"""Parses Kubernetes quantities ("1Gi", "500m"), Go durations ("1m30s"), and sizes of flags ("32k", "4GiB")."""

import re
from decimal import Decimal
from typing import Final

_SUFFIXES: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18), "Ki": Decimal(2**10), "Mi": Decimal(2**20),
    "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,2}))?",
    re.ASCII,
)
_UNITS: Final = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip
_PART = re.compile(r"(\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_SIZE = re.compile(r"(-?\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?B)?")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_quantity(value: str | int | float) -> int:
    """Returns the quantity as a whole number of units, fractions rounded up; raises `ValueError`."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"must be a quantity such as 500, 10k or 1Gi, got {value!r}")
    factor = Decimal(10) ** int(match["exponent"] or 0) * _SUFFIXES[match["suffix"] or ""]
    amount = Decimal(match["number"]) * factor
    if abs(amount) >= 2**63:
        raise ValueError(f"must be less than 2^63, got {value!r}")
    whole = int(amount)
    return whole + 1 if amount > whole else whole


def parse_size(text: str) -> int:
    """Returns the whole number that `text` denotes.

    "32k" is 32,000 and "32K" 32,768; with a unit, "4GB" is 4e9 and "4GiB" is 4 * 2**30. Raises `ValueError` that lists
    the allowed forms.
    """
    match = _SIZE.fullmatch(text.strip())
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


def check_positive(**durations: str) -> None:
    """Raises `ValueError` for a duration that is not above 0; argument names are the keys of the configuration file."""
    for key, text in durations.items():
        if parse_duration_s(text) <= 0:
            raise ValueError(f"{key} must be more than 0, got {text!r}")


def parse_duration_s(text: str) -> float:
    """Returns the duration in seconds; raises `ValueError` for an invalid text."""
    if text == "0":
        return 0.0
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    parts = list(_PART.finditer(rest))
    if not parts or "".join(part[0] for part in parts) != rest:
        raise ValueError(f"must be a duration such as 300ms, 5s or 1m30s, got {text!r}")
    return sign * sum(float(number) * _UNITS[unit] for number, unit in map(re.Match.groups, parts))
