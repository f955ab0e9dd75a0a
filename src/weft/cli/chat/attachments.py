"""Pictures, videos and sounds of a conversation: files that are sent with a message, as parts of a chat's messages."""

import base64
import mimetypes
from pathlib import Path
from typing import Any, TypeAlias

from weft.core.errors import BadRequest
from weft.core.values.media import WORDS, Modality

# What a message says: text alone, or media and text as parts.
Said: TypeAlias = str | list[dict[str, Any]]
_MAX_BYTES = 8 * 2**20  # of a file: in base64 it fits the body of a request
_MARKS = {f"{modality}_url": f"[{word}]" for modality, word in WORDS.items()}


def read_attachment(path: Path, modality: Modality) -> dict[str, Any]:
    """Returns the part for a file; raises `BadRequest` for one that is too large, and `OSError`."""
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise BadRequest(modality, f"a {WORDS[modality]} may have at most {_MAX_BYTES >> 20} MiB")
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": f"{modality}_url", f"{modality}_url": {"url": url}}


def with_attachments(text: str, attachments: list[dict[str, Any]]) -> Said:
    """Returns what a message says: its media, and its text after them."""
    return [*attachments, {"type": "text", "text": text}] if attachments else text


def text_of(said: Said) -> str:
    """Returns the text of a message for people to read, with a mark for each picture, video or sound."""
    if isinstance(said, str):
        return said
    return "\n".join(_MARKS.get(part["type"]) or str(part["text"]) for part in said)
