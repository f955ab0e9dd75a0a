"""Pictures of a conversation: files that are sent with a message, as parts of OpenAI's form."""

import base64
import mimetypes
from pathlib import Path
from typing import Any, TypeAlias

from weft.core.errors import BadRequest

# What a message says: text alone, or pictures and text as parts.
Said: TypeAlias = str | list[dict[str, Any]]
_MAX_BYTES = 8 * 2**20  # of a file: in base64 it fits the body of a request


def read_picture(path: Path) -> dict[str, Any]:
    """Returns the part for a file; raises `BadRequest` for one that is too large, and `OSError`."""
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise BadRequest("image", f"a picture may have at most {_MAX_BYTES >> 20} MiB")
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def with_pictures(text: str, pictures: list[dict[str, Any]]) -> Said:
    """Returns what a message says: its pictures, and its text after them."""
    return [*pictures, {"type": "text", "text": text}] if pictures else text


def text_of(said: Said) -> str:
    """Returns the text of a message for people to read, with a mark for each picture."""
    if isinstance(said, str):
        return said
    return "\n".join(part.get("text", "[picture]") for part in said)
