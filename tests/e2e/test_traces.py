"""One trace across processes and protocols, as a collector receives it."""

import asyncio
import json
import shlex
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx2
import pytest

from tests.busy import PATIENCE_S, until
from tests.cli.running import SMALL, running
from tests.cli.test_epp_up import up
from tests.doubles.otlp_receiver import Received, Receiver, receiving
from tests.epp.server.messages import Stream, request_body, request_headers
from tests.web.serving import ECHO, GIB, RANDOM
from weft.compute.backends import load_model
from weft.core.config.engine_options import EngineOptions
from weft.core.observe.metrics import Metrics
from weft.core.observe.otlp import OtlpTracer, open_tracer
from weft.engine.clients.local_client import LocalClient
from weft.engine.start.configure import resolve
from weft.model.open import open_model
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.fleet import Fleet
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer
from weft.text.tokenizer import Tokenizer
from weft.web.admin.probes import probe_endpoints
from weft.web.http.options import HttpOptions
from weft.web.http.server import HttpServer
from weft.web.http.state import ServerState
from weft.web.routes import all_endpoints
from weft.web.served import Served

ROOT = Path(__file__).resolve().parent.parent.parent
TRACE_ID, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{CALLER}-01"
GENERATE = "vllm.grpc.engine.VllmEngine/Generate"
COMPLETIONS = "POST /v1/completions"
ENGINE = ("llm_request", "queue", "prefill", "decode")
BODY = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0.5, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine behind HTTP and gRPC, and the collector that its spans go to."""

    collector: Receiver
    http: httpx2.AsyncClient
    grpc: str
    client: LocalClient


@asynccontextmanager
async def exporting(collector: Receiver, service: str) -> AsyncIterator[OtlpTracer]:
    """A tracer whose spans come soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        tracer = open_tracer(service, collector.address)
    assert tracer is not None
    try:
        yield tracer
    finally:
        await asyncio.to_thread(tracer.close)


@asynccontextmanager
async def http_server(client, tokenizer, tracer, metrics) -> AsyncIterator[httpx2.AsyncClient]:
    """The HTTP APIs of a client."""
    state = ServerState(metrics.registry, tracer=tracer)
    server = HttpServer(state, HttpOptions(port=0), probe_endpoints(state))
    port = await server.start()
    served = Served(
        client=client, tokenizer=tokenizer, chat_template=None, started_at=int(time.time())
    )
    server.open(served, all_endpoints(state))
    address = f"http://127.0.0.1:{port}"
    try:
        async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE_S) as http:
            yield http
    finally:
        await server.stop()


@asynccontextmanager
async def worker(collector: Receiver, model: str = RANDOM) -> AsyncIterator[Worker]:
    """One that exports."""
    asked = EngineOptions(model=model, max_model_len=128, num_gpu_blocks_override=64)
    checkpoint = open_model(model)
    config = resolve(asked, checkpoint.card, GIB)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer_files)
    runner, _ = load_model(checkpoint, config)
    async with exporting(collector, "weft") as tracer:
        metrics = Metrics(tracer=tracer)
        client = await LocalClient.start_with(runner, tokenizer, config, metrics)
        rpc = RpcServer(client, checkpoint.tokenizer_files, RpcOptions(port=0), tracer)
        target = f"127.0.0.1:{await rpc.start()}"
        try:
            async with http_server(client, tokenizer, tracer, metrics) as http:
                yield Worker(collector, http, target, client)
        finally:
            await rpc.stop()
            client.shutdown()
            await client.wait_closed()


@pytest.fixture
async def site() -> AsyncIterator[Worker]:
    """A worker with a collector of its own."""
    async with receiving() as collector, worker(collector) as running:
        yield running


async def generate(target: str, *metadata: tuple[str, str], stream: bool = False, **params):
    """One call."""
    sampling = pb.SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **params})
    tokens = pb.TokenizedInput(input_ids=[5, 6, 7])
    request = pb.GenerateRequest(
        request_id="r", tokenized=tokens, sampling_params=sampling, stream=stream
    )
    async with grpc.aio.insecure_channel(target) as channel:
        call = VllmEngineStub(channel).Generate(request, metadata=metadata)
        return [answer async for answer in call]


async def test_http_and_engine_are_one_trace(site: Worker):
    """The caller's span has the server's below it, that the engine's, and there are queue, prefill and decode."""
    headers = {"traceparent": TRACEPARENT, "x-request-id": "mine"}
    answer = await site.http.post("/v1/completions", json=BODY, headers=headers)

    assert answer.status_code == 200
    found = await site.collector.named(COMPLETIONS, *ENGINE, trace_id=TRACE_ID)
    server, engine = found[COMPLETIONS], found["llm_request"]
    assert server.parent_id == CALLER
    assert engine.parent_id == server.span_id
    assert {found[name].parent_id for name in ENGINE[1:]} == {engine.span_id}
    assert {span.service for span in found.values()} == {"weft"}
    assert (server.kind, engine.kind) == ("SPAN_KIND_SERVER", "SPAN_KIND_SERVER")
    assert [span.error for span in site.collector.of(TRACE_ID)] == [None] * 5
    assert server.attributes == {
        "http.request.method": "POST", "http.route": "/v1/completions",
        "http.response.status_code": 200, "gen_ai.request.id": "mine",
    }  # fmt: skip


async def test_the_engines_span_has_vllms_attributes(site: Worker):
    """By its names, so that what reads vLLM's traces reads these."""
    await site.http.post("/v1/completions", json=BODY, headers={"traceparent": TRACEPARENT})

    span = (await site.collector.named(*ENGINE, trace_id=TRACE_ID))["llm_request"]
    said = span.attributes
    usual = {"prompt_tokens": 3, "completion_tokens": 4, "num_sequences": 1}
    assert {name: said[f"gen_ai.usage.{name}"] for name in usual} == usual
    asked = {"temperature": 0.5, "top_p": 1.0, "max_tokens": 4, "n": 1}
    assert {name: said[f"gen_ai.request.{name}"] for name in asked} == asked
    assert said["gen_ai.response.model"] == RANDOM
    assert said["gen_ai.response.finish_reasons"] == ["length"]
    times = {name: said[f"gen_ai.latency.{name}"] for name in (
        "time_to_first_token", "e2e", "time_in_queue", "time_in_model_prefill",
        "time_in_model_decode", "time_in_model_inference",
    )}  # fmt: skip
    assert 0 < times["time_to_first_token"] <= times["e2e"]
    inference = times["time_in_model_prefill"] + times["time_in_model_decode"]
    assert times["time_in_model_inference"] == pytest.approx(inference)
    assert times["time_in_queue"] + inference <= times["e2e"]
    assert span.ended_ns - span.started_ns == pytest.approx(times["e2e"] * 1e9, abs=1000)


def decodes(site: Worker) -> list[Received]:
    return [span for span in site.collector.of(TRACE_ID) if span.name == "decode"]


async def test_each_of_several_answers_has_its_parts(site: Worker):
    """n answers are n sequences: each queues, and is computed."""
    body = BODY | {"n": 3}
    await site.http.post("/v1/completions", json=body, headers={"traceparent": TRACEPARENT})

    found = await site.collector.named(*ENGINE, trace_id=TRACE_ID)
    await until(lambda: len(decodes(site)) >= 3)
    assert sorted(span.attributes["gen_ai.choice.index"] for span in decodes(site)) == [0, 1, 2]
    assert found["llm_request"].attributes["gen_ai.usage.completion_tokens"] == 12
    assert found["llm_request"].attributes["gen_ai.usage.num_sequences"] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_grpc_and_engine_are_one_trace(site: Worker, stream: bool):
    """The trace comes in the call's metadata."""
    await generate(site.grpc, ("traceparent", TRACEPARENT), stream=stream)

    found = await site.collector.named(GENERATE, *ENGINE, trace_id=TRACE_ID)
    assert found[GENERATE].parent_id == CALLER
    assert found["llm_request"].parent_id == found[GENERATE].span_id
    assert found[GENERATE].attributes == {
        "rpc.system": "grpc", "rpc.service": "vllm.grpc.engine.VllmEngine",
        "rpc.method": "Generate", "rpc.grpc.status_code": 0, "gen_ai.request.id": "r",
    }  # fmt: skip
    assert found["llm_request"].attributes["gen_ai.request.id"] == "r"


async def test_picker_and_worker_are_one_trace(site: Worker):
    """The picker puts its own span into the header that the worker reads, in place of the client's."""
    async with exporting(site.collector, "weft-epp") as tracer:
        stream = Stream(tracer=tracer)
        head = request_headers("/v1/completions", traceparent=TRACEPARENT)
        await stream.send(head, request_body(b'{"model":"m","prompt":"hi"}'))
        stream.exchange.close()
        await site.http.post("/v1/completions", json=BODY, headers=stream.head)

    names = ("gateway.request", "gateway.request_orchestration", COMPLETIONS, *ENGINE)
    found = await site.collector.named(*names, trace_id=TRACE_ID)
    gateway = found["gateway.request"]
    assert gateway.parent_id == CALLER
    assert found["gateway.request_orchestration"].parent_id == gateway.span_id
    assert found[COMPLETIONS].parent_id == gateway.span_id
    assert (gateway.service, found[COMPLETIONS].service) == ("weft-epp", "weft")
    assert gateway.attributes["gen_ai.request.model"] == "m"
    picked = found["gateway.request_orchestration"].attributes
    assert picked["target_model"] == "m"
    assert picked["target_endpoint"] == stream.head["x-gateway-destination-endpoint"]


async def test_a_server_before_a_fleet_passes_the_trace_on(site: Worker):
    """--remote: its own span stands between the caller's and the worker's."""
    fleet = await Fleet.connect([site.grpc])
    try:
        async with (
            exporting(site.collector, "front") as tracer,
            http_server(fleet, site.client.renderer, tracer, Metrics(tracer=tracer)) as http,
        ):
            await http.post("/v1/completions", json=BODY, headers={"traceparent": TRACEPARENT})
            found = await site.collector.named(COMPLETIONS, GENERATE, *ENGINE, trace_id=TRACE_ID)
    finally:
        fleet.shutdown()
        await fleet.wait_closed()

    assert found[COMPLETIONS].service == "front"
    assert found[GENERATE].parent_id == found[COMPLETIONS].span_id
    assert [span.name for span in site.collector.of(TRACE_ID)].count("llm_request") == 1


async def test_a_request_without_a_trace_begins_one(site: Worker):
    """As the root of its own."""
    await site.http.post("/v1/completions", json=BODY)

    async with asyncio.timeout(PATIENCE_S):
        while not site.collector.spans:  # noqa: ASYNC110 - spans come when they come
            await asyncio.sleep(0.01)
    trace_id = site.collector.spans[0].trace_id
    found = await site.collector.named(COMPLETIONS, *ENGINE, trace_id=trace_id)
    assert found[COMPLETIONS].parent_id == ""


async def test_what_its_caller_does_not_sample_has_no_spans(site: Worker):
    """sampled=0 in the header: the default sampler goes by the parent. Another request shows when to look."""
    unsampled = TRACEPARENT[:-2] + "00"
    await site.http.post("/v1/completions", json=BODY, headers={"traceparent": unsampled})
    await generate(site.grpc, ("traceparent", unsampled))
    after = "00-" + "ab" * 16 + TRACEPARENT[35:]
    await site.http.post("/v1/completions", json=BODY, headers={"traceparent": after})

    await site.collector.named(COMPLETIONS, *ENGINE, trace_id="ab" * 16)
    assert site.collector.of(TRACE_ID) == []


async def test_a_caller_that_leaves_is_an_error_of_every_span():
    """Server and engine; each span ends once. An engine that is slow has not ended before it is told."""
    headers = {"traceparent": TRACEPARENT}
    body = BODY | {"max_tokens": 120, "stream": True}
    async with receiving() as collector, worker(collector, f"{ECHO}?itl_ms=100") as site:
        async with site.http.stream(
            "POST", "/v1/completions", json=body, headers=headers
        ) as answer:
            await anext(answer.aiter_lines())
        found = await collector.named(COMPLETIONS, *ENGINE, trace_id=TRACE_ID)
    assert found[COMPLETIONS].error == "the client went away"
    assert found["llm_request"].error == "aborted"
    names = [span.name for span in collector.of(TRACE_ID)]
    assert sorted(names) == sorted((COMPLETIONS, *ENGINE))


async def test_a_mistake_of_the_caller_is_no_error_of_the_server(site: Worker):
    """Its status says so; the engine never had the request."""
    body = BODY | {"max_tokens": 0.5}
    await site.http.post("/v1/completions", json=body, headers={"traceparent": TRACEPARENT})

    span = (await site.collector.named(COMPLETIONS, trace_id=TRACE_ID))[COMPLETIONS]
    assert span.attributes["http.response.status_code"] == 400
    assert span.error is None


def shown(start: str) -> list[str]:
    """The words of a command that docs/traces.md shows."""
    page = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith(start)]
    return shlex.split(line)


async def test_the_pages_commands_show_its_trace():
    """docs/traces.md. What an engine in a process of its own measured crosses to the server, which sends the last
    spans as it ends; its log has the trace's id.
    """
    async with receiving() as collector:
        _, _, *serve = (
            collector.address if word == "http://localhost:4317" else word
            for word in shown("weft serve")
        )

        def ask() -> list[dict]:
            with running(*serve, "--log-level", "debug") as server:
                curl = [
                    word.replace("http://localhost:8000", server.http) for word in shown("curl")
                ]
                curl[1:1] = ["--silent", "--fail"]
                subprocess.run(curl, check=True, capture_output=True, timeout=PATIENCE_S)
                server.send(signal.SIGTERM)
                status, log = server.wait()
                assert status == 0
                return [json.loads(line) for line in log.splitlines()]

        records = await asyncio.to_thread(ask)
        found = await collector.named(COMPLETIONS, *ENGINE, trace_id=TRACE_ID)

    assert found["llm_request"].attributes["gen_ai.latency.time_in_model_decode"] > 0
    of_request = [record for record in records if record.get("trace_id") == TRACE_ID]
    request_id = found[COMPLETIONS].attributes["gen_ai.request.id"]
    assert {record["request_id"] for record in of_request} == {request_id}


@pytest.mark.slow
async def test_all_that_weft_up_starts_is_one_trace():
    """From the header that Envoy was sent, through the real picker, to the engine of a real worker."""
    async with receiving() as collector:

        def ask() -> None:
            with up("--workers=1", "--otlp-traces-endpoint", collector.address) as stack:
                headers = {"traceparent": TRACEPARENT}
                url = f"http://{stack.address}/v1/completions"
                body = BODY | {"model": SMALL}
                assert httpx2.post(url, json=body, headers=headers, timeout=60).status_code == 200
                stack.process.send_signal(signal.SIGTERM)
                stack.process.wait(PATIENCE_S)

        await asyncio.to_thread(ask)
        names = ("gateway.request", "gateway.request_orchestration", COMPLETIONS, *ENGINE)
        found = await collector.named(*names, trace_id=TRACE_ID)

    assert found["gateway.request"].parent_id == CALLER
    assert found[COMPLETIONS].parent_id == found["gateway.request"].span_id
