"""Bad requests get a clear status, and leave nothing behind: the canary still sings after each."""

import asyncio
import contextlib
import gzip
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.fake_engine import FakeEngine
from tests.rpc.calls import (
    ALL_CALLS,
    PROMPT,
    begin,
    channel_to,
    check_canary,
    refusal,
    request,
    responses,
    served,
)
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.boundary import FREE_BYTES
from weft.rpc.methods import METHODS, RpcMethod

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NAN, INF = float("nan"), float("inf")


async def call_raw(channel: grpc.aio.Channel, name: str, data: bytes) -> tuple[Any, str]:
    """Status and text for a message of these very bytes."""
    return await refusal(begin(channel, METHODS[name], data))


async def read_to_end(reader: asyncio.StreamReader) -> None:
    """Until the other side closes, one way or the other."""
    with contextlib.suppress(ConnectionResetError):
        await reader.read()


def nested(depth: int) -> bytes:
    """GenerateRequest > media_refs > items > unknown groups, `depth` deep."""
    return b"\x52\x80\x80\x04" + b"\x0b" * depth


@pytest.mark.parametrize("method", ALL_CALLS, ids=lambda method: method.path)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff\xff\xff\xff\xff\xff", id="random"),
        pytest.param(b"\x0a\x05ab", id="truncated"),
        pytest.param(nested(20_000), id="nested"),
    ],
)
async def test_bytes_that_are_no_message_are_invalid(
    channel: grpc.aio.Channel, stub: VllmEngineStub, method: RpcMethod, data: bytes
):
    """Rows 1, 2 and 4: INVALID_ARGUMENT with the message's name, on every call of every service."""
    status, detail = await refusal(begin(channel, method, data))

    assert status == INVALID
    assert method.request_type.DESCRIPTOR.name in detail
    await check_canary(stub)


async def test_text_that_is_not_utf8_is_invalid(channel: grpc.aio.Channel, stub: VllmEngineStub):
    """Row 3."""
    status, _ = await call_raw(channel, "Generate", b"\x0a\x02\xff\xfe")

    assert status == INVALID
    await check_canary(stub)


async def test_unknown_method_is_unimplemented(channel: grpc.aio.Channel, stub: VllmEngineStub):
    """Row 8; another engine's service is an unknown method too."""
    for path in ("/vllm.grpc.engine.VllmEngine/Nope", "/sglang.grpc.scheduler.X/HealthCheck"):
        status, _ = await refusal(channel.unary_unary(path)(b""))
        assert status == grpc.StatusCode.UNIMPLEMENTED
    await check_canary(stub)


async def test_unknown_fields_are_ignored(channel: grpc.aio.Channel, stub: VllmEngineStub):
    """Row 20: a newer client may send what this server does not know."""
    data = request().SerializeToString() + b"\xfa\x3e\x03new"

    answers = [r async for r in channel.unary_stream(METHODS["Generate"].path)(data)]

    assert len(answers) == 1
    await check_canary(stub)


PARAMETERS = [
    ("temperature", {"temperature": NAN}),
    ("temperature", {"temperature": INF}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 1e30}),
    ("top_p", {"top_p": -1.0}),
    ("top_p", {"top_p": 1.1}),
    ("top_p", {"top_p": NAN}),
    ("min_p", {"min_p": 2.0}),
    ("min_p", {"min_p": NAN}),
    ("presence_penalty", {"presence_penalty": NAN}),
    ("frequency_penalty", {"frequency_penalty": 1e9}),
    ("repetition_penalty", {"repetition_penalty": -1.0}),
    ("repetition_penalty", {"repetition_penalty": NAN}),
    ("n", {"n": 129}),
    ("n", {"n": 2**31}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 2**31}),
    ("min_tokens", {"min_tokens": 4, "max_tokens": 3}),
    ("min_tokens", {"min_tokens": 2**32 - 1}),
    ("stop", {"stop": ["x"] * 10_000}),
    ("stop", {"stop": [""]}),
    ("stop", {"stop": ["x" * 2**20]}),
    ("stop_token_ids", {"stop_token_ids": [512]}),
    ("stop_token_ids", {"stop_token_ids": [2**31]}),
    ("logit_bias", {"logit_bias": {512: 1.0}}),
    ("logit_bias", {"logit_bias": {-1: 1.0}}),
    ("logit_bias", {"logit_bias": {5: NAN}}),
    ("logit_bias", {"logit_bias": dict.fromkeys(range(100_000), 1.0)}),
    ("logprobs", {"logprobs": -2}),
    ("logprobs", {"logprobs": 513}),
    ("prompt_logprobs", {"prompt_logprobs": -2}),
    ("json", {"json_schema": ""}),
    ("json", {"json_schema": "x" * 65_537}),
    ("json", {"json_schema": '{"items": ' * 1000 + "{}" + "}" * 1000}),
    ("regex", {"regex": "a{1000000}"}),
    ("regex", {"regex": ""}),
    ("grammar", {"grammar": ""}),
    ("grammar", {"grammar": "start: " + "(" * 65_536}),
    ("choice", {"choice": pb.ChoiceConstraint()}),
    ("choice", {"choice": pb.ChoiceConstraint(choices=[""])}),
    ("choice", {"choice": pb.ChoiceConstraint(choices=["a"] * 100_000)}),
    ("structural_tag", {"structural_tag": "{}"}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": -2}),
]

INPUTS = [
    ("prompt", {"tokenized": pb.TokenizedInput()}),
    ("text", {"text": ""}),
    ("prompt_token_ids", {"tokenized": pb.TokenizedInput(input_ids=[512])}),
    ("prompt_token_ids", {"tokenized": pb.TokenizedInput(input_ids=[2**31])}),
    ("context", {"tokenized": pb.TokenizedInput(input_ids=[5] * 256)}),
    ("context", {"tokenized": pb.TokenizedInput(input_ids=[5] * 257)}),
    ("context", {"tokenized": pb.TokenizedInput(input_ids=[5] * 5_000_000)}),
    (
        "input_ids",
        {
            "tokenized": pb.TokenizedInput(input_ids=[5] * 5_000_000),
            "truncate_prompt_tokens": 4,
        },
    ),
    ("request_id", {"request_id": "x" * 257}),
    ("request_id", {"request_id": "x" * 2**20}),
    ("request_id", {"request_id": "a\nb"}),
    ("request_id", {"request_id": "a\x00b"}),
    ("data_parallel_rank", {"data_parallel_rank": 1}),
    ("data_parallel_rank", {"data_parallel_rank": -1}),
]


@pytest.mark.parametrize(
    ("name", "fields"), PARAMETERS + INPUTS, ids=lambda v: v if isinstance(v, str) else ""
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_bad_value_is_refused_by_name(
    stub: VllmEngineStub, engine: FakeEngine, name: str, fields: dict[str, Any], stream: bool
):
    """Rows 23 to 37, 51 and 53: INVALID_ARGUMENT, the field's name, and the engine never asked."""
    status, detail = await refusal(stub.Generate(request(stream, **fields)))

    assert status == INVALID
    assert name in detail
    assert engine.calls == []
    await check_canary(stub)


async def test_empty_message_is_invalid(stub: VllmEngineStub):
    """Rows 19 and 22: no input is set."""
    status, detail = await refusal(stub.Generate(pb.GenerateRequest()))

    assert (status, detail) == (INVALID, "input is missing: set tokenized or text")
    await check_canary(stub)


async def test_last_of_two_inputs_wins(channel: grpc.aio.Channel, stub: VllmEngineStub):
    """Row 22, as protobuf defines it: of a oneof sent twice the later one is what was sent."""
    data = b"\x1a\x02hi" + request().SerializeToString()

    [answer] = [r async for r in channel.unary_stream(METHODS["Generate"].path)(data)]

    assert pb.GenerateResponse.FromString(answer).complete.prompt_tokens == len(PROMPT)
    await check_canary(stub)


async def test_denormal_temperature_is_greedy(stub: VllmEngineStub):
    """Row 29: too small for 32 bits is 0."""
    assert [r async for r in stub.Generate(request(temperature=1e-320))]


@pytest.mark.parametrize(
    "text", ["\x00", "\u200b", "a" + "\u0301" * 100, "<|im_end|>", "\U0001f600" * 50]
)
async def test_odd_text_is_answered(stub: VllmEngineStub, text: str):
    """Row 40: never an internal error."""
    assert [r async for r in stub.Generate(request(text=text))]
    await check_canary(stub)


async def test_ignore_eos_runs_to_the_end_of_the_context(stub: VllmEngineStub):
    """Row 38: "length" at the context's end, not an error."""
    [answer] = [r async for r in stub.Generate(request(ignore_eos=True, max_tokens=2**31 - 1))]

    assert answer.complete.finish_reason == "length"
    assert answer.complete.completion_tokens == 256 - len(PROMPT)


async def test_huge_abort_is_resource_exhausted(stub: VllmEngineStub):
    """Row 56: too many ids are refused, a million before they are looked at; none at all is fine."""
    status, detail = await refusal(stub.Abort(pb.AbortRequest(request_ids=["x"] * 10_001)))
    huge = await refusal(stub.Abort(pb.AbortRequest(request_ids=["x"] * 1_000_000)))

    assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "10000" in detail
    assert huge[0] == INVALID
    assert "request_ids: AbortRequest takes at most" in huge[1]
    assert await stub.Abort(pb.AbortRequest()) == pb.AbortResponse()
    await check_canary(stub)


@pytest.fixture
async def small(engine: FakeEngine) -> AsyncIterator[str]:
    """host:port of a server that takes 100,000 bytes."""
    async with served(engine, max_message_bytes=100_000) as target:
        yield target


async def test_message_over_the_limit_is_resource_exhausted(small: str):
    """Row 5: one byte decides."""
    fits = pb.GenerateRequest(text="")
    fits.text = "x" * (100_000 - 4)
    over = pb.GenerateRequest(text=fits.text + "x")
    assert (fits.ByteSize(), over.ByteSize()) == (100_000, 100_001)
    async with grpc.aio.insecure_channel(small) as channel:
        stub = VllmEngineStub(channel)

        statuses = [(await refusal(stub.Generate(message)))[0] for message in (fits, over)]

        assert statuses == [INVALID, grpc.StatusCode.RESOURCE_EXHAUSTED]
        await check_canary(stub)


async def test_large_requests_at_once_are_bounded_and_small_ones_still_taken(engine: FakeEngine):
    """What open calls hold is counted, those that cannot be decoded too; it is room again when they end."""
    large = request(stream=True)
    large.tokenized.original_text = "x" * (FREE_BYTES + 1)
    max_bytes = large.ByteSize() + FREE_BYTES
    async with channel_to(engine, max_total_message_bytes=max_bytes) as channel:
        stub = VllmEngineStub(channel)
        engine.hold()
        held = asyncio.create_task(responses(stub, large))
        await engine.wait_for_open(1)
        status, detail = await refusal(stub.Generate(large))
        await engine.run_freely()
        await check_canary(stub)
        await held
        undecodable = b"\xff" * (FREE_BYTES + 1)
        after = [(await call_raw(channel, "Generate", undecodable))[0] for _ in range(3)]
        whole = await responses(stub, large)
    assert (status, "large requests" in detail) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
    assert after == [INVALID] * 3
    assert whole[-1].HasField("complete")


async def test_gzip_bomb_is_resource_exhausted(small: str):
    """Row 6: the limit holds for what a message unpacks to."""
    bomb = pb.GenerateRequest(text="x" * 50_000_000)
    assert len(gzip.compress(bomb.SerializeToString())) < 100_000
    async with grpc.aio.insecure_channel(small) as channel:
        stub = VllmEngineStub(channel)

        status, _ = await refusal(stub.Generate(bomb, compression=grpc.Compression.Gzip))

        assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
        await check_canary(stub)


async def test_metadata_over_the_limit_is_resource_exhausted(stub: VllmEngineStub):
    """Row 7."""
    metadata = (("x-large", "y" * 40_000),)

    status, _ = await refusal(stub.HealthCheck(pb.HealthCheckRequest(), metadata=metadata))

    assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
    await check_canary(stub)


async def test_other_protocols_on_the_port_are_cut_off(target: str, stub: VllmEngineStub):
    """Row 15: HTTP/1 text, a TLS hello and noise close the connection and harm nobody."""
    host, port = target.split(":")
    hello = b"\x16\x03\x01" + struct.pack(">H", 512) + bytes(512)
    for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", hello, bytes(range(256))):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            await read_to_end(reader)
        writer.close()
    await check_canary(stub)
