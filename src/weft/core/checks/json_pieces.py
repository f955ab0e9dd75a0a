"""Splits JSON text into pieces that never cut a string, so that values can be counted before they are decoded.

Time and memory are linear in a piece's length, whatever it contains. The decoder, not this module, checks that the text
is valid JSON.
"""

import re

from weft.core.values.patterns import NEVER_BYTES

# Bounds the time for which one piece blocks other tasks; a string is held back whole unless it is longer than this.
SLICE_BYTES = 2**16
STRING = rb'"(?:[^"\\]++|\\.)*+"'  # possessive: no character is read twice
# Replaces a string too long to be a key. No valid JSON text contains this string.
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
    """Cuts a text outside of strings. The text arrives in order, in pieces of at most `SLICE_BYTES`.

    `long_strings` has the first byte and the end of each string, with its quotes, that was too long to be held back.
    """

    _num_bytes = 0
    _long_begin = 0
    _carry = b""  # an unfinished string, or a finished string that is a key if a colon follows
    _is_in_long = False

    def __init__(self) -> None:
        self.long_strings: list[tuple[int, int]] = []

    def feed(self, piece: bytes, *, is_last: bool = False) -> tuple[bytes, bytes]:
        """Returns the complete part of the text so far, and the same part without strings.

        The complete part ends neither inside a string nor between a key and its colon. The last piece is returned
        whole.
        """
        data = self._carry + piece
        self._carry = b""
        self._num_bytes += len(piece)
        if self._is_in_long:
            data = self._outside(data)
        if data and not is_last:
            data = data[: self._hold_back(data)]
        return data, _STRINGS.sub(b"", data)

    def _outside(self, data: bytes) -> bytes:
        """Returns `data` after the end of a long string from an earlier piece; b"" if the string has not ended."""
        end = _end(_REST, data)
        if data[end : end + 1] != b'"':
            self._carry = data[end:]  # a backslash whose second half comes with the next piece
            return b""
        self._is_in_long = False
        rest = data[end + 1 :]
        self.long_strings.append((self._long_begin, self._num_bytes - len(rest)))
        return LONG + rest

    def _hold_back(self, data: bytes) -> int:
        """Returns the position of the cut: the last string waits for the next piece, which may continue it or begin
        with a colon.
        """
        cut = _end(_WHOLE, data)
        if cut < len(data):
            self._is_in_long = len(data) - cut > SLICE_BYTES
            self._long_begin = self._num_bytes - (len(data) - cut)
            self._carry = data[_end(_REST, data, cut + 1) if self._is_in_long else cut :]
            return cut
        ended = data.rstrip(_SPACES)
        if not ended.endswith(b'"'):
            return cut
        cut = _end(_BEFORE_LAST, ended)
        self._carry = ended[cut:]
        if len(ended) - cut > SLICE_BYTES:
            self._carry = LONG
            before = self._num_bytes - len(data)  # counts from the end: `data` may begin with LONG
            self.long_strings.append((before + cut, before + len(ended)))
        return cut


def _end(pattern: re.Pattern[bytes], data: bytes, at: int = 0) -> int:
    """Returns the end of the match of `pattern` in `data` from `at` on; the pattern matches every text."""
    match = pattern.match(data, at)
    assert match is not None
    return match.end()
