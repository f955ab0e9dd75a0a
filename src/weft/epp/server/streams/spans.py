"""The picker's trace spans, with the names of llm-d's picker: `gateway.request`, which contains the decision."""

from collections.abc import Iterator
from contextlib import contextmanager

from weft.core.observe.log import REQUEST
from weft.core.observe.tracing import Span, Tracer
from weft.epp.decision.tickets import Decision
from weft.epp.request.parsers.parser import Call
from weft.epp.request.values import InferenceRequest, Refused


class RequestSpan:
    """The span of a request, from its headers to the end of its stream."""

    def __init__(self, tracer: Tracer, call: Call) -> None:
        self._span = tracer.begin("gateway.request", call.headers)
        self._span.set("gen_ai.request.id", call.request_id)
        # Trace headers that replace the client's, for the model server.
        self.headers = self._span.headers
        REQUEST.set((call.request_id, self.headers["traceparent"]))

    @contextmanager
    def picking(self, request: InferenceRequest) -> Iterator[Span]:
        """While the `with` block runs, records the span of the decision, including the wait in flow control."""
        self._span.set("gen_ai.request.model", request.model)
        span = self._span.child("gateway.request_orchestration")
        try:
            yield span
        except BaseException as error:
            span.fail(str(error) if isinstance(error, Refused) else type(error).__name__)
            raise
        finally:
            span.end()

    def refused(self, refused: Refused) -> None:
        """Records that the picker refused the request."""
        self._span.set("http.response.status_code", refused.status)
        self._span.fail(refused.message)

    def end(self, *, is_cut: bool) -> None:
        """Ends the span; `is_cut` is True if the stream ended early."""
        if is_cut:
            self._span.fail("the client or the gateway went away")
        self._span.end()


def note_decision(span: Span, request: InferenceRequest, decision: Decision) -> None:
    """Adds the request's endpoint to the span."""
    span.set("target_model", decision.rewritten_model or request.model)
    span.set("target_endpoint", ",".join(decision.endpoints))
    if decision.ticket is not None:
        *_, priority = decision.ticket.labels
        span.set("request_prio", priority)
