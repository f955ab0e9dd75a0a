"""`Position`: a client's place in a stream, as a signed beginning and the tokens of each output.

As text: parts and a tag, joined by dots. Each part is base64: first the beginning, then the outputs in order. The tag
signs all parts.
"""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from itertools import count

import msgspec

from weft.core.errors import BadRequest
from weft.core.headers import RESUME
from weft.core.values.types import (
    FinishReason,
    LogprobRow,
    Request,
    RequestOutput,
    SequenceOutput,
)
from weft.web.http.options import MAX_RESUME_BYTES

HEADER = RESUME
# Value of the header that asks for a stream that can be continued.
NEW = "new"
# Time from the beginning of a stream after which no server continues it.
MAX_AGE_S = 3600
VERSION = 1
_TAG_BYTES = 15
_TOKEN_BYTES = 3
# Begins a part that is more than tokens of answer 0.
_DETAILED = "~"
# The context of the secret's use: files of secrets may be shared with other protocols.
_USE = b"weft x-weft-resume 1"


class Beginning(msgspec.Struct, frozen=True, array_like=True):
    """The facts that stay the same over all servers of a stream. `digest` covers the request's body and prompt, and the
    settings of the API. `nonce` gives the ids of items and tool calls, which have the name of the first server's
    `store`.
    """

    version: int
    label: str
    created: int
    seed: int
    num_cached_tokens: int
    fingerprint: str
    digest: bytes
    nonce: bytes
    store: str


class GivenPart(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The new part of one answer in an output; `tokens` has three bytes for each token."""

    index: int
    tokens: bytes
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def output(self, request: Request) -> SequenceOutput:
        """Returns the part as an engine's output. The client has its log-probabilities: zeros stand for them."""
        token_ids = _token_ids(self.tokens)
        rows: list[LogprobRow] = [[(token_id, 0.0, None)] for token_id in token_ids]
        return SequenceOutput(
            engine_id=request.engine_id,
            index=self.index,
            token_ids=token_ids,
            logprobs=None if request.params.logprobs is None else rows,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )


class Position(msgspec.Struct, frozen=True):
    """A place in a stream: its beginning, and the outputs up to there."""

    beginning: Beginning
    outputs: list[list[GivenPart]]


class Signer:
    """Signs and checks positions with a secret that equal servers share."""

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, _USE, "sha256")

    def begin(self) -> "RunningTag":
        """Returns the tag of a position without parts."""
        return RunningTag(self._key)

    def ids_of(self, nonce: bytes) -> Callable[[int], bytes]:
        """Returns the source of a stream's ids: equal at each server, and unknown to clients."""
        numbers = count()

        def next_bytes(num_bytes: int) -> bytes:
            use = b"id %b %d" % (nonce, next(numbers))
            return hmac.digest(self._key, use, "sha256")[:num_bytes]

        return next_bytes

    def read(self, text: str) -> Position:
        """Returns the position that a client sends. Raises `BadRequest` that says why it is refused."""
        if len(text) > MAX_RESUME_BYTES:
            raise refused(f"is longer than {MAX_RESUME_BYTES} characters")
        parts, _, tag = text.rpartition(".")
        running = self.begin()
        running.add(parts)
        if not hmac.compare_digest(running.text, tag.encode()):
            raise refused("does not have the signature of this server's --resume-secret-file")
        return _checked(parts.split("."))


class RunningTag:
    """The tag of all parts so far. Parts may be added one by one, or joined by dots."""

    def __init__(self, key: bytes) -> None:
        self._running = hmac.new(key, digestmod="sha256")

    def add(self, part: str) -> None:
        """Adds a part, or several."""
        self._running.update(b"%b." % part.encode())

    @property
    def text(self) -> bytes:
        """The tag."""
        return _to_text(self._running.digest()[:_TAG_BYTES]).encode()


def refused(reason: str) -> BadRequest:
    """Returns the error for a position that this server does not continue."""
    return BadRequest(HEADER, f"{HEADER} {reason}")


def digest_of(*parts: bytes) -> bytes:
    """Returns a digest of the parts and their lengths."""
    running = hashlib.sha256()
    for part in parts:
        running.update(b"%d " % len(part))
        running.update(part)
    return running.digest()[:16]


def beginning_part(beginning: Beginning) -> str:
    """Returns the first part of a position."""
    return _to_text(msgspec.msgpack.encode(beginning))


def output_part(output: RequestOutput) -> str:
    """Returns the part of an output."""
    pieces = [
        GivenPart(
            answer.index,
            _to_bytes(answer.token_ids),
            answer.finish_reason,
            answer.stop_reason,
            answer.num_draft_tokens,
            answer.num_accepted_tokens,
        )
        for answer in output.outputs
    ]
    if len(pieces) == 1 and pieces[0].tokens and pieces[0] == GivenPart(0, pieces[0].tokens):
        return _to_text(pieces[0].tokens)
    return _DETAILED + _to_text(msgspec.msgpack.encode(pieces))


def _checked(parts: list[str]) -> Position:
    try:
        beginning = msgspec.msgpack.decode(_from_text(parts[0]), type=Beginning)
        outputs = list(map(_pieces, parts[1:]))
    except (msgspec.MsgspecError, binascii.Error) as error:
        raise refused("was made by another version of Weft") from error
    if beginning.version != VERSION:
        raise refused("was made by another version of Weft")
    if not beginning.created - MAX_AGE_S <= time.time() <= beginning.created + MAX_AGE_S:
        raise refused(f"has expired: its stream began more than {MAX_AGE_S} s ago")
    return Position(beginning, outputs)


def _pieces(part: str) -> list[GivenPart]:
    if part.startswith(_DETAILED):
        return msgspec.msgpack.decode(
            _from_text(part.removeprefix(_DETAILED)), type=list[GivenPart]
        )
    return [GivenPart(0, _from_text(part))]


def _to_bytes(token_ids: list[int]) -> bytes:
    return b"".join(token_id.to_bytes(_TOKEN_BYTES, "little") for token_id in token_ids)


def _token_ids(data: bytes) -> list[int]:
    def each() -> Iterator[int]:
        for start in range(0, len(data), _TOKEN_BYTES):
            yield int.from_bytes(data[start : start + _TOKEN_BYTES], "little")

    return list(each())


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _from_text(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
