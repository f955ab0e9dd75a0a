"""weft.core.observe.otlp, against a collector made of OpenTelemetry's own protocol."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from prometheus_client import CollectorRegistry

from tests.busy import PATIENCE_S, until
from tests.doubles.otlp_receiver import Receiver, receiving
from weft.core.errors import ConfigError
from weft.core.observe.otlp import OtlpTracer, open_tracer

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}
NOWHERE = "http://127.0.0.1:9"  # where nobody listens


def opened(endpoint: str | None) -> OtlpTracer:
    """A tracer, which the environment has not switched off."""
    tracer = open_tracer("weft", endpoint)
    assert tracer is not None
    return tracer


def sample(tracer: OtlpTracer, name: str, error_type: str) -> float | None:
    """What a scraper reads."""
    registry = CollectorRegistry()
    registry.register(tracer.series)
    return registry.get_sample_value(name, {"error_type": error_type})


async def test_the_last_spans_are_sent_at_the_end():
    """Whatever the batch's delay is; and counted."""
    async with receiving() as receiver:
        tracer = opened(receiver.address)
        tracer.begin("a", HEADERS).end()
        await asyncio.to_thread(tracer.close)
        found = await receiver.named("a", trace_id=TRACE_ID)
    assert found["a"].service == "weft"
    assert sample(tracer, "otel_sdk_exporter_span_exported_total", "") == 1


async def test_the_environment_names_service_and_endpoint(monkeypatch: pytest.MonkeyPatch):
    """OTEL_ variables, as its packages read them; --tracing of the picker has nothing else."""
    async with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        tracer = opened(None)
        tracer.begin("a", HEADERS).end()
        await asyncio.to_thread(tracer.close)
        found = await receiver.named("a", trace_id=TRACE_ID)
    assert found["a"].service == "mine"


async def test_spans_go_over_http_too(monkeypatch: pytest.MonkeyPatch):
    """`http/protobuf`: the endpoint is then the whole URL."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.take(pb.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tracer = opened(f"http://127.0.0.1:{server.server_port}/v1/traces")
        tracer.begin("a", HEADERS).end()
        await asyncio.to_thread(tracer.close)
        server.shutdown()
    assert [span.name for span in receiver.spans] == ["a"]


@pytest.mark.parametrize(
    ("sampler", "is_sampled"), [("always_off", False), ("parentbased_always_off", True)]
)
async def test_the_environment_names_the_sampler(
    monkeypatch: pytest.MonkeyPatch, sampler: str, is_sampled: bool
):
    """Those that go by the parent follow its flag."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    tracer = opened(NOWHERE)
    assert tracer.begin("a", HEADERS).is_sampled is is_sampled
    assert tracer.begin("a", {}).is_sampled is False
    await asyncio.to_thread(tracer.close)


async def test_opentelemetry_can_be_switched_off(monkeypatch: pytest.MonkeyPatch):
    """OTEL_SDK_DISABLED leaves no tracer."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert open_tracer("weft", NOWHERE) is None


async def test_a_dead_collector_costs_bounded_memory_and_no_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """What finds the queue full is dropped and counted, and the log says so once."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    before = {*threading.enumerate()}
    tracer = opened(NOWHERE)
    for _ in range(100):
        tracer.begin("a", HEADERS).end()
    dropped = sample(tracer, "otel_sdk_processor_span_processed_total", "queue_full")
    # The exporter may have taken eight before the queue was full again.
    assert 100 - 2 * 8 <= dropped <= 100 - 8
    assert sum("spans are dropped" in record.message for record in caplog.records) == 1
    ours = {*threading.enumerate()} - before
    tracer.close()
    # Although an export would have tried for a minute.
    await until(lambda: not any(thread.is_alive() for thread in ours))
    assert ours


async def test_what_a_collector_does_not_take_is_counted(monkeypatch: pytest.MonkeyPatch):
    """Once the exporter has given up."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    tracer = opened(NOWHERE)
    tracer.begin("a", HEADERS).end()
    async with asyncio.timeout(PATIENCE_S):
        while not tracer.num_failed:  # noqa: ASYNC110 - on a thread of the exporter
            await asyncio.sleep(0.01)
    await asyncio.to_thread(tracer.close)
    assert sample(tracer, "otel_sdk_exporter_span_exported_total", "export_failed") == 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "OTEL_BSP_MAX_QUEUE_SIZE must be a number"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "8", "max_export_batch_size must be less"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL must be grpc or"),
    ],
)
def test_an_environment_that_cannot_be_followed_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
):
    """At the start, by the variable's name."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        open_tracer("weft", NOWHERE)


@pytest.mark.parametrize(("value", "is_latest"), [
    ("", False), ("http/dup", False), ("gen_ai", False), ("gen_ai_latest_experimental", True),
    ("http, gen_ai_latest_experimental ,database", True),
])  # fmt: skip
async def test_the_environment_chooses_the_names_of_attributes(
    value: str, is_latest: bool, monkeypatch: pytest.MonkeyPatch
):
    """OTEL_SEMCONV_STABILITY_OPT_IN is a list for all kinds of spans: only the word for generative AI counts."""
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", value)
    tracer = opened(NOWHERE)
    assert tracer.uses_latest_names is is_latest
    await asyncio.to_thread(tracer.close)
