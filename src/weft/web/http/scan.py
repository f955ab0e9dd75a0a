"""A look at a JSON body while it is received: how much it will make, and whether a key comes twice.

Decoding happens in one piece, in which nobody else is served; what would make too many objects is
refused here, before.
"""

import codecs
import re

import msgspec

from weft.core.errors import BadRequest
from weft.core.json_pieces import LONG, SLICE_BYTES, STRING, JsonPieces
from weft.web.http.problem import HttpError

# Numbers, strings and the like: a token id is one. So many are decoded in 20 ms.
MAX_VALUES = 2**19
# Objects, arrays and keys: everybody who works through a body does so part by part.
MAX_PARTS = 2**16

_KEYS = re.compile(
    rb'(?:[^"{}]++|' + STRING + rb"(?![ \t\r\n]*+:))*+([{}]|(" + STRING + rb")[ \t\r\n]*+:)",
    re.DOTALL,
)


class BodyScan:
    """Given a body piece by piece, in order; raises 413 as soon as it is too much. It has seen `num_bytes`."""

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self._max_values = max_values
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self.num_bytes = 0
        self._num_values = 0
        self._num_parts = 0
        self._objects: list[set[bytes]] = []
        self._pieces = JsonPieces()

    def feed(self, piece: bytes) -> None:
        """Look at at most `SLICE_BYTES` more."""
        self._check_text(piece)
        data, bare = self._pieces.feed(piece)
        if data:
            self._count(data, bare)

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

    def _count(self, data: bytes, bare: bytes) -> None:
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
        if key == LONG:
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


def _shown(text: bytes) -> str:
    return text.decode(errors="replace")[:100]
