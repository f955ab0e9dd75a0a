"""Replaces the served model's name in responses by the name that the client sent.

Works on pieces of bytes: a name that two pieces share waits for its second half; all other bytes are passed on at once.
"""

import re
from typing import Final

import msgspec

_KEY: Final = b'"model"'
# Maximum white space around the colon, which JSON allows; the bound limits the text that is held back.
_MAX_SPACE: Final = 8
_SPACES: Final = b" \t\r\n"


class Rename:
    """Replaces `"model": "served"` by the requested model name, anywhere in a body."""

    def __init__(self, served: str, requested: str) -> None:
        self._name = msgspec.json.encode(served)
        space = b"[%s]{0,%d}" % (_SPACES, _MAX_SPACE)
        colon = b"(" + space + b":" + space + b")"
        self._pattern = re.compile(_KEY + colon + re.escape(self._name))
        self._replacement = msgspec.json.encode(requested)
        self._longest = len(_KEY) + 2 * _MAX_SPACE + 1 + len(self._name)
        self._held = b""

    @property
    def is_empty(self) -> bool:
        """True if no bytes are held back."""
        return not self._held

    def feed(self, data: bytes) -> bytes:
        """Adds bytes of the response; returns the bytes that can be sent now."""
        text = self._pattern.sub(self._replace, self._held + data)
        cut = self._cut(text)
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> bytes:
        """Returns the bytes that were held back for an incomplete name."""
        held, self._held = self._held, b""
        return held

    def _replace(self, found: re.Match[bytes]) -> bytes:
        return _KEY + found[1] + self._replacement

    def _cut(self, text: bytes) -> int:
        """Returns the position where a possible name begins; the end of the text if there is none."""
        at = text.rfind(_KEY, max(0, len(text) - self._longest))
        if at >= 0 and self._is_begun(text[at + len(_KEY) :]):
            return at
        for num_bytes in range(min(len(_KEY), len(text)), 0, -1):
            if text.endswith(_KEY[:num_bytes]):
                return len(text) - num_bytes
        return len(text)

    def _is_begun(self, rest: bytes) -> bool:
        """True if further bytes could complete the model name after a key."""
        rest = rest.lstrip(_SPACES)
        if not rest:
            return True
        return rest[:1] == b":" and self._name.startswith(rest[1:].lstrip(_SPACES))
