"""The whole of it: `weft epp` and Weft's own workers behind a real Envoy; the sample requests."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import grpc
import httpx2
import psutil
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.cli.running import SMALL, WEFT, clean_environment, running
from tests.e2e.envoys import Running, envoy
from tests.e2e.scenes import CHAT, split
from tests.e2e.workers import http_worker
from weft.cli.up_envoy import EnvoyPlan
from weft.pb.vllm_engine_pb2 import (
    EmbedRequest,
    GenerateRequest,
    GetModelInfoRequest,
    TokenizedInput,
)
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

# The reference's sample, whole: the profile it leaves out is the usual one.
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- name: maxScore
  type: max-score-picker
- name: vllmgrpcParser
  type: vllmgrpc-parser
- type: queue-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - pluginRef: maxScore
requestHandler:
  parsers:
  - pluginRef: vllmgrpcParser
"""
QUICK = 0.1


class EppProcess:
    """A running `weft epp`."""

    def __init__(self, process: "asyncio.subprocess.Process", lines: list[str]) -> None:
        self.process = process
        words = {line.split()[0]: line.split()[1] for line in lines if line.startswith("  ")}
        self.address = split(words["ext_proc"])
        self.metrics = words["metrics"].removesuffix("/metrics")


@asynccontextmanager
async def epp(*argv: str) -> AsyncIterator[EppProcess]:
    """`weft epp ARGV` on free ports."""
    ports = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")
    process = await asyncio.create_subprocess_exec(
        *WEFT, "epp", *ports, *argv, stdout=asyncio.subprocess.PIPE, env=clean_environment()
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(30):
            while not (lines and lines[-1].startswith("  metrics")):
                line = (await process.stdout.readline()).decode()
                assert line, "the picker did not start"
                lines.append(line)
        yield EppProcess(process, lines)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    """Two real workers."""
    with worker() as first, worker() as second:
        yield [first, second]


@contextmanager
def worker() -> Iterator[str]:
    """A Weft worker on one thread."""
    argv = (SMALL, "--max-model-len=2048", "--num-gpu-blocks-override=400")
    with running(*argv, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1") as server:
        yield server.address


@asynccontextmanager
async def routed(workers: list[str], *argv: str) -> AsyncIterator[tuple[EppProcess, Running]]:
    """The workers behind a picker behind an Envoy."""
    endpoints = [f"--endpoint={address}" for address in workers]
    engine = "--default-engine=vllm-grpc"
    async with epp("--config-text", CONFIG, engine, *endpoints, *argv) as picker:
        plan = EnvoyPlan(
            picker=picker.address,
            grpc_workers=[split(address) for address in workers],
            health_interval_s=QUICK,
        )
        async with envoy(plan) as gateway:
            yield picker, gateway


@asynccontextmanager
async def stub_of(gateway: Running) -> AsyncIterator[VllmEngineStub]:
    """The generated client."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        yield VllmEngineStub(channel)


def sample(**fields: object) -> GenerateRequest:
    """A request as grpcurl's JSON has it."""
    body = {"text": "Hello", "sampling_params": {"max_tokens": 10, "ignore_eos": True}}
    return ParseDict(body | fields, GenerateRequest())


async def decision(picker: EppProcess, request_id: str) -> dict:
    """What the picker tells of a request."""
    async with httpx2.AsyncClient() as client:
        url = f"{picker.metrics}/debug/decisions?request_id={request_id}"
        return (await client.get(url)).json()


async def test_the_sample_requests_work_as_written(workers: list[str]):
    """Whole, streamed, with headers as metadata, through Envoy to two Weft workers."""
    async with routed(workers) as (picker, gateway), stub_of(gateway) as stub:
        whole = [answer async for answer in stub.Generate(sample(request_id="req-1"))]
        told = MessageToDict(whole[0])["complete"]
        assert (told["finishReason"], told["completionTokens"]) == ("length", 10)
        assert len(told["outputIds"]) == 10

        streamed = [x async for x in stub.Generate(sample(request_id="req-2", stream=True))]
        kinds = [answer.WhichOneof("response") for answer in streamed]
        assert kinds[-1] == "complete"
        assert sum(len(answer.chunk.token_ids) for answer in streamed) == 10

        metadata = (
            ("x-llm-d-inference-objective", "my-objective"),
            ("x-llm-d-inference-fairness-id", "tenant-a"),
            ("x-request-id", "req-4"),
        )
        call = stub.Generate(sample(request_id="req-4"), metadata=metadata)
        assert [answer async for answer in call]
        record = await decision(picker, "req-4")
        assert record["status"] == 200
        assert record["endpoints"][0] in workers
        assert len(record["profiles"][0]["candidates"]) == 2
        scorers = [scorer["name"] for scorer in record["profiles"][0]["scorers"]]
        assert scorers == ["queue-scorer", "prefix-cache-scorer"]


async def test_embed_reaches_a_worker(workers: list[str]):
    """A worker without an embedding model says so itself: the call went through."""
    async with routed(workers) as (picker, gateway), stub_of(gateway) as stub:
        tokenized = TokenizedInput(original_text="Hello", input_ids=[99])
        request = EmbedRequest(request_id="req-3", tokenized=tokenized)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Embed(request, metadata=(("x-request-id", "req-3"),))
        assert caught.value.code() in {
            grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.INVALID_ARGUMENT,
        }  # fmt: skip
        assert (await decision(picker, "req-3"))["status"] == 200


async def test_other_calls_reach_a_worker(workers: list[str]):
    """The reference answers these with 400."""
    async with routed(workers) as (_, gateway), stub_of(gateway) as stub:
        info = await stub.GetModelInfo(GetModelInfoRequest())
        assert info.max_context_length == 2048


async def test_a_prefix_comes_back_to_its_worker(workers: list[str]):
    """The point of it all: the second turn goes where the first one's KV is."""
    async with routed(workers) as (picker, gateway), stub_of(gateway) as stub:
        chosen = []
        for turn in range(6):
            ids = [7] * 512 + [turn]
            request = GenerateRequest(tokenized=TokenizedInput(input_ids=ids))
            request.sampling_params.max_tokens = 1
            metadata = (("x-request-id", f"turn-{turn}"),)
            answers = [answer async for answer in stub.Generate(request, metadata=metadata)]
            chosen.append((await decision(picker, f"turn-{turn}"))["endpoints"])
        assert len({tuple(one) for one in chosen}) == 1
        assert answers[-1].complete.cached_tokens == 512


async def test_reasons_come_back_in_a_header_by_flag(workers: list[str]):
    """For whoever debugs from the client's side."""
    async with routed(workers, "--explain-header") as (_, gateway), stub_of(gateway) as stub:
        call = stub.Generate(sample())
        assert [answer async for answer in call]
        told = json.loads(dict(await call.initial_metadata())["x-weft-decision"])
        assert told["picked"][0] in workers
        assert told["profiles"]["default"]["candidates"] == 2


async def test_a_frozen_picker_is_passed_by_and_comes_back():
    """Health checks notice; what it held is let go; when it thaws it decides again."""
    async with http_worker("127.0.0.2") as first, http_worker("127.0.0.3") as second:
        addresses = [first.address, second.address]
        endpoints = [f"--endpoint={address}" for address in addresses]
        async with epp(*endpoints) as picker:
            plan = EnvoyPlan(
                picker=picker.address,
                grpc_workers=[("127.0.0.1", 1)],
                http_workers=[split(address) for address in addresses],
                health_interval_s=QUICK,
            )
            async with envoy(plan) as gateway, httpx2.AsyncClient(timeout=20) as client:
                url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
                assert (await client.post(url, content=CHAT)).status_code == 200
                psutil.Process(picker.process.pid).suspend()
                await gateway.wait_for("/clusters?filter=^picker$", b"failed_active_hc")
                frozen = [(await client.post(url, content=CHAT)).status_code for _ in range(4)]
                assert frozen == [200] * 4
                psutil.Process(picker.process.pid).resume()
                async with asyncio.timeout(20):
                    headers = {"x-request-id": "thawed"}
                    while "endpoints" not in await decision(picker, "thawed"):
                        await client.post(url, content=CHAT, headers=headers)


async def test_sigterm_ends_the_picker_cleanly(workers: list[str]):
    """Requests go on being answered throughout: by the picker, then past it."""
    async with routed(workers, "--drain-timeout=5s") as (picker, gateway), stub_of(gateway) as stub:
        assert [answer async for answer in stub.Generate(sample())]
        picker.process.terminate()
        while picker.process.returncode is None:
            assert [answer async for answer in stub.Generate(sample())]
        assert picker.process.returncode == 0
        assert [answer async for answer in stub.Generate(sample())]
