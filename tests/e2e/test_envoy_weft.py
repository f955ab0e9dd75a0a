"""The whole of it: `weft epp` and Weft's own workers behind a real Envoy; the sample requests."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import httpx2
import psutil
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.busy import PATIENCE_S, until
from tests.cli.running import SMALL, WEFT, clean_environment, running
from tests.e2e.envoys import Running, envoy
from tests.e2e.scenes import CHAT, split
from tests.e2e.workers import HttpWorker, Seen, http_worker
from weft.cli.up.envoy import EnvoyPlan
from weft.cli.up.picker_config import PICKER_CONFIG
from weft.cli.up.up import Worker
from weft.epp.pool.engines import ENGINES, LoadReader
from weft.pb.vllm_engine_pb2 import (
    EmbedRequest,
    GenerateRequest,
    GetModelInfoRequest,
    TokenizedInput,
)

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
MODEL = "small"
POOL = ("--num-gpu-blocks-override=400",)


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
        async with asyncio.timeout(PATIENCE_S):
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
def both() -> Iterator[list[Worker]]:
    """Two real workers, each with its two addresses."""
    with worker() as first, worker() as second:
        yield [first, second]


@pytest.fixture(scope="module")
def workers(both: list[Worker]) -> list[str]:
    """The same, to be spoken to over gRPC alone."""
    return [each.grpc for each in both]


@contextmanager
def worker() -> Iterator[Worker]:
    """A Weft worker on one thread."""
    argv = (SMALL, f"--served-model-name={MODEL}", "--max-model-len=2048", *POOL)
    with running(*argv, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1") as server:
        yield Worker.from_banner(server.banner.splitlines())


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
            await gateway.wait_for_picker()
            yield picker, gateway


def sample(**fields: object) -> GenerateRequest:
    """A request as grpcurl's JSON has it."""
    body = {"text": "Hello", "sampling_params": {"max_tokens": 10, "ignore_eos": True}}
    return ParseDict(body | fields, GenerateRequest())


async def decision(picker: EppProcess, request_id: str) -> dict:
    """What the picker tells of a request."""
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
        url = f"{picker.metrics}/debug/decisions?request_id={request_id}"
        return (await client.get(url)).json()


async def test_the_sample_requests_work_as_written(workers: list[str]):
    """Whole, streamed, with headers as metadata, through Envoy to two Weft workers."""
    async with routed(workers) as (picker, gateway), gateway.stub() as stub:
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
    async with routed(workers) as (picker, gateway), gateway.stub() as stub:
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
    async with routed(workers) as (_, gateway), gateway.stub() as stub:
        info = await stub.GetModelInfo(GetModelInfoRequest())
        assert info.max_context_length == 2048


async def test_a_prefix_comes_back_to_its_worker(workers: list[str]):
    """The point of it all: the second turn goes where the first one's KV is."""
    async with routed(workers) as (picker, gateway), gateway.stub() as stub:
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
    async with routed(workers, "--explain-header") as (_, gateway), gateway.stub() as stub:
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
            async with (
                envoy(plan, is_patient=False) as gateway,
                gateway.client() as client,
            ):
                url = "/v1/chat/completions"
                assert (await client.post(url, content=CHAT)).status_code == 200
                psutil.Process(picker.process.pid).suspend()
                await gateway.wait_for("/clusters?filter=^picker$", b"failed_active_hc")
                frozen = [(await client.post(url, content=CHAT)).status_code for _ in range(4)]
                assert frozen == [200] * 4
                psutil.Process(picker.process.pid).resume()
                async with asyncio.timeout(PATIENCE_S):
                    headers = {"x-request-id": "thawed"}
                    while "endpoints" not in await decision(picker, "thawed"):
                        await client.post(url, content=CHAT, headers=headers)


async def test_sigterm_ends_the_picker_cleanly(workers: list[str]):
    """Requests go on being answered throughout: by the picker, then past it."""
    async with routed(workers, "--drain-timeout=5s") as (picker, gateway), gateway.stub() as stub:
        assert [answer async for answer in stub.Generate(sample())]
        picker.process.terminate()
        while picker.process.returncode is None:
            assert [answer async for answer in stub.Generate(sample())]
        assert picker.process.returncode == 0
        assert [answer async for answer in stub.Generate(sample())]


# ---- HTTP, on the same listener --------------------------------------------------------------------

TRACKED = """
- type: concurrency-detector
  parameters: {maxConcurrency: 1}
saturationDetector: {pluginRef: concurrency-detector}
"""


@asynccontextmanager
async def served(
    both: list[Worker],
    *argv: str,
    config: str = PICKER_CONFIG,
    is_known: bool = True,
    **plan: object,
) -> AsyncIterator[tuple[EppProcess, Running, httpx2.AsyncClient]]:
    """The workers, known to a picker or not, behind it behind an Envoy, as `weft up` joins them."""
    endpoints = [f"--endpoint={each.endpoint}" for each in both if is_known]
    engine = "--default-engine=vllm-grpc"
    async with epp("--config-text", config, engine, *endpoints, *argv) as picker:
        made = EnvoyPlan(
            picker=picker.address,
            grpc_workers=[split(each.grpc) for each in both],
            http_workers=[split(each.http or "") for each in both],
            health_interval_s=QUICK,
            **plan,
        )
        async with envoy(made) as gateway:
            await gateway.wait_for_picker()
            async with gateway.client() as client:
                yield picker, gateway, client


def completion(**fields: object) -> dict:
    """A body for /v1/completions."""
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 5, "ignore_eos": True}
    return body | fields


async def asked(gateway: Running) -> dict[str, int]:
    """Requests that Envoy sent to each worker over HTTP; those of health checks do not count."""
    page = (await gateway.get("/clusters?filter=^workers_http$")).decode()
    lines = [line.split("::") for line in page.splitlines()]
    return {line[1]: int(line[3]) for line in lines if len(line) == 4 and line[2] == "rq_total"}


async def test_http_reaches_the_chosen_worker(both: list[Worker]):
    """Whole and streamed, a GET beside them, and gRPC through the same port."""
    async with served(both) as (picker, gateway, client), gateway.stub() as stub:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert model["id"] == MODEL
        before = await asked(gateway)
        whole = await client.post(
            "/v1/completions", json=completion(), headers={"x-request-id": "h-1"}
        )
        assert whole.json()["usage"]["completion_tokens"] == 5
        (chosen,) = (await decision(picker, "h-1"))["endpoints"]
        after = await asked(gateway)
        assert after[chosen] - before[chosen] == 1
        assert chosen in {each.http for each in both}

        streamed = await client.post("/v1/completions", json=completion(stream=True))
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert [answer async for answer in stub.Generate(sample())]


async def test_http_2_takes_the_same_way(both: list[Worker]):
    """Without TLS, by prior knowledge."""
    async with served(both) as (_, gateway, _client):
        curl = await asyncio.create_subprocess_exec(
            "curl", "--silent", "--http2-prior-knowledge", "--write-out", " %{http_version}",
            "--json", json.dumps(completion()), f"http://127.0.0.1:{gateway.port}/v1/completions",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await curl.communicate()
    body, version = out.decode().rsplit(" ", 1)
    assert (version, json.loads(body)["usage"]["completion_tokens"]) == ("2", 5)


async def test_a_prefix_comes_back_to_its_worker_over_http(both: list[Worker]):
    """A conversation stays where its beginning is cached, and finds it."""
    async with served(both) as (_, _gateway, client):
        start = "You are a helpful assistant. " * 60
        cached = []
        for turn in range(5):
            body = completion(prompt=f"{start} {turn}", max_tokens=1)
            usage = (await client.post("/v1/completions", json=body)).json()["usage"]
            cached.append(usage.get("prompt_tokens_details", {}).get("cached_tokens", 0))
    assert all(count >= 512 for count in cached[1:])


async def test_300_kb_arrive_whole_at_a_real_worker(both: list[Worker]):
    """In one piece or chunked; JSON may be as airy as it likes."""
    body = json.dumps(completion()).replace("{", "{" + " " * 300_000, 1).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    headers = {"content-type": "application/json"}
    async with served(both) as (_, _gateway, client):
        for content in (body, pieces()):
            answer = await client.post("/v1/completions", content=content, headers=headers)
            assert answer.json()["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(("is_fail_open", "status"), [(True, 200), (False, 500)])
async def test_without_its_picker_http_goes_on_or_fails(
    both: list[Worker], is_fail_open: bool, status: int
):
    """As the flag says; in turn, and never where a client wishes."""
    async with served(both, is_fail_open=is_fail_open) as (picker, gateway, client):
        picker.process.kill()
        await gateway.wait_for("/clusters?filter=^picker$", b"failed_active_hc")
        wish = {"x-gateway-destination-endpoint": both[0].http or ""}
        answers = [
            await client.post("/v1/completions", json=completion(), headers=wish) for _ in range(6)
        ]
        assert {answer.status_code for answer in answers} == {status}
        used = [count for count in (await asked(gateway)).values() if count]
        assert used == ([3, 3] if is_fail_open else [])


async def test_a_client_cannot_choose_a_real_worker(both: list[Worker]):
    """Its wish ends at Envoy; the picker's word counts, over HTTP and over gRPC."""
    async with served(both) as (picker, gateway, client), gateway.stub() as stub:
        for number, wished in enumerate((each.http or "") for each in both):
            headers = {"x-gateway-destination-endpoint": wished, "x-request-id": f"w-{number}"}
            await client.post("/v1/completions", json=completion(), headers=headers)
        chosen = [(await decision(picker, f"w-{number}"))["endpoints"][0] for number in (0, 1)]
        assert {name: chosen.count(name) for name in chosen} == {
            name: count for name, count in (await asked(gateway)).items() if count
        }
        wish = (("x-gateway-destination-endpoint", "127.0.0.1:1"),)
        assert [answer async for answer in stub.Generate(sample(), metadata=wish)]


async def test_sheddable_requests_are_shed_when_all_is_full(tmp_path: Path):
    """429 over HTTP, RESOURCE_EXHAUSTED over gRPC; others wait at their worker."""
    (tmp_path / "objects.yaml").write_text(
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: batch}\n"
        "spec: {priority: -1}\n"
    )
    config = PICKER_CONFIG.replace("schedulingProfiles:", f"{TRACKED[1:]}schedulingProfiles:")
    batch = {"x-llm-d-inference-objective": "batch"}
    async with http_worker("127.0.0.2") as first, http_worker("127.0.0.3") as second:
        full = [Worker(each.address, "127.0.0.1:1") for each in (first, second)]
        first.may_answer.clear()
        second.may_answer.clear()
        objects = f"--objects={tmp_path}"
        async with (
            served(full, objects, config=config) as (_, gateway, client),
            gateway.stub() as stub,
            asyncio.TaskGroup() as group,
        ):
            bodies = [completion(prompt=prompt) for prompt in ("one", "two")]  # no shared prefix
            posts = [client.post("/v1/completions", json=body) for body in bodies]
            held = [group.create_task(post) for post in posts]
            await until(lambda: len(inferences(first)) == len(inferences(second)) == 1)
            shed = await client.post("/v1/completions", json=completion(), headers=batch)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(sample(), metadata=tuple(batch.items())).read()
            first.may_answer.set()
            second.may_answer.set()
        assert [task.result().status_code for task in held] == [200, 200]
    assert shed.status_code == 429
    assert "is sheddable" in shed.text
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def inferences(worker: HttpWorker) -> list[Seen]:
    """What it was asked beside its health."""
    return [seen for seen in worker.seen if seen.path.startswith("/v1/")]


async def test_nobody_to_send_to_is_503():
    """UNAVAILABLE over gRPC; both say why."""
    nobody = [Worker("127.0.0.1:1", "127.0.0.1:1")]
    async with (
        served(nobody, is_known=False) as (_, gateway, client),
        gateway.stub() as stub,
    ):
        refused = await client.post("/v1/completions", json=completion())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(sample()).read()
    assert refused.status_code == 503
    assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_usage_of_real_event_streams_is_counted(both: list[Worker]):
    """Tokens, first token and duration, as the series tell them; a whole answer counts too."""
    async with served(both, "--track-responses") as (picker, _gateway, client):
        options = {"stream": True, "stream_options": {"include_usage": True}}
        await client.post("/v1/completions", json=completion(max_tokens=20, **options))
        await client.post("/v1/completions", json=completion(max_tokens=7))
        page = (await client.get(f"{picker.metrics}/metrics")).text
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    labels = (
        f'fairness_id="default-flow",model_name="{MODEL}",priority="0",target_model_name="{MODEL}"'
    )
    assert float(lines[f"llm_d_epp_request_output_tokens_sum{{{labels}}}"]) == 27
    assert float(lines[f"llm_d_epp_request_duration_seconds_count{{{labels}}}"]) == 2
    assert float(lines[f"llm_d_epp_request_running{{{labels}}}"]) == 0


async def test_load_is_read_from_a_workers_metrics_page_too(both: list[Worker]):
    """As from any vLLM: nothing is stale, and nothing that was expected is missing."""
    endpoints = [f"--endpoint={each.http}" for each in both]
    async with (
        epp("--refresh-metrics-interval=100ms", *endpoints) as picker,
        httpx2.AsyncClient(timeout=PATIENCE_S) as client,
    ):

        async def page() -> str:
            return (await client.get(f"{picker.metrics}/metrics")).text

        stale = 'llm_d_epp_flow_control_stale_endpoints{detector="utilization-detector"} '
        async with asyncio.timeout(PATIENCE_S):
            while f"{stale}0.0" not in await page():  # noqa: ASYNC110 - another process's work
                await asyncio.sleep(0.05)
        assert "datalayer_extract_errors_total{" not in await page()


async def test_what_a_worker_tells_is_understood(both: list[Worker]):
    """The sizes of its cache, from which the picker's own index takes its bounds."""
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
        text = (await client.get(f"http://{both[0].http}/metrics")).text
    load = LoadReader(ENGINES["vllm"]).read(text)
    assert load is not None
    assert (load.block_size, load.num_blocks) == (16, 400)
