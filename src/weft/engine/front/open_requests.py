"""Open requests at the front of an engine: their admission, and the times at which their readers are woken."""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from weft.core.config.engine import SchedulerConfig
from weft.core.errors import EngineDrained, EngineLost, Overloaded
from weft.core.observe.observed import ObservedRequest
from weft.core.values.types import (
    FinishReason,
    PoolingRequestOutput,
    Request,
    RequestOutput,
    SequenceOutput,
)
from weft.engine.front.counted_stream import Ended
from weft.text.outputs.request_stream import Due, RequestStream

DRAINED = "the engine is drained, and gives the request up"

OutputT_co = TypeVar("OutputT_co", RequestOutput, PoolingRequestOutput, Ended, covariant=True)


class Stream(Protocol[OutputT_co]):
    """Outputs of one request, as they come from the engine."""

    @property
    def due(self) -> Due:
        """When to wake the reader for outputs that were pushed and not popped."""

    @property
    def error(self) -> str | None:
        """The engine's error message if the request has failed."""

    @property
    def is_finished(self) -> bool:
        """True if no more output will come."""

    def push(self, output: SequenceOutput) -> bool:
        """Adds the output of one step. Returns True if the engine must be sent an abort because the answer has
        ended.
        """

    def progress(self, index: int) -> tuple[int, FinishReason | None]:
        """Returns the number of tokens of an answer, and its finish reason."""

    def pop(self) -> OutputT_co | None:
        """Returns the new output for the caller; None if there is nothing to emit yet."""

    def abort(self) -> None:
        """Ends the request because the caller aborts it."""


class OpenRequest:
    """A request in flight: its stream, and the means to wake its one reader.

    `is_sent` is set when the request is sent to the engine, `ended` when the request is aborted or fails. `woken_at` is
    the time when the reader was last woken. `observed` is set once the request was accepted, if there are metrics.
    `num_uncached_tokens` is the number of its prompt tokens to compute. `on_advance` is called with its first output.
    """

    is_woken = False
    is_sent = False
    waits_for_prefill = True
    woken_at = -math.inf
    error: BaseException | None = None
    observed: ObservedRequest | None = None
    on_advance: Callable[[], None] | None = None
    # Not an `asyncio.Event`: that would cost a sixth of the front's time per token.
    _waiter: asyncio.Future[None] | None = None

    def __init__(self, request: Request, stream: Stream[Any], num_uncached_tokens: int) -> None:
        self.request = request
        self.stream = stream
        self.num_uncached_tokens = num_uncached_tokens
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        params = request.params
        has_scores = params.prompt_logprobs is not None or params.logprobs is not None
        texts = stream if isinstance(stream, RequestStream) else None
        self._scored = texts if has_scores else None
        self._sink = None if texts is None or has_scores else texts.sink

    @property
    def is_over(self) -> bool:
        """True if no more output will come from the engine."""
        return self.error is not None or self.stream.is_finished

    def observe_end(self, observed: ObservedRequest) -> None:
        """Reports the end of all answers, finished or given up. Answers whose engine is lost go on at another engine,
        which reports their ends.
        """
        if isinstance(self.error, EngineLost):
            observed.leave()
            return
        given_up = FinishReason.ABORT if self.error is None else FinishReason.ERROR
        for index in observed.open_answers:
            num_tokens, reason = self.stream.progress(index)
            observed.take(index, num_tokens, reason or given_up)
        observed.end_trace(is_in_engine=self.is_sent and self.error is None)

    async def wait(self) -> None:
        """Returns when the reader is woken and may call `stream.pop`. Raises the request's error if the request has
        failed.
        """
        if not (self.is_woken or (self._scored is not None and self._scored.has_more)):
            self._waiter = self._loop.create_future()
            await self._waiter
        self.is_woken = False
        if self.error is not None:
            raise self.error
        if self._scored is not None:
            await self._scored.read_scores_soon()

    @property
    def has_sink(self) -> bool:
        """True if `emit` can replace `wake`: there is a sink, and the reader waits."""
        waiter = self._waiter
        return self._sink is not None and waiter is not None and not waiter.done()

    def emit(self) -> None:
        """Passes a new output to the sink. Wakes the reader instead if the request is over or the sink is closed."""
        if self._sink is None or not self._sink.is_open or self.is_over or not self.has_sink:
            self.wake()
            return
        self.is_woken = False
        try:
            output = self.stream.pop()
            if output is not None:
                self._sink.take(output)
        except Exception as error:  # noqa: BLE001 - the reader raises it, as without a sink
            self.fail(error)

    def abort(self) -> None:
        """Ends the request, and wakes the reader for the end."""
        try:
            self.stream.abort()
        except Exception as error:  # noqa: BLE001 - concerns this request only, not others aborted with it
            self.fail(error)
        self.ended.set()
        self.wake()

    def fail(self, error: BaseException) -> None:
        """Makes the reader raise `error`."""
        self.error = error
        self.ended.set()
        self.wake()

    def wake(self) -> None:
        self.is_woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class LeavingStream:
    """Takes the place of the stream of a request that its engine hands over. The engine's final output ends the request
    here, with the transfer params of its blocks, so that it continues at another engine.
    """

    def __init__(self, opened: OpenRequest) -> None:
        self._opened = opened
        self._stream = opened.stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def push(self, output: SequenceOutput) -> bool:
        """Adds the output of one step; with the engine's final output the request is given up."""
        if output.finish_reason is not FinishReason.ABORT:
            return self._stream.push(output)
        self.give_up(output.kv_transfer_params)
        return False

    def give_up(self, lent: dict[str, Any] | None = None) -> None:
        """Ends the request here, if it has not ended yet."""
        if not self._opened.is_over:
            self._opened.fail(EngineDrained(DRAINED, lent=lent))


class OpenRequests:
    """Open requests by the engine's id, and by the caller's id, which several requests may share.

    `num_uncached_tokens` is the number of prompt tokens to compute, of the requests that wait for prefill.
    """

    def __init__(self, limits: SchedulerConfig) -> None:
        self._limits = limits
        self._by_engine_id: dict[str, OpenRequest] = {}
        # Returns the open request with an engine id, or None.
        self.get = self._by_engine_id.get
        self._engine_ids: dict[str, set[str]] = {}  # by request id
        self.num_sequences = 0
        self.num_uncached_tokens = 0
        # Number of answers of requests in preparation. They take queue places and are not open yet
        self._num_prepared = 0
        self._num_queued_tokens = 0

    def use(self, limits: SchedulerConfig) -> None:
        """Replaces the admission limits; open requests are not affected."""
        self._limits = limits

    def __len__(self) -> int:
        return len(self._by_engine_id)

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(list(self._by_engine_id.values()))

    @property
    def has_unsent(self) -> bool:
        """True if the engine does not have all open requests yet."""
        return any(not opened.is_sent for opened in self._by_engine_id.values())

    def named(self, request_ids: Iterable[str]) -> list[OpenRequest]:
        """Returns all open requests whose request id is among `request_ids`."""
        return [
            self._by_engine_id[engine_id]
            for request_id in request_ids
            for engine_id in self._engine_ids.get(request_id, ())
        ]

    @contextmanager
    def preparing(self, num_answers: int) -> Iterator[None]:
        """Reserves queue places for a request's `num_answers` answers while the request is prepared. Raises
        `Overloaded` if the queue is full.
        """
        self._check_room(num_answers)
        self._num_prepared += num_answers
        try:
            yield
        finally:
            self._num_prepared -= num_answers

    def _check_room(self, num_answers: int) -> None:
        num_sequences = self.num_sequences + self._num_prepared + num_answers
        if num_sequences > self._limits.max_num_queued_reqs:
            raise Overloaded(
                f"the queue is full: {num_sequences} sequences would be open; the maximum is"
                f" {self._limits.max_num_queued_reqs} (--max-num-queued-reqs)"
            )
        if self._num_queued_tokens >= self._limits.max_num_queued_tokens:
            raise Overloaded(
                f"the queue is full: {self._num_queued_tokens} prompt tokens are waiting; the maximum is"
                f" {self._limits.max_num_queued_tokens} (--max-num-queued-tokens)"
            )

    def admit(
        self, request: Request, stream: Stream[Any], num_uncached_tokens: int | None = None
    ) -> OpenRequest:
        """Admits a request, or raises `Overloaded`. Each of its `n` answers takes a place. A request that another
        engine has begun is always admitted.

        `num_uncached_tokens` is the number of prompt tokens to compute, if the caller knows it. Default: all.
        """
        if request.resumption is None:
            self._check_room(request.params.n)
        num_tokens = len(request.prompt_token_ids)
        if num_uncached_tokens is None:
            num_uncached_tokens = num_tokens
        opened = OpenRequest(request, stream, num_uncached_tokens)
        self._by_engine_id[request.engine_id] = opened
        self._engine_ids.setdefault(request.request_id, set()).add(request.engine_id)
        self.num_sequences += request.params.n
        self.num_uncached_tokens += num_uncached_tokens
        self._num_queued_tokens += num_tokens
        return opened

    def count_prefilled(self, opened: OpenRequest) -> None:
        """Counts the request's prompt as no longer waiting: it has its first output, or has ended."""
        if opened.waits_for_prefill:
            opened.waits_for_prefill = False
            self.num_uncached_tokens -= opened.num_uncached_tokens
            self._num_queued_tokens -= len(opened.request.prompt_token_ids)
            if opened.on_advance is not None:
                opened.on_advance()

    def remove(self, opened: OpenRequest) -> None:
        """Forgets a request."""
        request = opened.request
        self.count_prefilled(opened)
        self.num_sequences -= request.params.n
        del self._by_engine_id[request.engine_id]
        siblings = self._engine_ids[request.request_id]
        siblings.discard(request.engine_id)
        if not siblings:
            del self._engine_ids[request.request_id]


class Pace:
    """Wakes the readers of all streams.

    A stream that emitted nothing for `interval_s` emits at once, and so do the first and last output of an answer.
    Other outputs wait for the rest of the interval and leave together. So no token waits longer than the interval,
    and a model with longer steps is not slowed down. One timer serves all streams: a stream that waits when the
    timer fires is woken then, a little early.
    """

    def __init__(self, interval_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._interval_s = interval_s
        self._loop = loop
        self._waiting: dict[OpenRequest, None] = {}  # in the order in which they began to wait
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0  # when the timer fires
        # Requests that emit at the end of this event loop turn.
        self._emitting: list[OpenRequest] = []

    def wake_now(self, opened: OpenRequest) -> None:
        self._waiting.pop(opened, None)
        self._wake(opened, self._loop.time())

    def wake_soon(self, opened: OpenRequest) -> None:
        """Wakes the reader now, or at the end of the interval since it was last woken."""
        if opened.is_woken or opened in self._waiting:
            return
        now = self._loop.time()
        due_at = opened.woken_at + self._interval_s
        if due_at <= now:
            self._wake(opened, now)
            return
        self._waiting[opened] = None
        if self._timer is None or due_at < self._due_at:
            self._wait_until(due_at)

    def forget(self, opened: OpenRequest) -> None:
        """Removes a request whose reader has left."""
        self._waiting.pop(opened, None)

    def _wait_until(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = due_at
        self._timer = self._loop.call_at(due_at, self._wake_waiting)

    def _wake_waiting(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, {}
        now = self._loop.time()
        for opened in waiting:
            self._wake(opened, now)

    def _wake(self, opened: OpenRequest, now: float) -> None:
        """Wakes the reader, or emits to the sink. The sink emits at the end of this turn of the event loop, so that
        all outputs until then go together.
        """
        opened.woken_at = now
        if not opened.has_sink:
            opened.wake()
        elif not opened.is_woken:
            if not self._emitting:
                self._loop.call_soon(self._emit)
            opened.is_woken = True
            self._emitting.append(opened)

    def _emit(self) -> None:
        emitting, self._emitting = self._emitting, []
        for opened in emitting:
            opened.emit()
