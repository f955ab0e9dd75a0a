"""Checks of single values: integers, numbers and labels."""

from collections.abc import Callable

from weft.core.errors import BadRequest, Key

MAX_LABEL_CHARS = 256


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raises `BadRequest` unless `value` is an integer in [low, high]; a bool is not an integer."""
    if type(value) is not int:
        raise BadRequest(name, (Key(name), f" must be an integer, got {shown(value)}"))
    if value < low:
        raise BadRequest(name, (Key(name), f" must be at least {low}, got {shown(value)}"), value)
    if value > high:
        raise BadRequest(name, (Key(name), f" must be at most {high}, got {shown(value)}"), value)


def check_number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """Raises `BadRequest` unless `value` is a number in [low, high] (with `above`: (low, high]); NaN is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(name, (Key(name), f" must be a number, got {shown(value)}"))
    # Written so that NaN, which compares false with everything, is refused.
    if not (low < value if above else low <= value) or not value <= high:
        bounds = f"{'(' if above else '['}{low:g}, {high:g}]"
        raise BadRequest(name, (Key(name), f" must be in {bounds}, got {shown(value)}"), value)


def check_label(
    name: str, value: object, is_allowed: Callable[[str], bool], characters: str
) -> None:
    """Raises `BadRequest` unless `value` is a short text whose characters `is_allowed`; `characters` describes them."""
    if not isinstance(value, str):
        raise BadRequest(name, f"{name} must be a string, got {shown(value)}")
    if not 1 <= len(value) <= MAX_LABEL_CHARS or not is_allowed(value):
        raise BadRequest(
            name,
            f"{name} must have 1 to {MAX_LABEL_CHARS} {characters} characters, "
            f"got {shown(value)} of {len(value)} characters",
        )


def shown(value: object) -> str:
    """Returns a short text of any value for an error message: never megabytes long, and never an object's own repr."""
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge integer"  # printing more than 4300 digits raises
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return ascii(value if len(value) <= 40 else value[:40] + "...")
    return f"a value of type {type(value).__name__}"
