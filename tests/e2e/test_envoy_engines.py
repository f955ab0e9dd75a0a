"""gRPC calls of SGLang and TensorRT-LLM, through Envoy and a picker: prompts go where their prefix is cached."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from tests.busy import PATIENCE_S, until
from tests.e2e.envoys import envoy
from tests.e2e.scenes import split
from weft.cli.up.envoy import EnvoyPlan
from weft.epp.build import Picker, open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.server.options import ServerOptions
from weft.epp.server.server import PickerServer
from weft.pb import common_pb2, sglang_scheduler_pb2, trtllm_service_pb2
from weft.pb.sglang_scheduler_pb2_grpc import (
    SglangSchedulerServicer,
    SglangSchedulerStub,
    add_SglangSchedulerServicer_to_server,
)
from weft.pb.trtllm_service_pb2_grpc import (
    TrtllmServiceServicer,
    TrtllmServiceStub,
    add_TrtllmServiceServicer_to_server,
)

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {{type: {parser}}}
- {{type: {producer}, name: prefixes, parameters: {parameters}}}
- {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: prefixes}}}}
requestHandler: {{parsers: [{{pluginRef: {parser}}}]}}
"""
USAGE = {"prompt_tokens": 256, "completion_tokens": 2, "cached_tokens": 4}
PROMPT = list(range(1000, 1256))


class SglangWorker(SglangSchedulerServicer):
    """Answers with two tokens, and publishes that it has cached its own prompt."""

    def __init__(self, cached: list[int]) -> None:
        self.num_requests = 0
        self._cached = cached

    async def Generate(self, request, context):  # noqa: N802
        """Two tokens."""
        self.num_requests += 1
        chunk = {"token_ids": [1], **USAGE, "completion_tokens": 1}
        yield sglang_scheduler_pb2.GenerateResponse(chunk=chunk)
        yield sglang_scheduler_pb2.GenerateResponse(complete={"output_ids": [1, 2], **USAGE})

    async def GetModelInfo(self, request, context):  # noqa: N802
        """A model without a name."""
        return sglang_scheduler_pb2.GetModelInfoResponse(model_path="m")

    async def GetLoads(self, request, context):  # noqa: N802
        """Two ranks."""
        rank = {"num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.5}
        return sglang_scheduler_pb2.GetLoadsResponse(loads=[rank, rank])

    async def SubscribeKvEvents(self, request, context):  # noqa: N802
        """The blocks of the prompt, and nothing more."""
        blocks = [
            {
                "block_hash": start + 1,
                "token_ids": self._cached[start : start + 16],
                "block_size": 16,
            }
            for start in range(0, len(self._cached), 16)
        ]
        event = {"stored": {"blocks": blocks}}
        yield common_pb2.KvEventBatch(sequence_number=1, events=[event])
        await asyncio.Event().wait()


class TrtllmWorker(TrtllmServiceServicer):
    """Answers with two tokens."""

    def __init__(self) -> None:
        self.num_requests = 0

    async def Generate(self, request, context):  # noqa: N802
        """Two tokens."""
        self.num_requests += 1
        yield trtllm_service_pb2.GenerateResponse(complete={"output_token_ids": [1, 2], **USAGE})


@asynccontextmanager
async def serving(host: str, add: Any, worker: Any) -> AsyncIterator[str]:
    """The address of a server of the worker's calls, with gRPC's health service."""
    server = grpc.aio.server()
    add(worker, server)
    health = health_aio.HealthServicer()
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop(0)


@dataclass(slots=True)
class Here:
    """A picker of two workers, and a channel through Envoy."""

    picker: Picker
    channel: grpc.aio.Channel

    async def num_output_tokens(self) -> float:
        """Number of generated tokens in `/metrics`."""
        lines = (await self.picker.metrics_text()).decode().splitlines()
        series = "llm_d_epp_request_output_tokens_sum{"
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))

    async def until_counted(self, num_tokens: int) -> None:
        """Waits until the usage of all responses has been read."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.num_output_tokens() != num_tokens:  # noqa: ASYNC110 - asked, not told
                await asyncio.sleep(0.02)


@asynccontextmanager
async def behind_envoy(
    config: str, add: Any, workers: list[Any], **options: Any
) -> AsyncIterator[Here]:
    async with AsyncExitStack() as stack:
        addresses = [
            await stack.enter_async_context(serving(f"127.0.0.{number}", add, worker))
            for number, worker in enumerate(workers, 2)
        ]
        picker = await open_picker(PickerOptions(
            config_text=config, endpoints=tuple(addresses), track_responses=True,
            refresh_metrics_interval_s=0.05, **options,
        ))  # fmt: skip
        stack.push_async_callback(picker.close)
        server = PickerServer(
            picker.director, picker.parsers, ServerOptions(grpc_port=0, grpc_health_port=0)
        )
        ports = await server.start()
        stack.push_async_callback(server.stop)
        plan = EnvoyPlan(
            picker=("127.0.0.1", ports.grpc), grpc_workers=[split(each) for each in addresses],
            health_interval_s=0.1,
        )  # fmt: skip
        running = await stack.enter_async_context(envoy(plan))
        await running.wait_for_picker()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{running.port}")
        yield Here(picker, await stack.enter_async_context(channel))


async def test_sglang_requests_go_where_the_engine_says_that_their_prefix_is_cached():
    """The picker reads load and prefix-cache events over SGLang's protocol, and the usage of its responses."""
    config = CONFIG.format(
        parser="sglanggrpc-parser", producer="precise-prefix-cache-producer",
        parameters="{tokenProcessorConfig: {blockSizeTokens: 16}}",
    )  # fmt: skip
    others = [token + 5000 for token in PROMPT]
    workers = [SglangWorker(others), SglangWorker(PROMPT)]
    add = add_SglangSchedulerServicer_to_server
    async with behind_envoy(config, add, workers, default_engine="sglang-grpc") as here:
        index = here.picker.assembly.plugins["prefixes"].index
        await until(lambda: all(index.num_blocks(each) == 16 for each in here.picker.pool))
        await until(lambda: all(each.load.num_running == 4 for each in here.picker.pool))
        stub = SglangSchedulerStub(here.channel)
        request = sglang_scheduler_pb2.GenerateRequest(tokenized={"input_ids": PROMPT}, stream=True)
        for _ in range(4):
            answers = [answer async for answer in stub.Generate(request)]
            assert list(answers[-1].complete.output_ids) == [1, 2]
        assert [worker.num_requests for worker in workers] == [0, 4]
        await here.until_counted(8)


async def test_trtllm_requests_go_where_the_same_prefix_went():
    """The picker remembers prompts, and reads the usage of responses."""
    config = CONFIG.format(
        parser="trtllmgrpc-parser", producer="approx-prefix-cache-producer", parameters="{}"
    )
    workers = [TrtllmWorker(), TrtllmWorker()]
    async with behind_envoy(config, add_TrtllmServiceServicer_to_server, workers) as here:
        stub = TrtllmServiceStub(here.channel)
        tokenized = {"input_token_ids": PROMPT}
        request = trtllm_service_pb2.GenerateRequest(tokenized=tokenized, max_tokens=2)
        for _ in range(4):
            (answer,) = [answer async for answer in stub.Generate(request)]
            assert list(answer.complete.output_token_ids) == [1, 2]
        assert sorted(worker.num_requests for worker in workers) == [0, 4]
        await here.until_counted(8)
