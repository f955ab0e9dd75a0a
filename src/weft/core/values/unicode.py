"""Checks that a text can be encoded: Python and JSON can spell lone surrogates, which UTF-8 cannot."""

from weft.core.errors import BadRequest


def encode_text(name: str, text: str) -> bytes:
    """Returns `text` in UTF-8; raises `BadRequest`, naming the field, if it cannot be encoded."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            name, f"{name} is not valid Unicode: a lone surrogate at character {error.start}"
        ) from error


def check_text(name: str, value: object) -> None:
    """Raises `BadRequest` unless the value is a string that UTF-8 can encode."""
    if not isinstance(value, str):
        raise BadRequest(name, f"{name} must be text, got a value of type {type(value).__name__}")
    encode_text(name, value)
