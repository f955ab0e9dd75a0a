"""gRPC through a real Envoy: calls arrive where the picker says, statuses come back as gRPC's own."""

import asyncio

import grpc
import pytest

from tests.busy import PATIENCE_S, until
from tests.e2e.scenes import scene
from weft.cli.up.envoy import EnvoyPlan
from weft.core.values.prompts import pack_tokens
from weft.epp.decision.tickets import Ending
from weft.epp.plugins.producers.tokens import pack
from weft.epp.request.values import Drop, Refused, Usage
from weft.pb.vllm_engine_pb2 import (
    EmbedRequest,
    GenerateRequest,
    GetModelInfoRequest,
    TokenizedInput,
)

pytestmark = pytest.mark.usefixtures("body_mode")
FOLLOWED = pytest.mark.parametrize("is_followed", [False, True], ids=["left", "followed"])
QUICK = 0.1
EMBED = EmbedRequest(tokenized=TokenizedInput(input_ids=[1]))


def generate(size: int = 3, *, stream: bool = False) -> GenerateRequest:
    ids = TokenizedInput(input_ids=[1000] * size)
    return GenerateRequest(request_id="r", tokenized=ids, stream=stream)


@FOLLOWED
async def test_calls_reach_the_chosen_worker(is_followed: bool):
    """Generate, streamed or not, and Embed."""
    async with scene(tracks_response=is_followed) as here:
        chosen = here.grpc[1].port
        whole = [answer async for answer in here.stub.Generate(generate())]
        assert list(whole[0].complete.output_ids) == [chosen] * 5
        parts = [answer async for answer in here.stub.Generate(generate(stream=True))]
        assert [list(part.chunk.token_ids) for part in parts[:-1]] == [[chosen]] * 5
        embedded = await here.stub.Embed(EmbedRequest(tokenized=TokenizedInput(input_ids=[1, 2])))
        assert (embedded.embedding[0], embedded.prompt_tokens) == (chosen, 2)
        assert here.grpc[0].requests == []
        await until(lambda: len(here.director.endings) == 3 * is_followed)


async def test_a_followed_call_tells_its_usage():
    """Prompt, completion and cached tokens, counted once."""
    async with scene(tracks_response=True) as here:
        assert [answer async for answer in here.stub.Generate(generate(stream=True))]
        await until(lambda: len(here.director.endings) == 1)
    assert here.director.usages == [
        Usage(num_prompt_tokens=10, num_completion_tokens=5, num_cached_tokens=4)
    ]
    assert here.director.num_first_tokens == 1


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
async def test_large_prompts_arrive_whole(is_packed: bool):
    """300 kB of token ids, compressed or not, and the picker has read them."""
    packing = grpc.Compression.Gzip if is_packed else None
    async with scene(tracks_response=True) as here:
        request = generate(150_000)
        assert request.ByteSize() > 300_000
        call = here.stub.Generate(request, compression=packing)
        assert [answer async for answer in call]
        assert here.grpc[1].requests == [request]
        prompt = here.director.requests[0].prompts[0]
        assert pack(prompt) == pack_tokens((1000,) * 150_000)
        await until(lambda: here.director.usages)
        assert here.director.usages[0].num_completion_tokens == 5


async def test_no_answer_is_lost_when_workers_are_quick():
    """As over HTTP."""
    async with scene() as here:
        gate = asyncio.Semaphore(8)

        async def one() -> float:
            async with gate:
                return (await here.stub.Embed(EMBED, timeout=PATIENCE_S)).embedding[0]

        assert set(await asyncio.gather(*(one() for _ in range(300)))) == {here.grpc[1].port}


async def test_other_calls_are_routed_without_scheduling():
    """Any worker of the pool; nothing is parsed."""
    async with scene() as here:
        here.director.endpoints = (here.grpc[0].address,)
        answer = await here.stub.GetModelInfo(GetModelInfoRequest())
        assert answer.model_path == str(here.grpc[0].port)
        assert here.director.requests == []


async def test_a_client_cannot_choose_its_worker():
    """Not with the picker, not past it, not without it."""
    async with scene() as here:
        wish = (("x-gateway-destination-endpoint", here.grpc[0].address),)
        with_picker = {(await here.stub.Embed(EMBED, metadata=wish)).embedding[0] for _ in range(4)}
        assert with_picker == {here.grpc[1].port}
        await here.kill_picker()
        without = {(await here.stub.Embed(EMBED, metadata=wish)).embedding[0] for _ in range(6)}
        assert without == {worker.port for worker in here.grpc}


async def test_metadata_steers_the_picker_and_ends_there():
    """Headers of HTTP are metadata of gRPC."""
    async with scene() as here:
        metadata = (("x-llm-d-inference-objective", "my-objective"), ("x-other", "kept"))
        assert [answer async for answer in here.stub.Generate(generate(), metadata=metadata)]
        seen = here.director.requests[0].headers
        assert seen["x-llm-d-inference-objective"] == "my-objective"
        assert "x-llm-d-inference-objective" not in here.grpc[1].metadata[0]
        assert here.grpc[1].metadata[0]["x-other"] == "kept"


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        (429, Drop.SATURATED, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (503, Drop.NO_ENDPOINTS, grpc.StatusCode.UNAVAILABLE),
        (500, None, grpc.StatusCode.INTERNAL),
    ],
)
async def test_refusals_are_grpc_statuses(status: int, reason: Drop | None, code: grpc.StatusCode):
    """With the sentence as message and the reason in the trailing metadata."""
    async with scene() as here:
        here.director.refusal = Refused(status, "because", reason)
        call = here.stub.Generate(generate())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is code
        assert "because" in (caught.value.details() or "")
        trailing = dict(caught.value.trailing_metadata()) | dict(caught.value.initial_metadata())
        assert trailing.get("x-llm-d-request-dropped-reason") == reason


async def test_a_malformed_request_is_an_invalid_argument():
    """Not INTERNAL, which a gateway makes of a 400."""
    async with scene() as here:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await here.stub.Embed(EmbedRequest(request_id="r"))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "EmbedRequest with tokenized" in (caught.value.details() or "")


async def test_a_dead_worker_is_replaced():
    """Its connection is refused, nothing was sent: another one answers."""
    async with scene(EnvoyPlan(health_interval_s=5.0)) as here:
        here.director.choose = None
        here.director.endpoints = ("127.0.0.3:1",)
        assert [answer async for answer in here.stub.Generate(generate(), timeout=PATIENCE_S)]


async def test_fail_open_serves_without_a_picker():
    """Round robin over the workers."""
    async with scene() as here:
        await here.kill_picker()
        ports = [(await here.stub.Embed(EMBED)).embedding[0] for _ in range(30)]
        assert set(ports) == {worker.port for worker in here.grpc}


async def test_fail_close_refuses_without_a_picker():
    """No worker sees anything."""
    async with scene(EnvoyPlan(health_interval_s=QUICK, is_fail_open=False)) as here:
        await here.kill_picker()
        with pytest.raises(grpc.aio.AioRpcError):
            await here.stub.Embed(EMBED)
        assert here.grpc[0].requests == here.grpc[1].requests == []


async def test_a_cancelled_call_is_reported_and_ends_in_the_worker():
    """Both must free what it held."""
    async with scene(tracks_response=True) as here:
        here.grpc[1].num_tokens, here.grpc[1].delay_s = 1000, 0.01
        call = here.stub.Generate(generate(stream=True))
        await call.read()
        call.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await here.grpc[1].was_cancelled.wait()
        await until(lambda: here.director.endings == [Ending.DISCONNECTED])
        await until(lambda: here.server.num_streams == 0)


async def test_a_deadline_that_passes_while_the_picker_thinks():
    """The call ends in time, and the picker forgets it."""
    async with scene() as here:
        here.director.delay_s = PATIENCE_S
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await here.stub.Embed(EMBED, timeout=0.5)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: here.server.num_streams == 0)
