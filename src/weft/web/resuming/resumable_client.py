"""`ResumableClient`: an engine client of one request, which records the outputs of its stream, or continues them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.checks.id_source import IdSource
from weft.core.client import EngineClient, Sink
from weft.core.errors import FailedPrecondition, Unavailable
from weft.core.values.kv_transfer import Resumption
from weft.core.values.types import LoRARequest, Request, RequestOutput
from weft.text.outputs.request_stream import RequestStream
from weft.text.tokenizer import Tokenizer
from weft.web.http.exchange import Exchange
from weft.web.http.options import MAX_RESUME_BYTES
from weft.web.resuming.position import (
    HEADER,
    VERSION,
    Beginning,
    Position,
    RunningTag,
    beginning_part,
    digest_of,
    output_part,
    refused,
)

# From an adapter, or None, to the fingerprint of the servers that give equal answers; empty if it is unknown.
FingerprintOf = Callable[[LoRARequest | None], Awaitable[str]]
# Outputs that are given again in one turn of the event loop: some milliseconds.
_REPLAYED_AT_ONCE = 64
_DONE = b": %b done\n\n" % HEADER.encode()
_OFF = b": %b off\n\n" % HEADER.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """The facts of a stream that are known before its prompt. `digest` covers body and settings."""

    label: str
    created: int
    nonce: bytes
    digest: bytes
    ids: IdSource


class Recorder:
    """Sends the comments of a stream that can be continued: after each output a part and the tag of all parts, at the
    end `done`, and `off` once the stream cannot be continued. A comment waits until the stream has begun.
    """

    def __init__(self, exchange: Exchange, tag: RunningTag) -> None:
        self._exchange = exchange
        self._tag = tag
        self._num_bytes = 0
        self._pending = b""
        self.is_on = True

    def add(self, parts: str) -> None:
        """Adds parts that the client has already, or gets with the next comment."""
        self._tag.add(parts)
        self._num_bytes += len(parts) + 1

    async def send(self, *parts: str) -> None:
        """Sends parts, unless the position would become too long."""
        if not self.is_on:
            return
        self.add(".".join(parts))
        if self._num_bytes + len(self._tag.text) > MAX_RESUME_BYTES:
            await self.turn_off()
            return
        comment = f": {HEADER} {'.'.join(parts)} ".encode() + self._tag.text + b"\n\n"
        await self._write(comment)

    async def turn_off(self) -> None:
        """Says that the stream can no longer be continued."""
        if self.is_on:
            self.is_on = False
            await self._write(_OFF)

    def last(self) -> bytes:
        """Returns the end of the stream."""
        return self._pending + _DONE

    async def _write(self, comment: bytes) -> None:
        self._pending += comment
        if self._exchange.status is not None:
            pending, self._pending = self._pending, b""
            await self._exchange.write(pending)


class ResumableClient:
    """An engine client whose first stream can be continued. With a `position` the outputs up to there are given again,
    for the state of the API, and are not shown to the client; then the engine continues.

    All other methods are those of the wrapped client.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        fingerprint_of: FingerprintOf,
        recorder: Recorder,
        facts: StreamFacts,
        position: Position | None,
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._fingerprint_of = fingerprint_of
        self._recorder = recorder
        self._facts = facts
        self._position = position
        self._num_runs = 0
        self.is_replaying = position is not None

    @property
    def outcome(self) -> str:
        """What became of the stream: new, continued, or refused."""
        if self._position is None:
            return "new"
        return "refused" if self.is_replaying else "continued"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def run_into(self, request: Request, sink: Sink) -> AsyncGenerator[RequestOutput, None]:
        """Yields all outputs, so that each is followed by its comment."""
        del sink
        return self.run(request)

    async def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        self._num_runs += 1
        if self._position is None:
            running = self._record(request)
        else:
            running = self._continue(request, self._position)
        async with aclosing(running) as outputs:
            async for output in outputs:
                yield output

    # -- a new stream -------------------------------------------------------------------------

    async def _record(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        recorder = self._recorder
        fingerprint = await self._fingerprint(request)
        if not fingerprint:
            await recorder.turn_off()
        is_first = True
        async with aclosing(self._client.run(request)) as outputs:
            async for output in outputs:
                yield output  # returns when the events of this output were sent
                if is_first:
                    is_first = False
                    begun = self._beginning(request, fingerprint, output.num_cached_tokens)
                    await recorder.send(beginning_part(begun), output_part(output))
                else:
                    await recorder.send(output_part(output))

    def _beginning(self, request: Request, fingerprint: str, num_cached_tokens: int) -> Beginning:
        facts = self._facts
        return Beginning(
            VERSION,
            facts.label,
            facts.created,
            request.seed,
            num_cached_tokens,
            fingerprint,
            _digest(facts, request),
            facts.nonce,
            facts.ids.store,
        )

    async def _fingerprint(self, request: Request) -> str:
        """The fingerprint for a request; empty if no other server can continue it, and for the further requests of a
        call.
        """
        if self._num_runs > 1 or not _can_continue(request):
            return ""
        return await self._fingerprint_of(request.lora_request)

    # -- the rest of a stream -----------------------------------------------------------------

    async def _continue(
        self, request: Request, position: Position
    ) -> AsyncGenerator[RequestOutput, None]:
        begun = position.beginning
        request = await self._checked(request, begun)
        stream = RequestStream(request, self._tokenizer, ends_at_stops=False)
        for place, output in enumerate(_replayed(stream, request, position)):
            yield _with_cached(output, begun)
            if place % _REPLAYED_AT_ONCE == 0:
                await asyncio.sleep(0)  # gives other requests a turn
        self.is_replaying = False
        if stream.is_finished:
            return
        rest = Resumption(answers=stream.hand_over(), fingerprint=begun.fingerprint, num_losses=0)
        request = msgspec.structs.replace(request, data_parallel_rank=None, resumption=rest)
        async with aclosing(self._client.run(request)) as outputs:
            async for output in outputs:
                yield _with_cached(output, begun)
                await self._recorder.send(output_part(output))

    async def _checked(self, request: Request, begun: Beginning) -> Request:
        if self._num_runs > 1 or not _can_continue(request):
            raise refused("is of a request that no server continues")
        fingerprint = await self._fingerprint_of(request.lora_request)
        if not fingerprint:
            raise Unavailable(
                f"{HEADER}: this server has not read the fingerprint of its weights yet"
            )
        if fingerprint != begun.fingerprint:
            raise FailedPrecondition(
                f"{HEADER} is of a server with other weights or settings, so its stream cannot continue here"
            )
        if _digest(self._facts, request) != begun.digest:
            raise refused("is of a request with another body or prompt, or of other API settings")
        return msgspec.structs.replace(request, seed=begun.seed)


def _can_continue(request: Request) -> bool:
    """False if an answer needs more than tokens: log-probabilities of the prompt, blocks of another engine, media that
    the engine reads.
    """
    params = request.params
    return params.prompt_logprobs is None and params.extra_args is None and request.media is None


def _digest(facts: StreamFacts, request: Request) -> bytes:
    prompt = msgspec.msgpack.encode((request.prompt_token_ids, [one.hash for one in request.items]))
    return digest_of(facts.digest, prompt)


def _replayed(
    stream: RequestStream, request: Request, position: Position
) -> Iterator[RequestOutput]:
    for pieces in position.outputs:
        for piece in pieces:
            stream.push(piece.output(request))
        is_open = True
        while is_open:
            if (output := stream.pop()) is not None:
                yield output
            is_open = stream.has_more


def _with_cached(output: RequestOutput, begun: Beginning) -> RequestOutput:
    """The output with the cached tokens of the first server: usage is that of one request."""
    return msgspec.structs.replace(output, num_cached_tokens=begun.num_cached_tokens)
