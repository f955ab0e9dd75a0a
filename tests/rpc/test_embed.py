"""Embed over gRPC, in front of a real small engine."""

import grpc
import msgspec
import pytest

from tests.busy import until
from tests.contract.engines import local
from tests.doubles.stepping import make_request
from tests.rpc.calls import channel_to, refusal
from weft.core.errors import BadRequest
from weft.core.values.types import PoolingParams
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.convert.embed import to_embed_input, to_embed_request


@pytest.fixture
async def engine():
    """An engine that pools."""
    async with local(runner="pooling") as client:
        yield client


@pytest.fixture
async def stub(engine):
    """The generated client of a server over it."""
    async with channel_to(engine) as channel:
        yield VllmEngineStub(channel)


def message(*ids, request_id="e"):
    return pb.EmbedRequest(request_id=request_id, tokenized=pb.TokenizedInput(input_ids=ids))


async def test_the_answer_is_the_engines_own(engine, stub):
    """Every number, the counts, and nothing left in the engine."""
    answer = await stub.Embed(message(5, 6, 7))
    outputs = engine.encode([5, 6, 7], PoolingParams(task="embed"), "own")
    expected = [output async for output in outputs]
    assert list(answer.embedding) == expected[0].data
    assert (answer.prompt_tokens, answer.embedding_dim) == (3, 32)
    assert engine.num_active_requests == 0


async def test_the_model_says_that_it_does_not_generate(stub):
    """Gateways route by it; a prompt may fill the whole context."""
    info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (info.is_generation, info.max_req_input_len) == (False, info.max_context_length)
    stream = stub.Generate(pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[5])))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stream:
            pass
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (pb.EmbedRequest(request_id="e"), "tokenized is missing"),
        (message(), "the prompt is empty"),
        (message(400), "must be in the vocabulary"),
        (message(*[7] * 257), "maximum context length is 256"),
        (message(5, request_id="x" * 300), "request_id"),
    ],
)
async def test_bad_requests_are_refused_by_name(stub, request_, words):
    """INVALID_ARGUMENT, and the next one is answered."""
    status, detail = await refusal(stub.Embed(request_))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert words in detail
    assert (await stub.Embed(message(5))).embedding_dim == 32


async def test_one_id_is_in_use_once(engine, stub):
    """A second request of the same id is refused while the first is in flight."""
    await engine.pause_generation()
    first = stub.Embed(message(5))
    await until(lambda: engine.num_active_requests == 1)
    status, _ = await refusal(stub.Embed(message(6)))
    assert status is grpc.StatusCode.ALREADY_EXISTS
    await engine.resume_generation()
    assert (await first).prompt_tokens == 1


async def test_a_caller_who_leaves_ends_the_request(engine, stub):
    """Cancelled while it waits: the engine forgets it. An abort by id answers without numbers."""
    await engine.pause_generation()
    gone, aborted = stub.Embed(message(5)), stub.Embed(message(6, request_id="a"))
    await until(lambda: engine.num_active_requests == 2)
    gone.cancel()
    await stub.Abort(pb.AbortRequest(request_ids=["a"]))
    assert (await aborted).embedding_dim == 0
    await until(lambda: engine.num_active_requests == 0)
    await engine.resume_generation()


async def test_a_deadline_ends_the_request(engine, stub):
    """DEADLINE_EXCEEDED, and nothing left."""
    await engine.pause_generation()
    status, _ = await refusal(stub.Embed(message(5), timeout=0.2))
    assert status is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: engine.num_active_requests == 0)


async def test_padding_is_no_part_of_the_text(engine):
    """Ids of the padding at the end are left out where they can only be that."""
    limits = engine.info.limits
    pooler = engine.info.pooler
    asked = message(5, 0, 6, 0, 0)
    assert to_embed_input(asked, pooler, limits, 0).prompt == {"prompt_token_ids": [5, 0, 6]}
    assert to_embed_input(asked, pooler, limits).prompt == {"prompt_token_ids": [5, 0, 6, 0, 0]}
    assert to_embed_input(message(0, 0), pooler, limits, 0).prompt == {"prompt_token_ids": [0]}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"token_type_ids": [0, 1]}, "prompt_pair"),
        ({"cache_salt": "s"}, "cache_salt"),
        ({"data_parallel_rank": 0}, "data_parallel_rank"),
        ({"pooling": PoolingParams(task="classify")}, "task"),
        ({"pooling": PoolingParams(task="embed", normalize=False)}, "normalize"),
    ],
)
def test_what_this_wire_has_no_word_for_is_not_sent(changes, name):
    """By name; a plain prompt is."""
    plain = make_request("r", [5, 6], pooling=PoolingParams(task="embed"))
    assert list(to_embed_request(plain).tokenized.input_ids) == [5, 6]
    with pytest.raises(BadRequest, match=name):
        to_embed_request(msgspec.structs.replace(plain, **changes))


GENERATE = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[10**6]))


@pytest.mark.parametrize(
    ("name", "asked", "runner"),
    [("Embed", message(10**6), "pooling"), ("Generate", GENERATE, "auto")],
)
async def test_a_full_queue_refuses_before_the_prompt_is_looked_at(name, asked, runner):
    """Neither call works on a prompt that there is no place for."""
    async with (
        local(runner=runner, max_num_queued_reqs=1) as engine,
        channel_to(engine) as channel,
    ):
        with engine.preparing(1):
            code, _ = await refusal(getattr(VllmEngineStub(channel), name)(asked))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
