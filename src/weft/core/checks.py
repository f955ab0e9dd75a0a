"""Checks of one value, each with a sentence that names it and says what is allowed."""

from collections.abc import Callable

from weft.core.errors import BadRequest, Key

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_LABEL_CHARS = 256


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raise `BadRequest` for anything but an integer in [low, high]; a bool is none."""
    if type(value) is not int:
        raise BadRequest(name, (Key(name), f" must be an integer, got {shown(value)}"))
    if value < low:
        raise BadRequest(name, (Key(name), f" must be at least {low}, got {shown(value)}"), value)
    if value > high:
        raise BadRequest(name, (Key(name), f" must be at most {high}, got {shown(value)}"), value)


def check_number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """Raise `BadRequest` for anything but a number in [low, high], or (low, high] with `above`.

    NaN and a bool are none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(name, (Key(name), f" must be a number, got {shown(value)}"))
    # Written so that NaN, which compares false with everything, is refused.
    if not (low < value if above else low <= value) or not value <= high:
        bounds = f"{'(' if above else '['}{low:g}, {high:g}]"
        raise BadRequest(name, (Key(name), f" must be in {bounds}, got {shown(value)}"), value)


def check_label(
    name: str, value: object, is_allowed: Callable[[str], bool], characters: str
) -> None:
    """Raise `BadRequest` for anything but a short text of `characters`, which `is_allowed` knows."""
    if not isinstance(value, str):
        raise BadRequest(name, f"{name} must be a string, got {shown(value)}")
    if not 1 <= len(value) <= MAX_LABEL_CHARS or not is_allowed(value):
        raise BadRequest(
            name,
            f"{name} must have 1 to {MAX_LABEL_CHARS} {characters} characters, "
            f"got {shown(value)} of {len(value)} characters",
        )


def shown(value: object) -> str:
    """A short form of any value for a message: never megabytes, never an object's own repr."""
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge integer"  # printing more than 4300 digits raises
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return ascii(value if len(value) <= 40 else value[:40] + "...")
    return f"a value of type {type(value).__name__}"
