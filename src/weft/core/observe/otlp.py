"""Exports spans to an OTLP collector, with OpenTelemetry's own sampler, batching and exporters (weft-serve[otel]).

OpenTelemetry's packages read all `OTEL_` variables about sampling, resource, batches and exporters. A slow or dead
collector does not slow requests down: at most `OTEL_BSP_MAX_QUEUE_SIZE` spans wait for the collector; further spans are
dropped and counted.
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Final

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracer,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import SpanKind as OtelKind
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from weft.core.errors import ConfigError
from weft.core.observe.genai_names import are_latest_requested
from weft.core.observe.tracing import Parent, Span, SpanKind, Tracer

log = logging.getLogger("weft.trace")

_CLOSE_S: Final = 3.0
_DEFAULT_QUEUE: Final = 2048
_EXPORTERS: Final = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
_KINDS: Final = {SpanKind.SERVER: OtelKind.SERVER, SpanKind.INTERNAL: OtelKind.INTERNAL}
_SCOPE: Final = InstrumentationScope("weft")
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNNAMED: Final = "unknown_service"
_UNSET: Final = Status(StatusCode.UNSET)


class OtlpTracer(Tracer):
    """A tracer that exports spans; made by `open_tracer`.

    `num_exported`, `num_failed` and `num_dropped` count spans.
    """

    def __init__(self, provider: TracerProvider, exporter: SpanExporter, max_queue: int) -> None:
        super().__init__(self._is_sampled, self._take, uses_latest_names=are_latest_requested())
        self._provider = provider
        self._resource = _OneResource(dict(provider.resource.attributes))
        self._exporter = _CountingExporter(exporter)
        self._processor = BatchSpanProcessor(self._exporter, max_queue_size=max_queue)
        self._max_queue = max_queue
        self._num_taken = 0
        self.num_dropped = 0
        provider.add_span_processor(self._processor)

    @property
    def num_exported(self) -> int:
        """Number of spans that the collector received."""
        return self._exporter.num_exported

    @property
    def num_failed(self) -> int:
        """Number of spans whose export failed."""
        return self._exporter.num_failed

    @property
    def series(self) -> "SpanSeries":
        """Counters of spans, for a metrics registry."""
        return SpanSeries(self)

    def close(self) -> None:
        """Exports the remaining spans, within a short time limit. Called after the last request."""
        super().close()
        # The provider's own time limit is 30 s, too long for a server to exit; a thread lets this call return earlier.
        closing = threading.Thread(target=self._provider.shutdown, name="weft-otlp", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            log.warning("the trace collector does not answer: the last spans are lost")
            self._exporter.shutdown()  # ends the exporter's retries, and so both threads

    def _is_sampled(self, name: str, trace_id: int, parent: Parent | None) -> bool:
        context = None
        if parent is not None:
            flags = TraceFlags(TraceFlags.SAMPLED if parent.is_sampled else TraceFlags.DEFAULT)
            state = TraceState.from_header([parent.state]) if parent.state else None
            sent = SpanContext(
                parent.trace_id,
                parent.span_id,
                is_remote=True,
                trace_flags=flags,
                trace_state=state,
            )
            context = set_span_in_context(NonRecordingSpan(sent))
        result = self._provider.sampler.should_sample(context, trace_id, name, OtelKind.SERVER)
        return result.decision is Decision.RECORD_AND_SAMPLE

    def _take(self, span: Span) -> None:
        waiting = self._num_taken - self._exporter.num_seen
        if waiting >= self._max_queue:
            if not self.num_dropped:
                log.warning(
                    "spans are dropped: %d spans wait for the trace collector, which is the maximum",
                    waiting,
                )
            self.num_dropped += 1
            return
        self._num_taken += 1
        self._processor.on_end(_to_readable(span, self._resource))


class _OneResource(Resource):
    """A resource compared by identity: otherwise its attributes would be hashed again for every exported span."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _CountingExporter(SpanExporter):
    """A span exporter that counts exported and failed spans. Runs on the thread of OpenTelemetry's batch processor."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_shut_down = False
        self.num_exported = 0
        self.num_failed = 0

    @property
    def num_seen(self) -> int:
        """Number of spans that have left the queue: exported and failed ones."""
        return self.num_exported + self.num_failed

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self.num_exported += len(spans)
            else:
                self.num_failed += len(spans)
        return result

    def shutdown(self) -> None:
        if not self._is_shut_down:  # a second shutdown of the exporter logs a warning
            self._is_shut_down = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class SpanSeries(Collector):
    """Counters of exported, failed and dropped spans under OpenTelemetry's own names, for a metrics registry."""

    def __init__(self, tracer: OtlpTracer) -> None:
        self._tracer = tracer

    def collect(self) -> Iterator[CounterMetricFamily]:
        exported = CounterMetricFamily(
            "otel_sdk_exporter_span_exported",
            "Spans exported to the trace collector, by error type: empty for success.",
            labels=("error_type",),
        )
        exported.add_metric(("",), self._tracer.num_exported)
        exported.add_metric(("export_failed",), self._tracer.num_failed)
        yield exported
        dropped = CounterMetricFamily(
            "otel_sdk_processor_span_processed",
            "Spans dropped because too many waited for the trace collector.",
            labels=("error_type",),
        )
        dropped.add_metric(("queue_full",), self._tracer.num_dropped)
        yield dropped


def open_tracer(service: str, endpoint: str | None) -> OtlpTracer | None:
    """Returns a tracer for the program `service` that exports to `endpoint`, or to the endpoint in the environment.

    Returns None if `OTEL_SDK_DISABLED` is set. Raises `ConfigError` for invalid environment variables.
    """
    # OpenTelemetry logs a warning for each malformed `tracestate`, and clients write these headers.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    try:
        resource = Resource.create()  # resource attributes from the environment
        if str(resource.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED):
            resource = resource.merge(Resource({SERVICE_NAME: service}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        if isinstance(provider.get_tracer("weft"), NoOpTracer):
            return None
        return OtlpTracer(provider, _exporter(endpoint), _max_queue())
    except (ValueError, OSError) as error:
        raise ConfigError(f"traces cannot be exported: {error}") from error


def _exporter(endpoint: str | None) -> SpanExporter:
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    name, protocol = next(
        ((name, value) for name in names if (value := os.environ.get(name))), (names[0], "grpc")
    )
    if protocol not in _EXPORTERS:
        raise ConfigError(f"{name} must be {' or '.join(_EXPORTERS)}, not {protocol!r}")
    exporter: SpanExporter = import_module(_EXPORTERS[protocol]).OTLPSpanExporter(endpoint=endpoint)
    return exporter


def _max_queue() -> int:
    name = "OTEL_BSP_MAX_QUEUE_SIZE"
    text = os.environ.get(name) or str(_DEFAULT_QUEUE)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 2**20):
        raise ConfigError(f"{name} must be a number from 1 to {2**20}, not {text!r}")
    return int(text)


def _to_readable(span: Span, resource: Resource) -> ReadableSpan:
    state = TraceState.from_header([span.state]) if span.state else None
    parent = None
    if span.parent_id is not None:
        parent = SpanContext(span.trace_id, span.parent_id, is_remote=span.kind is SpanKind.SERVER)
    return ReadableSpan(
        name=span.name,
        context=SpanContext(
            span.trace_id, span.span_id, is_remote=False, trace_flags=_SAMPLED, trace_state=state
        ),
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        kind=_KINDS[span.kind],
        status=_UNSET if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.started_ns,
        end_time=span.ended_ns,
        instrumentation_scope=_SCOPE,
    )
