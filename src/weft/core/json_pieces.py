"""JSON texts cut outside their strings, so that what they will make can be counted before they are decoded.

Time and memory are linear in a piece's length, whatever it holds. Whether a text is JSON at all is for
the decoder to say.
"""

import re

from weft.core.patterns import NEVER_BYTES

# What one look may hold others up; a string is held back in one piece, unless it is longer than that.
SLICE_BYTES = 2**16
STRING = rb'"(?:[^"\\]++|\\.)*+"'  # possessive: nothing is looked at twice
# Stands for a string too long to be a key. No string of a valid text looks like this.
LONG = b'"\0"'

_SPACES = b" \t\r\n"
_STRINGS = re.compile(STRING, re.DOTALL)
# A quote that is never closed ends the match before it.
_WHOLE = re.compile(rb'(?:[^"]++|' + STRING + NEVER_BYTES + rb")*+", re.DOTALL)
_REST = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BEFORE_LAST = re.compile(
    rb'(?:[^"]++|' + STRING + rb'(?=[^"]*+")' + NEVER_BYTES + rb")*+", re.DOTALL
)


class JsonPieces:
    """Given a text in order, at most `SLICE_BYTES` at a time."""

    def __init__(self) -> None:
        self._carry = b""  # an unfinished string, or a finished one that may prove to be a key
        self._is_in_long = False

    def feed(self, piece: bytes) -> tuple[bytes, bytes]:
        """What can be looked at now, which cuts no string and no string from its colon; and that without strings."""
        data = self._outside(self._carry + piece)
        self._carry = b""
        if data:
            data = data[: self._hold_back(data)]
        return data, _STRINGS.sub(b"", data)

    def _outside(self, data: bytes) -> bytes:
        """`data` from where it is outside a long string that began before; b"" if that goes on."""
        if not self._is_in_long:
            return data
        end = _end(_REST, data)
        if data[end : end + 1] != b'"':
            self._carry = data[end:]  # a backslash, whose second half is to come
            return b""
        self._is_in_long = False
        return LONG + data[end + 1 :]

    def _hold_back(self, data: bytes) -> int:
        """Where to cut: the last string stays for the next piece, which may go on with it or a colon."""
        cut = _end(_WHOLE, data)
        if cut < len(data):
            self._is_in_long = len(data) - cut > SLICE_BYTES
            self._carry = data[_end(_REST, data, cut + 1) if self._is_in_long else cut :]
            return cut
        ended = data.rstrip(_SPACES)
        if not ended.endswith(b'"'):
            return cut
        cut = _end(_BEFORE_LAST, ended)
        self._carry = ended[cut:] if len(ended) - cut <= SLICE_BYTES else LONG
        return cut


def _end(pattern: re.Pattern[bytes], data: bytes, at: int = 0) -> int:
    """The end of a match of a pattern that always matches."""
    match = pattern.match(data, at)
    assert match is not None
    return match.end()
