"""JSON texts in pieces that never cut a string, so that values can be counted before they are decoded.

Time and memory are linear in a piece's length, whatever it contains. Whether the text is valid JSON is left to the
decoder.
"""

import re

from weft.core.values.patterns import NEVER_BYTES

# Bound on the time that one piece blocks other tasks; a string is held back whole unless it is longer than this.
SLICE_BYTES = 2**16
STRING = rb'"(?:[^"\\]++|\\.)*+"'  # possessive: no character is read twice
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
    """Cuts a text, given in order in pieces of at most `SLICE_BYTES`, outside of strings."""

    def __init__(self) -> None:
        self._carry = b""  # an unfinished string, or a finished one that may prove to be a key
        self._is_in_long = False

    def feed(self, piece: bytes, *, is_last: bool = False) -> tuple[bytes, bytes]:
        """Returns the part that is complete (no string is cut, nor a string from its colon), and this part without
        strings. The last piece is complete as it is.
        """
        data = self._carry + piece
        self._carry = b""
        if self._is_in_long:
            data = self._outside(data)
        if data and not is_last:
            data = data[: self._hold_back(data)]
        return data, _STRINGS.sub(b"", data)

    def _outside(self, data: bytes) -> bytes:
        """Returns `data` from the end of a long string that began earlier; b"" if the string continues."""
        end = _end(_REST, data)
        if data[end : end + 1] != b'"':
            self._carry = data[end:]  # a backslash whose second half comes with the next piece
            return b""
        self._is_in_long = False
        return LONG + data[end + 1 :]

    def _hold_back(self, data: bytes) -> int:
        """Returns where to cut: the last string stays for the next piece, which may continue it or begin with a
        colon.
        """
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
    """Returns the end of a match of a pattern that always matches."""
    match = pattern.match(data, at)
    assert match is not None
    return match.end()
