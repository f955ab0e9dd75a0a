"""Calls that many tests make."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec
import pytest

from tests.doubles.fake_engine import make_config, reference_tokens
from tests.text.vocabularies import byte_level
from weft.core.checks.validate import Limits
from weft.core.client import EngineClient
from weft.core.values.kv_transfer import Resumption
from weft.core.values.types import RequestOptions, SamplingParams
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.convert.request import to_generation
from weft.rpc.methods import METHODS_BY_SERVICE, RpcMethod
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer
from weft.text.prepare import InputProcessor

ALL_CALLS = [call for calls in METHODS_BY_SERVICE.values() for call in calls.values()]
PROMPT = [10, 11, 12, 13]
TOKENIZER_FILES = {"tokenizer.json": b'{"a": 1}', "tokenizer_config.json": b"{}" * 50_000}


@asynccontextmanager
async def served(
    engine: EngineClient, files: Mapping[str, bytes] = TOKENIZER_FILES, **options: Any
) -> AsyncIterator[str]:
    """host:port of a server over an engine, until the block ends."""
    server = RpcServer(engine, files, RpcOptions(port=0, **options))
    try:
        yield f"127.0.0.1:{await server.start()}"
    finally:
        await server.stop()


@asynccontextmanager
async def channel_to(engine: EngineClient, *args: Any, **options: Any) -> AsyncIterator[Any]:
    """A channel to such a server."""
    async with (
        served(engine, *args, **options) as target,
        grpc.aio.insecure_channel(target) as channel,
    ):
        yield channel


def request(stream: bool = False, **fields: Any) -> pb.GenerateRequest:
    """A request for three tokens after PROMPT; `fields` of the request or its parameters change it."""
    names = {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}
    outer = {name: value for name, value in fields.items() if name in names}
    inner = {name: value for name, value in fields.items() if name not in names}
    params = pb.SamplingParams(**{"max_tokens": 3, **inner})
    message = pb.GenerateRequest(stream=stream, sampling_params=params)
    if not {"text", "tokenized"} & fields.keys():
        message.tokenized.input_ids.extend(PROMPT)
    message.MergeFrom(pb.GenerateRequest(**outer))
    return message


async def responses(stub: VllmEngineStub, message: pb.GenerateRequest) -> list[pb.GenerateResponse]:
    """Everything the server answers."""
    return [response async for response in stub.Generate(message)]


async def completes(stub: VllmEngineStub, **fields: Any) -> list[pb.GenerateComplete]:
    """The answers to a request that is not streamed."""
    answers = await responses(stub, request(**fields))
    assert all(answer.WhichOneof("response") == "complete" for answer in answers)
    return [answer.complete for answer in answers]


def begin(channel: grpc.aio.Channel, method: RpcMethod, data: bytes = b"", **options: Any) -> Any:
    """A call of any service, with these very bytes."""
    make = channel.unary_stream if method.is_streaming else channel.unary_unary
    return make(method.path)(data, **options)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    """Status and text of a call that must fail, whether it is streamed or not."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _finish(call)
    return caught.value.code(), caught.value.details() or ""


async def _finish(call: Any) -> None:
    if isinstance(call, grpc.aio.UnaryStreamCall):
        async for _ in call:
            pass
    else:
        await call


async def check_canary(stub: VllmEngineStub) -> None:
    """A plain request still gives the reference tokens, and health says so."""
    [answer] = await completes(stub)
    assert list(answer.output_ids) == reference_tokens(PROMPT, 3)
    assert (await stub.HealthCheck(pb.HealthCheckRequest())).healthy


@dataclass(frozen=True)
class Understood:
    """What became of a message: its parameters as given, and what else of it a request holds."""

    params: SamplingParams
    request_id: str | None
    prompt_token_ids: list[int]
    prompt: str | None
    data_parallel_rank: int | None
    resumption: Resumption | None


def understood(message: pb.GenerateRequest, data_parallel_size: int = 1) -> Understood:
    """Translated, and checked as every request is."""
    config = msgspec.structs.replace(make_config(), data_parallel_size=data_parallel_size)
    generation = to_generation(message, Limits.of(config))
    options = RequestOptions(
        request_id=generation.request_id or "r",
        prompt_text=generation.prompt_text,
        data_parallel_rank=generation.data_parallel_rank,
    )
    processor = InputProcessor(config, byte_level())
    request = processor.process(generation.prompt, generation.params, options)
    return Understood(
        generation.params,
        generation.request_id,
        request.prompt_token_ids,
        request.prompt,
        request.data_parallel_rank,
        generation.resumption,
    )
