"""The summary in a compaction item: sealed as text that only this program reads, and opened for a prompt."""

import base64
import binascii

import msgspec

from weft.schema.responses import CompactionInput
from weft.text.content import Place

_MARK = "weft1."
_HEADING = "Summary of the conversation so far:\n"
INSTRUCTION = (
    "Summarize the conversation so far for yourself, so that you can continue it without its text: facts, decisions, "
    "names, open questions, and results of tools. Write only the summary."
)


def sealed(summary: str) -> str:
    """The text of a compaction item. It is not secret: the conversation was the client's."""
    return _MARK + base64.urlsafe_b64encode(msgspec.json.encode(summary)).decode()


def opened(item: CompactionInput, place: Place) -> str:
    """The message that a compaction item stands for."""
    mark, text = item.encrypted_content[: len(_MARK)], item.encrypted_content[len(_MARK) :]
    if mark == _MARK:
        try:
            return _HEADING + msgspec.json.decode(base64.urlsafe_b64decode(text), type=str)
        except (binascii.Error, msgspec.DecodeError, ValueError):
            pass  # the same error as for other texts
    raise place.error(
        ".encrypted_content is not of this server; give items of type compaction as "
        "/v1/responses/compact made them"
    )
