"""`ObservedRequest`: measures one request for the metrics, from its arrival until its last answer has ended."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from weft.core.errors import Code, EngineLost, WeftError
from weft.core.observe.metrics import EngineMetrics
from weft.core.values.kv_transfer import Resumption
from weft.core.values.types import FinishReason, OutputKind, Request, RequestOutput

_FAILURES = (Code.INTERNAL, Code.UNAVAILABLE)  # failures of an engine, not of a request


class ObservedRequest:
    """Measures a checked request, from the time at which it is sent to the engine. Each answer ends at most once.

    Of a request that continues after the loss of its engine, only the rest is measured.
    """

    __slots__ = (
        "_arrived_at",
        "_metrics",
        "_most_tokens",
        "_num_prompt_tokens",
        "_open",
        "_silent",
        "_trace",
        "has_silent",
    )

    def __init__(self, metrics: EngineMetrics, request: Request) -> None:
        self._metrics = metrics
        self._arrived_at = request.arrival_time
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._most_tokens = 0
        params = request.params
        self._open = set(range(params.n))  # answers that have not ended
        self._silent = set(range(params.n))  # answers without a token
        self.has_silent = True  # an attribute, not a property, because every token reads it
        traces = metrics.traces
        self._trace = None if traces is None else traces.begin(request)
        if request.resumption is not None:
            self._leave_out(request.resumption)
            metrics.num_resumed += 1
            return
        metrics.params_n.add(params.n)
        if params.max_tokens is not None:
            metrics.params_max_tokens.add(params.max_tokens)

    def _leave_out(self, resumption: Resumption) -> None:
        for index, given in enumerate(resumption.answers):
            if given is None:
                self._open.discard(index)
            if given is None or given.token_ids:
                self._silent.discard(index)
        self.has_silent = bool(self._silent)

    @property
    def open_answers(self) -> list[int]:
        """Indexes of answers that have not ended."""
        return sorted(self._open)

    def take(self, index: int, num_tokens: int, reason: FinishReason | None) -> None:
        """Records that an answer has `num_tokens` tokens in total, and that it has ended if there is a reason."""
        if num_tokens and index in self._silent:
            self._silent.remove(index)
            self.has_silent = bool(self._silent)
            latency_s = self._metrics.clock() - self._arrived_at
            self._metrics.first_token.add(latency_s)
            if self._trace is not None:
                self._trace.has_first_token(latency_s)
        if reason is not None and index in self._open:
            self._end(index, num_tokens, reason)

    def leave(self) -> None:
        """Ends the trace: another engine continues the request, and measures the rest."""
        self._open.clear()
        self.end_trace(is_in_engine=False)

    def end_trace(self, *, is_in_engine: bool) -> None:
        """Ends the trace of a request whose answers have all ended.

        With `is_in_engine` the engine will still report the times of each answer.
        """
        if self._trace is not None:
            assert self._metrics.traces is not None
            self._metrics.traces.end(self._trace, is_in_engine=is_in_engine)

    def _end(self, index: int, num_tokens: int, reason: FinishReason) -> None:
        metrics = self._metrics
        self._open.remove(index)
        self._most_tokens = max(self._most_tokens, num_tokens)
        metrics.num_ended[reason] += 1
        if self._trace is not None:
            self._trace.end_answer(num_tokens, reason)
        metrics.prompt_tokens.add(self._num_prompt_tokens)
        metrics.generation_tokens.add(num_tokens)
        metrics.e2e.add(metrics.clock() - self._arrived_at)
        if not self._open:
            metrics.max_generation_tokens.add(self._most_tokens)


class RemoteRequest:
    """Measures a request for an engine that reports no token counts: tokens are counted from the outputs."""

    def __init__(self, metrics: EngineMetrics, request: Request) -> None:
        self._metrics = metrics
        self._request = request
        self._observed: ObservedRequest | None = None  # None until the server has sent an output
        given = [] if request.resumption is None else request.resumption.answers
        self._num_tokens = {i: len(one.token_ids) for i, one in enumerate(given) if one is not None}
        self._last_at: dict[int, float] = {}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Context manager around the reading of the outputs; ends all open answers however the reading ends.

        A request that the server refused before any output was never accepted, and is not counted.
        """
        try:
            yield
        except EngineLost:
            self._accepted().leave()  # another server continues the request
            raise
        except WeftError as error:
            if self._observed is not None or error.code in _FAILURES:
                self._close(FinishReason.ERROR)
            raise
        except (GeneratorExit, asyncio.CancelledError):
            self._close(FinishReason.ABORT)
            raise
        except BaseException:
            self._close(FinishReason.ERROR)
            raise

    def take(self, output: RequestOutput) -> None:
        """Records an output that the server sent."""
        observed = self._accepted()
        now = self._metrics.clock()
        is_delta = self._request.params.output_kind is OutputKind.DELTA
        for answer in output.outputs:
            before = self._num_tokens.get(answer.index, 0)
            total = len(answer.token_ids) + (before if is_delta else 0)
            if total > before:
                self._count(answer.index, total - before, now)
            self._num_tokens[answer.index] = total
            observed.take(answer.index, total, answer.finish_reason)

    def _accepted(self) -> ObservedRequest:
        if self._observed is None:
            self._observed = ObservedRequest(self._metrics, self._request)
        return self._observed

    def _close(self, reason: FinishReason) -> None:
        observed = self._accepted()
        for index in observed.open_answers:
            observed.take(index, self._num_tokens.get(index, 0), reason)

    def _count(self, index: int, num_tokens: int, now: float) -> None:
        is_first = index not in self._last_at
        self._metrics.count_tokens(
            len(self._request.prompt_token_ids) if is_first else 0, num_tokens
        )
        if not is_first:
            # A server with a stream interval sends several tokens together, although it generated them one after the
            # other.
            gap_s = (now - self._last_at[index]) / num_tokens
            self._metrics.inter_token.add(gap_s, num_tokens)
        self._last_at[index] = now
