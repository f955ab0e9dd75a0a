"""Flow control through a real Envoy: who waits is served later, or told why not, over HTTP and gRPC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx2
import pytest

from tests.busy import until
from tests.e2e.envoys import envoy
from tests.e2e.scenes import CHAT, split
from tests.e2e.workers import HttpWorker, grpc_worker, http_worker
from weft.cli.up.envoy import EnvoyPlan
from weft.epp.build import Picker, open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.server.options import ServerOptions
from weft.epp.server.server import PickerServer
from weft.pb.vllm_engine_pb2 import GenerateRequest, TokenizedInput
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: openai-parser}
- {type: vllmgrpc-parser}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  enableEviction: true
  defaultRequestTTL: 60s
  defaultPriorityBand: {maxRequests: 1}
dataLayer: {injectDefaults: false}
requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: vllmgrpc-parser}]}
"""
OBJECTIVES = """\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -1}
"""
GENERATE = GenerateRequest(tokenized=TokenizedInput(input_ids=[1, 2, 3]))


@dataclass(slots=True)
class Here:
    """A picker with flow control, and a worker that takes one request and answers when it may."""

    picker: Picker
    worker: HttpWorker
    client: httpx2.AsyncClient
    stub: VllmEngineStub

    def post(self, **headers: str) -> "asyncio.Task[httpx2.Response]":
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return asyncio.create_task(
            self.client.post("/v1/chat/completions", content=CHAT, headers=names)
        )

    async def fill(self, **headers: str) -> "asyncio.Task[httpx2.Response]":
        """The request that has the only place."""
        self.worker.may_answer.clear()
        task = self.post(**headers)
        await until(lambda: len(self.worker.seen) == 1)
        return task

    async def outcomes(self) -> dict[str, float]:
        """How many waits ended how."""
        lines = (await self.picker.metrics_text()).decode().splitlines()
        counts: dict[str, float] = {}
        for line in lines:
            if line.startswith("llm_d_epp_flow_control_requests_total{"):
                name = line.partition('outcome="')[2].partition('"')[0]
                counts[name] = counts.get(name, 0) + float(line.rpartition(" ")[2])
        return counts


@asynccontextmanager
async def flow_control(tmp_path: Path) -> AsyncIterator[Here]:
    (tmp_path / "objectives.yaml").write_text(OBJECTIVES)
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(http_worker("127.0.0.2"))
        engine = await stack.enter_async_context(grpc_worker("127.0.0.2"))
        endpoint = f"{worker.address},grpcPort={engine.port}"
        options = PickerOptions(config_text=CONFIG, endpoints=(endpoint,), objects=(tmp_path,))
        picker = await open_picker(options)
        stack.push_async_callback(picker.close)
        server = PickerServer(
            picker.director, picker.parsers, ServerOptions(grpc_port=0, grpc_health_port=0)
        )
        ports = await server.start()
        stack.push_async_callback(server.stop)
        plan = EnvoyPlan(
            picker=("127.0.0.1", ports.grpc), http_workers=[split(worker.address)],
            grpc_workers=[split(engine.address)],
            health_interval_s=0.1,
        )  # fmt: skip
        running = await stack.enter_async_context(envoy(plan))
        await running.wait_for_picker()
        client = await stack.enter_async_context(running.client())
        stub = await stack.enter_async_context(running.stub())
        yield Here(picker, worker, client, stub)


async def test_who_waits_is_served_and_who_cannot_is_told_when(tmp_path: Path):
    """One is served, one waits, the third is refused: 429 with Retry-After, RESOURCE_EXHAUSTED in gRPC."""
    async with flow_control(tmp_path) as here:
        first = await here.fill()
        second = here.post()
        flow = here.picker.director
        await until(lambda: flow.num_waiting == 1)
        refused = await here.post()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await here.stub.Generate(GENERATE).read()
        here.worker.may_answer.set()
        answers = [await first, await second]
        assert [each.status_code for each in answers] == [200, 200]
        assert await here.outcomes() == {"Dispatched": 2, "RejectedCapacity": 2}
    assert refused.status_code == 429
    assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert "the queue is full" in refused.json()["error"]["message"]
    error = caught.value
    metadata = dict(error.trailing_metadata() or ()) | dict(error.initial_metadata() or ())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert metadata["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    assert 1 <= int(metadata["retry-after"]) <= 60


async def test_a_wait_has_an_end_and_may_be_given_up(tmp_path: Path):
    """By the request's own TTL, over HTTP and gRPC; and when the client leaves, its place is free."""
    async with flow_control(tmp_path) as here:
        first = await here.fill()
        late = await here.post(x_llm_d_request_ttl_ms="50")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await here.stub.Generate(GENERATE, metadata=(("x-llm-d-request-ttl-ms", "50"),)).read()
        leaving = here.post()
        await until(lambda: here.picker.director.num_waiting == 1)
        leaving.cancel()
        await until(lambda: here.picker.director.num_waiting == 0)
        here.worker.may_answer.set()
        assert (await first).status_code == 200
        outcomes = await here.outcomes()
    assert (late.status_code, late.headers["x-llm-d-request-dropped-reason"]) == (
        429, "rejected-ttl-expired",
    )  # fmt: skip
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert outcomes == {"Dispatched": 1, "EvictedTTL": 2, "EvictedContextCancelled": 1}


async def test_a_sheddable_request_in_flight_is_ended_for_another(tmp_path: Path):
    """The client gets 429, the worker sees it leave, and the other has its place."""
    async with flow_control(tmp_path) as here:
        sheddable = await here.fill(x_llm_d_inference_objective="batch")
        other = here.post()
        evicted = await sheddable
        await until(lambda: len(here.worker.seen) == 2)
        here.worker.may_answer.set()
        answered = await other
        page = (await here.picker.metrics_text()).decode()
    assert (evicted.status_code, evicted.headers["x-llm-d-request-dropped-reason"]) == (
        429, "evicted",
    )  # fmt: skip
    assert "request evicted by flow control" in evicted.json()["error"]["message"]
    assert answered.status_code == 200
    assert (
        'flow_control_revocations_total{inference_pool="default",outcome="confirmed"} 1.0' in page
    )
    assert 'error_code="evicted"' in page
