"""`RequestRunner`: runs checked requests: admits them, hands them to the engine, and passes outputs on to readers."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import msgspec

from weft.core.config.engine import EngineConfig
from weft.core.errors import (
    EngineDead,
    EngineDrained,
    EngineLost,
    GenerationError,
    Overloaded,
)
from weft.core.observe.metrics import EngineMetrics
from weft.core.observe.observed import ObservedRequest
from weft.core.values.kv_transfer import KvRole, RemotePrompt, remote_prompt
from weft.core.values.types import (
    FinishReason,
    LoRARequest,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
    SequenceOutput,
    StreamingInput,
)
from weft.engine.constraints.check import GrammarChecker
from weft.engine.front.calls import EngineCalls
from weft.engine.front.counted_stream import CountedStream
from weft.engine.front.lora_table import LoadedAdapter, LoraTable
from weft.engine.front.open_requests import (
    DRAINED,
    LeavingStream,
    OpenRequest,
    OpenRequests,
    OutputT_co,
    Pace,
    Stream,
)
from weft.engine.front.session import Answer, Session
from weft.engine.ipc.messages import Abort, Add, ReleaseRemote, Resume, Stop
from weft.text.outputs.request_stream import NOW, SOON, RequestStream
from weft.text.tokenizer import Tokenizer

# Maximum time for which a request that leaves waits for the engine to lend its blocks.
_LENDING_S = 2.0
_BLAMED = "the request is given up: two engines have ended while they ran it, at the same place of its answer"


class RequestRunner:
    """Runs the requests of one engine, on the event loop that made it."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        calls: EngineCalls,
        loras: LoraTable,
        metrics: EngineMetrics | None,
    ) -> None:
        self._calls = calls
        self._loras = loras
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        transfer = config.kv_transfer_config
        self._lends = transfer is not None and transfer.role is KvRole.BOTH
        model = config.model_config
        self._grammars = GrammarChecker(tokenizer, model.vocab_size, model.eos_token_ids)
        self.open = OpenRequests(config.scheduler_config)
        self.on_finished: Callable[[str], object] | None = None  # with the request's engine id
        self._pace = Pace(config.stream_interval_ms / 1e3, self._loop)
        self._sessions: set[Session] = set()
        self._stop_at: float | None = None  # deadline of a shutdown whose `Stop` is not sent yet

    @property
    def num_open_answers(self) -> int:
        """Number of unfinished answers, waiting ones included, plus one for each session."""
        return self.open.num_sequences + len(self._sessions)

    @property
    def num_active(self) -> int:
        """Number of accepted requests that have not finished."""
        return len(self.open) + sum(session.is_parked for session in self._sessions)

    # -- a request, from its admission to its end ---------------------------------------------

    async def run(
        self,
        request: Request,
        stream: Stream[OutputT_co],
        num_uncached_tokens: int | None = None,
        session: Session | None = None,
        on_advance: Callable[[], None] | None = None,
    ) -> AsyncGenerator[OutputT_co, None]:
        """Sends a checked request to the engine and yields the request's outputs until it is finished.

        With `on_advance`, which is called with the first output, the caller continues the request at another engine if
        this one is lost.
        """
        self._calls.check_alive()
        opened = self._admit(request, stream, num_uncached_tokens)
        opened.on_advance = on_advance
        if session is not None:
            session.begin(opened)
        held: LoadedAdapter | None = None
        try:
            if request.lora_request is not None:
                held = await self._hold(opened, request.lora_request)
                request = msgspec.structs.replace(request, lora_id=held and held.lora_id)
            if request.params.structured_outputs is not None:
                request = await self._with_grammar(opened, request)
            if self._metrics is not None:
                opened.observed = ObservedRequest(self._metrics, request)
            if not opened.is_over:  # otherwise the request has ended before it was sent
                self._calls.post(Add(request))
                opened.is_sent = True
                self._stop_once_sent()
            while True:
                await opened.wait()
                output = stream.pop()
                if output is not None:
                    yield output
                    if output.is_finished:
                        return
        finally:
            self._close(opened)
            # After `_close`: the next command may remove the adapter from the engine.
            if held is not None:
                self._loras.release(held)

    async def _hold(self, opened: OpenRequest, adapter: LoRARequest) -> LoadedAdapter | None:
        """Loads an adapter for a request, and keeps it loaded; None if the request has ended first."""
        try:
            return await self._loras.hold(adapter, unless=opened.ended)
        except EngineDead as error:  # the load fails with the engine
            raise opened.error or error from None

    async def _with_grammar(self, opened: OpenRequest, request: Request) -> Request:
        """Returns the request in the engine's form: the text of the checked grammar replaces the constraint."""
        constraint = request.params.structured_outputs
        assert constraint is not None
        grammar = None
        if not opened.is_over:
            grammar = await self._grammars.check(constraint, unless=opened.ended)
        params = msgspec.structs.replace(request.params, structured_outputs=None)
        return msgspec.structs.replace(request, params=params, grammar=grammar)

    def _admit(
        self, request: Request, stream: Stream[OutputT_co], num_uncached_tokens: int | None
    ) -> OpenRequest:
        try:
            return self.open.admit(request, stream, num_uncached_tokens)
        except Overloaded:
            self._release_remote(request.params)
            raise

    def _close(self, opened: OpenRequest) -> None:
        """Forgets a request; aborts it if the engine still computes it."""
        if opened.observed is not None:
            opened.observe_end(opened.observed)
        self.open.remove(opened)
        self._pace.forget(opened)
        self._stop_once_sent()
        if not opened.is_sent:
            self._release_remote(opened.request.params)
        elif not opened.stream.is_finished:
            self._abort_in_engine([opened.request.engine_id])
        elif self.on_finished is not None:
            self.on_finished(opened.request.engine_id)

    def _release_remote(self, params: SamplingParams) -> None:
        """Releases the KV blocks that another engine lends for a request that this engine never gets. No-op if no
        engine lends blocks for the request.
        """
        source = remote_prompt(params.extra_args)
        if source is not None:
            self.release_remote(source)

    def release_remote(self, source: RemotePrompt) -> None:
        """Releases KV blocks that another engine lends for a request which no engine gets. No-op if the engine is
        dead.
        """
        if not self._calls.is_dead:
            self._calls.post(ReleaseRemote(source))

    def _abort_in_engine(self, engine_ids: list[str]) -> None:
        if not self._calls.is_dead:
            self._calls.post(Abort(engine_ids, is_silent=True))

    async def run_session(
        self,
        options: RequestOptions,
        pieces: AsyncIterable[StreamingInput],
        params: SamplingParams,
        answer: Callable[[Session, StreamingInput, list[int]], AsyncGenerator[RequestOutput, None]],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request whose input arrives in pieces; `answer` runs each piece."""
        session = Session(options.request_id, pieces)
        # A registered session can be aborted, and fails with the engine.
        self._sessions.add(session)
        try:
            of_piece: Answer = partial(answer, session)
            async with aclosing(session.outputs(params, of_piece)) as outputs:
                async for output in outputs:
                    yield output
        finally:
            self._sessions.discard(session)

    # -- outputs ------------------------------------------------------------------------------

    def take(self, outputs: Iterable[SequenceOutput]) -> None:
        """Takes the outputs of one step."""
        for output in outputs:
            opened = self.open.get(output.engine_id)
            if opened is None or opened.is_over:
                continue  # the request has ended at the front, and the engine does not know yet
            try:
                self._push(opened, output)
            except Exception as error:  # noqa: BLE001 - concerns this request only; its reader gets the error
                opened.fail(error)

    def _push(self, opened: OpenRequest, output: SequenceOutput) -> None:
        if opened.waits_for_prefill and (output.token_ids or output.finish_reason is not None):
            self.open.count_prefilled(opened)  # else the output has prompt logprobs only
        stream = opened.stream
        is_matched = stream.push(output)
        if is_matched:  # a stop string: the engine does not know of stop strings
            self._calls.post(Abort([output.engine_id], output.index, is_silent=True))
        if stream.error is not None:
            opened.fail(GenerationError(stream.error))
        observed = opened.observed
        # First tokens and ends only: observing every token would cost a tenth of the front's time.
        if observed is not None and (
            output.finish_reason is not None or is_matched or observed.has_silent
        ):
            observed.take(output.index, *stream.progress(output.index))
        due = stream.due
        if due is NOW:
            self._pace.wake_now(opened)
        elif due is SOON:
            self._pace.wake_soon(opened)

    # -- ends ---------------------------------------------------------------------------------

    def end_answer(self, engine_id: str, index: int) -> None:
        """Ends an answer whose reader, in another process, found a stop string. No-op if it has ended."""
        opened = self.open.get(engine_id)
        if opened is None or opened.is_over or not isinstance(opened.stream, CountedStream):
            return
        self._calls.post(Abort([engine_id], index, is_silent=True))
        opened.stream.end(index, FinishReason.STOP)
        if opened.observed is not None:
            opened.observed.take(index, *opened.stream.progress(index))
        if opened.stream.is_finished:
            self._pace.wake_now(opened)

    def confirm(self, engine_id: str) -> None:
        """Notes that the reader, in another process, has all outputs of a request. No-op if the request has ended."""
        opened = self.open.get(engine_id)
        if opened is not None and isinstance(opened.stream, CountedStream):
            opened.stream.is_confirmed = True
            if opened.stream.is_finished:
                self._pace.wake_now(opened)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Aborts requests and sessions by the ids that callers gave."""
        named = set(request_ids)
        for session in self._sessions:
            if session.request_id in named:
                session.abort()
        found = self.open.named(named)
        for opened in found:
            opened.abort()
        if found:
            self._abort_in_engine([opened.request.engine_id for opened in found])

    def stop(self, timeout_s: float) -> None:
        """Starts the shutdown of the engine: open requests get `timeout_s` seconds to finish."""
        for session in self._sessions:
            session.abort()  # no further pieces; the engine finishes the piece that it answers
        self._stop_at = time.monotonic() + timeout_s
        if timeout_s and self.open.has_unsent:
            self._calls.send(Resume)  # unsent requests may wait for paused ones
            self._loop.call_later(timeout_s, self._send_stop, 0.0)
        else:
            self._send_stop(timeout_s)

    def _stop_once_sent(self) -> None:
        """Sends a due `Stop` once all open requests were sent: the engine then exits when they are done."""
        if self._stop_at is not None and not self.open.has_unsent:
            self._send_stop(max(0.0, self._stop_at - time.monotonic()))

    def _send_stop(self, timeout_s: float) -> None:
        """Sends `Stop`, once; requests that were not sent by now are aborted."""
        if self._stop_at is None:
            return
        self._stop_at = None
        for opened in self.open:
            if not opened.is_sent and not opened.is_over:
                opened.abort()
        self._calls.post(Stop(timeout_s))

    def hand_over(self) -> list[OpenRequest]:
        """Gives up all requests that another engine can continue, and returns them. Their callers continue them at
        once, or, if this engine lends blocks, when it has lent those of the request.
        """
        given = [
            opened for opened in self.open if opened.on_advance is not None and not opened.is_over
        ]
        lending = [opened for opened in given if self._can_lend(opened)]
        for opened in lending:
            leaving = LeavingStream(opened)
            opened.stream = cast("Stream[Any]", leaving)
            self._loop.call_later(_LENDING_S, leaving.give_up)
        others = [opened for opened in given if opened not in lending]
        for opened in others:
            opened.fail(EngineDrained(DRAINED))
        if others:
            self._abort_in_engine([opened.request.engine_id for opened in others])
        if lending and not self._calls.is_dead:
            ids = [opened.request.engine_id for opened in lending]
            self._calls.post(Abort(ids, lends=True))
        return given

    def _can_lend(self, opened: OpenRequest) -> bool:
        """True if the engine lends the blocks of a request. Readers in other processes compute them at the next
        engine.
        """
        return self._lends and opened.is_sent and isinstance(opened.stream, RequestStream)

    def fail(self, message: str) -> None:
        """Fails all requests because the engine is dead. Each request gets its own exception."""
        self._stop_at = None
        self._grammars.close()
        failed = [opened for opened in self.open if not opened.is_over]
        suspects = [opened for opened in failed if _is_suspect(opened)]
        for opened in failed:
            is_blamed = opened in suspects and (len(suspects) == 1 or _was_alone(opened))
            if isinstance(opened.stream, LeavingStream):
                opened.stream.give_up()
                continue
            kind = EngineDead if opened.on_advance is None else EngineLost
            opened.fail(GenerationError(_BLAMED) if is_blamed else kind(message))
        for session in self._sessions:
            session.fail(EngineDead(message))


def _was_alone(opened: OpenRequest) -> bool:
    """True if no request ran beside it that was lost as often without an advance; see `Resuming`."""
    resumption = opened.request.resumption
    return resumption is not None and resumption.num_losses > 1


def _is_suspect(opened: OpenRequest) -> bool:
    """True if a second engine has ended while it ran the request, and the request has not advanced in between."""
    resumption = opened.request.resumption
    was_lost = resumption is not None and resumption.num_losses > 0
    return opened.is_sent and opened.waits_for_prefill and was_lost
