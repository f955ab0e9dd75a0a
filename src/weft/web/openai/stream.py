"""Server-sent events without names."""

from typing import Any, Final

import msgspec

DONE: Final = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def data_event(value: Any) -> bytes:
    """An event without a name. Fields that are `msgspec.UNSET` are left out."""
    return b"data: %b\n\n" % _encoder.encode(value)
