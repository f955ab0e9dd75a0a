"""A look at a JSON body while it is received: how much it will make, and whether a key comes twice.

Decoding happens in one piece, in which nobody else is served; what would make too many objects is
refused here, before. Time and memory are linear in a chunk's length, whatever it holds. Whether the
body is JSON at all is for the decoder to say.
"""

import codecs
import re

import msgspec

from weft.core.errors import BadRequest
from weft.web.http.problem import HttpError

# Numbers, strings and the like: a token id is one. So many are decoded in 20 ms.
MAX_VALUES = 2**19
# Objects, arrays and keys: everybody who works through a body does so part by part.
MAX_PARTS = 2**16
# What one look may hold others up; a key is held in one piece.
SLICE_BYTES = 2**16

_SPACES = b" \t\r\n"
# Possessive: nothing is looked at twice. A quote that is never closed ends the match before it.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_STRINGS = re.compile(_STRING, re.DOTALL)
_WHOLE = re.compile(rb'(?:[^"]++|' + _STRING + rb")*+", re.DOTALL)
_REST = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BEFORE_LAST = re.compile(rb'(?:[^"]++|' + _STRING + rb'(?=[^"]*+"))*+', re.DOTALL)
_KEYS = re.compile(
    rb'(?:[^"{}]++|' + _STRING + rb"(?![ \t\r\n]*+:))*+([{}]|(" + _STRING + rb")[ \t\r\n]*+:)",
    re.DOTALL,
)
# Stands for a string too long to be a key. No string of a valid body looks like this.
_LONG = b'"\0"'


class BodyScan:
    """Given a body piece by piece, in order; raises 413 as soon as it is too much. It has seen `num_bytes`."""

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self._max_values = max_values
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self.num_bytes = 0
        self._num_values = 0
        self._num_parts = 0
        self._objects: list[set[bytes]] = []
        self._carry = b""  # an unfinished string, or a finished one that may prove to be a key
        self._is_in_long = False

    def feed(self, piece: bytes) -> None:
        """Look at at most `SLICE_BYTES` more."""
        self._check_text(piece)
        data = self._outside(self._carry + piece)
        self._carry = b""
        if data:
            cut = self._hold_back(data)
            self._count(data[:cut])

    def end(self) -> None:
        """The body is complete."""
        self._check_text(b"", is_last=True)

    def _check_text(self, piece: bytes, *, is_last: bool = False) -> None:
        held = len(self._utf8.getstate()[0])
        try:
            self._utf8.decode(piece, is_last)
        except UnicodeDecodeError as error:
            at = self.num_bytes - held + error.start
            raise BadRequest(None, f"the body is not UTF-8 (byte {at})") from None
        self.num_bytes += len(piece)

    def _outside(self, data: bytes) -> bytes:
        """`data` from where it is outside a long string that began before; b"" if that goes on."""
        if not self._is_in_long:
            return data
        end = _end(_REST, data)
        if data[end : end + 1] != b'"':
            self._carry = data[end:]  # a backslash, whose second half is to come
            return b""
        self._is_in_long = False
        return _LONG + data[end + 1 :]

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
        self._carry = ended[cut:] if len(ended) - cut <= SLICE_BYTES else _LONG
        return cut

    def _count(self, data: bytes) -> None:
        bare = _STRINGS.sub(b"", data)
        num_keys = bare.count(b":")
        self._num_parts += num_keys + bare.count(b"[") + bare.count(b"{")
        self._num_values += num_keys + bare.count(b",")
        if self._num_parts > MAX_PARTS:
            raise HttpError(
                413,
                f"the body has more than {MAX_PARTS} objects, arrays and keys; send it in parts",
            )
        if self._num_values > self._max_values:
            raise HttpError(
                413, f"the body has more than {self._max_values} values; send it in parts"
            )
        if num_keys or b"{" in bare or b"}" in bare:
            self._refuse_repeated_keys(data)

    def _refuse_repeated_keys(self, data: bytes) -> None:
        """Valid JSON in which a key comes twice means different things to different readers."""
        at = 0
        while match := _KEYS.match(data, at):  # no search, which would begin anew at every byte
            at = match.end()
            if match[1] == b"{":
                self._objects.append(set())
            elif not self._objects:
                raise BadRequest(
                    None, f"the body is not JSON: {_shown(match[1])!r} is in no object"
                )
            elif match[1] == b"}":
                self._objects.pop()
            else:
                self._add_key(match[2])

    def _add_key(self, key: bytes) -> None:
        if key == _LONG:
            raise BadRequest(None, f"a key has more than {SLICE_BYTES} bytes")
        if b"\\" in key:
            try:
                key = msgspec.json.encode(msgspec.json.decode(key))
            except msgspec.DecodeError as error:
                raise BadRequest(None, str(error)) from None
        if key in self._objects[-1]:
            name = _shown(key[1:-1])
            raise BadRequest(name, f"the key {name!r} is there twice")
        self._objects[-1].add(key)


def _end(pattern: re.Pattern[bytes], data: bytes, at: int = 0) -> int:
    """The end of a match of a pattern that always matches."""
    match = pattern.match(data, at)
    assert match is not None
    return match.end()


def _shown(text: bytes) -> str:
    return text.decode(errors="replace")[:100]
