"""The check that a text can be sent: half of a surrogate pair, which Python and JSON can spell, has no bytes."""

from weft.core.errors import BadRequest


def encode_text(name: str, text: str) -> bytes:
    """`text` in UTF-8; `BadRequest`, naming the field, where it has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            name, f"{name} is not valid Unicode: a lone surrogate at character {error.start}"
        ) from error


def check_text(name: str, value: object) -> None:
    """Raise `BadRequest` for what is no text, or has no bytes."""
    if not isinstance(value, str):
        raise BadRequest(name, f"{name} must be text, got a value of type {type(value).__name__}")
    encode_text(name, value)
