"""NVIDIA Dynamo's vLLM sidecar, by the calls that its version 1.6.1 makes; docs/grpc.md says how it ran itself."""

from contextlib import AsyncExitStack

import grpc
from google.protobuf import json_format
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.contract.engines import MODEL, local
from tests.doubles.transfers import WITH_SECRET
from tests.rpc.calls import channel_to
from tests.web.serving import serving
from weft.model.open import open_model
from weft.pb import vllm_control_pb2 as control
from weft.pb import vllm_inference_pb2 as pb
from weft.pb.vllm_control_pb2_grpc import ControlStub
from weft.pb.vllm_inference_pb2_grpc import InferenceStub

PROMPT = [*range(5, 105)]


async def discover(channel: grpc.aio.Channel) -> control.ModelInfo:
    """What the sidecar does before it registers its worker."""
    for service in ("vllm.Control", "vllm.Inference"):
        answer = await HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    stub = ControlStub(channel)
    server = await stub.GetServerInfo(control.GetServerInfoRequest())
    assert server.api_version == "vllm"
    assert min(server.max_model_len, server.kv_block_size, server.total_kv_blocks) > 0
    assert server.parallelism.data_parallel_size_local >= 1
    model = await stub.GetModelInfo(control.GetModelInfoRequest())
    assert model.served_model_name
    assert model.supports_token_ids_input
    await stub.GetKvEventSources(control.GetKvEventSourcesRequest())
    return model


def message(
    model: str, transfer: dict | None = None, max_new_tokens: int = 8
) -> pb.GenerateRequest:
    """A request with all that the sidecar sets."""
    asked = pb.GenerateRequest(
        request_id="r",
        model=model,
        token_ids={"ids": PROMPT},
        temperature=0.0,
        sampling={"num_sequences": 1},
        decoding={},
        stopping={"max_new_tokens": max_new_tokens, "stop_token_ids": [2]},
        response={
            "output_text": True,
            "output_token_ids": True,
            "output_logprobs": True,
            "output_candidates": {"top_n": 1},
            "prompt_token_ids": True,
            "prompt_logprobs": transfer is None,
        },
        kv={"cache_salt": "dynamo-cache-salt:a"},
    )
    if transfer is not None:
        json_format.ParseDict(transfer, asked.kv.kv_transfer_params)
    return asked


async def converted(channel: grpc.aio.Channel, asked: pb.GenerateRequest):
    """The tokens and the end of an answer, with what the sidecar demands of each message."""
    tokens: list[int] = []
    end = None
    call = InferenceStub(channel).GenerateStream(asked, metadata=(("x-data-parallel-rank", "0"),))
    async for response in call:
        if response.HasField("prompt_info"):
            prompt = response.prompt_info
            assert prompt.num_prompt_tokens == len(PROMPT)
            if asked.response.prompt_logprobs:
                columns = (prompt.token_ids, prompt.logprobs, prompt.ranks, prompt.candidate_tokens)
                assert {len(column) for column in columns} == {len(PROMPT)}
        if not response.HasField("outputs"):
            continue
        piece = response.outputs
        assert end is None
        assert piece.index == 0
        assert piece.num_tokens == len(piece.token_ids) == len(piece.logprobs)
        tokens += piece.token_ids
        if piece.HasField("finish_info"):
            end = piece.finish_info
            assert end.num_output_tokens == len(tokens)
    assert end is not None
    assert end.finish_reason in (pb.FinishInfo.LENGTH, pb.FinishInfo.STOP)
    return tokens, end


async def test_a_worker_is_discovered_and_answers():
    """In one engine."""
    async with local() as engine, channel_to(engine, open_model(MODEL).tokenizer_files) as channel:
        model = await discover(channel)
        tokens, _ = await converted(channel, message(model.served_model_name))
    assert len(tokens) == 8


async def start(stack: AsyncExitStack, role: str) -> tuple[grpc.aio.Channel, str]:
    """A channel to a server of an engine with this role, and the name of its model."""
    config = {"kv_connector": "TcpConnector", "kv_role": role, **WITH_SECRET}
    served = await stack.enter_async_context(serving(kv_transfer_config=config))
    channel = await stack.enter_async_context(channel_to(served.client, {}))
    return channel, (await discover(channel)).served_model_name


async def test_a_prompt_is_computed_by_one_worker_and_continued_by_another():
    """The sidecar passes on what the first answered, with the port as text; the blocks are fetched."""
    async with AsyncExitStack() as stack:
        prefill, model = await start(stack, "kv_producer")
        decode, _ = await start(stack, "kv_consumer")
        first = message(model, {"do_remote_decode": True}, max_new_tokens=1)
        first.stopping.min_new_tokens = 1
        _, lent = await converted(prefill, first)
        given = json_format.MessageToDict(lent.kv_transfer_params)
        given["remote_port"] = str(int(given["remote_port"]))
        tokens, end = await converted(decode, message(model, given))
        alone, _ = await converted(prefill, message(model))
    assert tokens == alone
    assert end.num_cached_tokens == 96
