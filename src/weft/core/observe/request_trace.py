"""The engine's part of a trace: the span `llm_request`, as in vLLM, with the child spans queue, prefill and decode.

The engine reports the duration of each phase when a sequence has ended. For the client a request may end earlier, for
example at a stop string. The span is exported when the request has ended for both.
"""

import time
from collections.abc import Callable
from typing import Final

from weft.core.observe.genai_names import use_latest
from weft.core.observe.stats import SequenceTimes
from weft.core.observe.tracing import Span, SpanKind, Tracer
from weft.core.values.types import FinishReason, Request

_NS: Final = 1e9
_MAX_WAITING: Final = 1024  # ended requests whose times the engine has not reported yet
_FAILED: Final = (FinishReason.ABORT, FinishReason.ERROR)


class RequestTrace:
    """Trace of one request in the engine. A trace ends once."""

    def __init__(
        self,
        span: Span,
        request: Request,
        clock: Callable[[], float],
        *,
        uses_latest_names: bool = False,
    ) -> None:
        self.engine_id = request.engine_id
        self._uses_latest_names = uses_latest_names
        self._span = span
        self._request = request
        self._clock = clock
        age_s = clock() - request.arrival_time
        span.started_ns -= int(age_s * _NS)
        self._times: list[SequenceTimes] = []
        self._num_output_tokens = 0
        self._reasons: list[FinishReason] = []
        self._ended_ns: int | None = None

    @property
    def is_whole(self) -> bool:
        """True if the engine has reported the times of every answer."""
        resumption = self._request.resumption
        num_answers = self._request.params.n if resumption is None else resumption.num_open_answers
        return len(self._times) >= num_answers

    def has_first_token(self, latency_s: float) -> None:
        """Records the time to first token; only the first call for a request counts."""
        if "gen_ai.latency.time_to_first_token" not in self._span.attributes:
            self._span.set("gen_ai.latency.time_to_first_token", latency_s)

    def end_answer(self, num_tokens: int, reason: FinishReason) -> None:
        """Records the end of an answer, as its reader sees the end."""
        self._num_output_tokens += num_tokens
        self._reasons.append(reason)

    def end(self) -> None:
        """Records that all answers have ended."""
        self._ended_ns = time.time_ns()
        failed = next((reason for reason in self._reasons if reason in _FAILED), None)
        if failed is not None:
            self._span.fail("aborted" if failed is FinishReason.ABORT else "failed")

    def take(self, times: SequenceTimes) -> None:
        """Records the times that the engine measured for one answer, as child spans."""
        self._times.append(times)
        span, at_ns = self._span, self._span.started_ns
        decode_s = None if self._request.pooling is not None else times.decode_s
        for name, length_s in (
            ("queue", times.queue_s),
            ("prefill", times.prefill_s),
            ("decode", decode_s),
        ):
            if length_s is None:
                return
            part = span.child(name)
            part.started_ns = at_ns
            at_ns += int(length_s * _NS)
            if self._request.params.n > 1:
                part.set("gen_ai.choice.index", times.index)
            part.end(at_ns)

    def export(self) -> None:
        """Sets all attributes and exports the span."""
        request, params, span = self._request, self._request.params, self._span
        assert self._ended_ns is not None
        span.set("gen_ai.request.id", request.request_id)
        span.set("gen_ai.usage.prompt_tokens", len(request.prompt_token_ids))
        if request.pooling is None:
            span.set("gen_ai.request.temperature", params.temperature)
            span.set("gen_ai.request.top_p", params.top_p)
            span.set("gen_ai.request.max_tokens", params.max_tokens)
            span.set("gen_ai.request.n", params.n)
            span.set("gen_ai.usage.completion_tokens", self._num_output_tokens)
            span.set("gen_ai.usage.num_sequences", params.n)
        span.set("gen_ai.response.finish_reasons", tuple(str(one) for one in self._reasons))
        span.set("gen_ai.latency.e2e", (self._ended_ns - span.started_ns) / _NS)
        for name, values in (
            ("time_in_queue", [one.queue_s for one in self._times]),
            ("time_in_model_prefill", [one.prefill_s for one in self._times]),
            ("time_in_model_decode", [one.decode_s for one in self._times]),
            ("time_in_model_inference", [one.inference_s for one in self._times]),
        ):
            known = [value for value in values if value is not None]
            span.set(f"gen_ai.latency.{name}", max(known, default=None))
        if self._uses_latest_names:
            use_latest(span, request, self._times)
        span.end(self._ended_ns)


class RequestTraces:
    """Traces of the requests of one engine."""

    def __init__(self, tracer: Tracer, model: str, clock: Callable[[], float]) -> None:
        self._tracer = tracer
        self._model = model
        self._clock = clock
        self._open: dict[str, RequestTrace] = {}
        # Traces that have ended for their readers and wait for the engine's times; the oldest is first.
        self._over: dict[str, RequestTrace] = {}

    def begin(self, request: Request) -> RequestTrace | None:
        """Begins a trace; returns None if the request belongs to no trace or to one that is not sampled."""
        if request.trace_headers is None:
            return None
        span = self._tracer.begin("llm_request", request.trace_headers, SpanKind.SERVER)
        if not span.is_sampled:
            return None
        span.set("gen_ai.response.model", self._model)
        trace = self._open[request.engine_id] = RequestTrace(
            span, request, self._clock, uses_latest_names=self._tracer.uses_latest_names
        )
        return trace

    def take(self, times: SequenceTimes) -> None:
        """Records the engine's times of a sequence, if its request has a trace."""
        assert times.engine_id is not None
        trace = self._open.get(times.engine_id) or self._over.get(times.engine_id)
        if trace is None:
            return
        trace.take(times)
        if trace.is_whole and self._over.pop(times.engine_id, None) is not None:
            trace.export()

    def end(self, trace: RequestTrace, *, is_in_engine: bool) -> None:
        """Ends a trace when the reader's request has ended.

        With `is_in_engine` the trace is exported later, when the engine has reported its times.
        """
        if self._open.pop(trace.engine_id, None) is None:
            return
        trace.end()
        if trace.is_whole or not is_in_engine:
            trace.export()
            return
        self._over[trace.engine_id] = trace
        if len(self._over) > _MAX_WAITING:
            self._over.pop(next(iter(self._over))).export()

    def flush(self) -> None:
        """Exports all waiting traces; called when the engine reports no more times."""
        while self._over:
            self._over.popitem()[1].export()
