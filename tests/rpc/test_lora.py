"""Adapters over gRPC: metadata names one, because the messages have no field for it."""

from contextlib import aclosing, asynccontextmanager

import grpc
import pytest

from tests.contract.engines import MODEL, local
from tests.model.adapters import write_adapter
from tests.rpc import calls
from tests.rpc.calls import refusal, request
from weft.core.errors import BadRequest, NotFound
from weft.core.values.types import LoRARequest, OutputKind, SamplingParams
from weft.model.open import open_model
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.client import RpcClient

SPEC = open_model(MODEL).spec
PROMPT = list(range(100, 120))
GREEDY = SamplingParams(
    temperature=0.0, max_tokens=8, ignore_eos=True, output_kind=OutputKind.FINAL_ONLY
)


@asynccontextmanager
async def served(tmp_path):
    """The address of a server that has the adapter "sql", and the engine behind it."""
    path = write_adapter(tmp_path / "a", SPEC)
    async with local(enable_lora=True, served_model_name=["base"]) as engine:
        await engine.add_lora(LoRARequest(lora_name="sql", lora_int_id=1, lora_path=str(path)))
        async with calls.served(engine, open_model(MODEL).tokenizer_files) as target:
            yield target, engine


@asynccontextmanager
async def stub(target):
    """The generated client."""
    async with grpc.aio.insecure_channel(target) as channel:
        yield VllmEngineStub(channel)


async def tokens(client, **options):
    """The answer of an `EngineClient`."""
    async with aclosing(client.generate(PROMPT, GREEDY, "r", **options)) as outputs:
        return [output async for output in outputs][-1].outputs[0].token_ids


def call(client, *names):
    """A request whose metadata names adapters."""
    message = request(temperature=0.0, max_tokens=8, ignore_eos=True)
    del message.tokenized.input_ids[:]
    message.tokenized.input_ids.extend(PROMPT)
    return client.Generate(message, metadata=[("x-weft-lora-name", name) for name in names])


async def answered(client, *names):
    """Its tokens."""
    [response] = [response async for response in call(client, *names)]
    return list(response.complete.output_ids)


async def test_metadata_names_the_adapter(tmp_path):
    """Without it, or with the model's own name, there is none."""
    async with served(tmp_path) as (target, engine), stub(target) as client:
        plain = await tokens(engine)
        changed = await tokens(engine, lora_request=engine.lora_requests["sql"])
        assert plain != changed
        assert await answered(client) == plain
        assert await answered(client, "sql") == changed
        assert await answered(client, "base") == plain
        assert await answered(client, "") == plain


async def test_an_unknown_adapter_is_not_found(tmp_path):
    """Never the model in its place."""
    async with served(tmp_path) as (target, _), stub(target) as client:
        code, details = await refusal(call(client, "poetry"))
        assert code is grpc.StatusCode.NOT_FOUND
        assert "'poetry' does not exist; this server has base, sql" in details


async def test_two_adapters_are_one_too_many(tmp_path):
    """A repeated key must not be settled by chance."""
    async with served(tmp_path) as (target, _), stub(target) as client:
        code, _ = await refusal(call(client, "sql", "base"))
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_our_own_client_sends_the_name(tmp_path):
    """The path is the server's affair."""
    request = LoRARequest(lora_name="sql", lora_int_id=5, lora_path="/nowhere")
    async with served(tmp_path) as (target, engine):
        client = await RpcClient.connect(target)
        try:
            changed = await tokens(engine, lora_request=engine.lora_requests["sql"])
            assert await tokens(client, lora_request=request) == changed
            with pytest.raises(NotFound, match="does not exist"):
                await tokens(
                    client,
                    lora_request=LoRARequest(lora_name="x", lora_int_id=1, lora_path="/x"),
                )
            with pytest.raises(BadRequest, match="lora_name"):
                await tokens(
                    client,
                    lora_request=LoRARequest(lora_name="a\nb", lora_int_id=1, lora_path="/x"),
                )
        finally:
            await client.close()
