"""Prompts that one gRPC server computes and another continues: the field of JSON, and the typed one beside it."""

import json
from contextlib import AsyncExitStack

import grpc
import pytest

from tests.doubles.transfers import WITH_SECRET
from tests.web.serving import serving
from weft.core.values.kv_transfer import KEY
from weft.core.values.types import SamplingParams
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.client import RpcClient
from weft.rpc.connection import Credentials
from weft.rpc.options import RpcOptions
from weft.rpc.prefiller import RpcPrefiller
from weft.rpc.server import RpcServer

PROMPT = {"prompt_token_ids": [*range(5, 105)]}
PARAMS = SamplingParams(temperature=0.0, max_tokens=6, detokenize=False)


def with_transfer(given: dict, max_tokens: int = 6) -> SamplingParams:
    return SamplingParams(
        temperature=0.0, max_tokens=max_tokens, detokenize=False, extra_args={KEY: given}
    )


async def start(stack: AsyncExitStack, role: str, key: str | None = None) -> tuple[RpcClient, str]:
    """A client of a new server of an engine with this role, and the server's address."""
    config = {"kv_connector": "TcpConnector", "kv_role": role, **WITH_SECRET}
    served = await stack.enter_async_context(serving(kv_transfer_config=config))
    transfer = served.client.vllm_config.kv_transfer_config
    prefiller = RpcPrefiller(transfer.networks, 16) if transfer.role.fetches else None
    server = RpcServer(
        served.client, {}, RpcOptions(port=0, api_keys=(key,) if key else ()), prefiller=prefiller
    )
    target = f"127.0.0.1:{await server.start()}"
    stack.push_async_callback(server.stop)
    credentials = Credentials(api_key=key)
    client = await RpcClient.connect(target, credentials=credentials, has_tokenizer=False)
    stack.push_async_callback(client.close)
    return client, target


async def last_of(client: RpcClient, params: SamplingParams):
    return [output async for output in client.generate(PROMPT, params, "r")][-1]


async def test_the_json_of_one_server_goes_unchanged_to_the_other():
    """Most of the prompt is not computed again, and the tokens are those of one engine alone."""
    async with AsyncExitStack() as stack:
        prefill, _ = await start(stack, "kv_producer")
        decode, _ = await start(stack, "kv_consumer")
        first = await last_of(prefill, with_transfer({"do_remote_decode": True}, max_tokens=1))
        found = first.kv_transfer_params
        answer = await last_of(decode, with_transfer(found))
        alone = await last_of(prefill, PARAMS)
    assert found["do_remote_prefill"]
    assert answer.outputs[0].token_ids == alone.outputs[0].token_ids
    assert answer.num_cached_tokens == 96
    assert (answer.kv_transfer_params, alone.kv_transfer_params) == (None, None)


async def test_the_typed_field_says_where_and_only_beside_the_json():
    """It has no room for what is to be fetched; one that says something else is refused."""
    async with AsyncExitStack() as stack:
        _, target = await start(stack, "kv_both")
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(target))
        call = channel.unary_stream(
            "/vllm.grpc.engine.VllmEngine/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )

        def request(text: str, **typed) -> pb.GenerateRequest:
            message = pb.GenerateRequest(kv_transfer_params_json=text)
            message.tokenized.input_ids.extend(PROMPT["prompt_token_ids"])
            message.sampling_params.max_tokens = 1
            if typed:
                message.kv_transfer_params.CopyFrom(pb.KvTransferParams(**typed))
            return message

        [reply] = [r async for r in call(request('{"do_remote_decode": true}'))]
        typed, text = reply.complete.kv_transfer_params, reply.complete.kv_transfer_params_json
        assert (typed.remote_host, typed.remote_port) == (
            json.loads(text)["remote_host"],
            json.loads(text)["remote_port"],
        )
        where = {"remote_host": typed.remote_host, "remote_port": typed.remote_port}
        [reply] = [r async for r in call(request(text, **where))]
        assert reply.complete.finish_reason == "length"
        refused = [
            request(""),
            request(text, **{**where, "remote_port": 1}),
            request("", **where),
            request("[]"),
            request("{"),
            request('{"do_remote_decode": 1}'),
        ]
        for message in refused:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                [r async for r in call(message)]
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "kv_transfer_params" in error.value.details()


def named(target: str, *metadata: tuple[str, str]):
    """A plain request, and the metadata of a router that chose `target` for its prompt."""
    message = pb.GenerateRequest()
    message.tokenized.input_ids.extend(PROMPT["prompt_token_ids"])
    message.sampling_params.max_tokens = 6
    message.sampling_params.temperature = 0.0
    return message, (("x-prefiller-host-port", target), *metadata)


async def generate(stack: AsyncExitStack, target: str, message, metadata):
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(target))
    call = channel.unary_stream(
        "/vllm.grpc.engine.VllmEngine/Generate",
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=pb.GenerateResponse.FromString,
    )
    [reply] = [reply async for reply in call(message, metadata=metadata)]
    return reply.complete


async def test_a_server_has_the_prompt_computed_where_the_metadata_says():
    """By another gRPC server, with the caller's key; and the answer is that of one server alone."""
    async with AsyncExitStack() as stack:
        _, prefill = await start(stack, "kv_producer", key="k")
        decode_client, decode = await start(stack, "kv_consumer")
        message, metadata = named(prefill, ("authorization", "Bearer k"))
        answer = await generate(stack, decode, message, metadata)
        alone = await last_of(decode_client, PARAMS)
    assert list(answer.output_ids) == list(alone.outputs[0].token_ids)
    assert answer.cached_tokens == 96


@pytest.mark.parametrize("address", ["127.0.0.1:1", "10.0.0.1:80", "localhost:80", "x"])
async def test_metadata_that_names_no_prefiller_costs_nothing_but_time(address):
    """The prompt is computed here."""
    async with AsyncExitStack() as stack:
        _, decode = await start(stack, "kv_consumer")
        answer = await generate(stack, decode, *named(address))
    assert (len(answer.output_ids), answer.cached_tokens) == (6, 0)
