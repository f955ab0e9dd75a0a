"""Recorded bytes of version 0.4.28 of the protocol: a field number that drifts fails here.

They were written with the protocol's own published stubs, not with ours.
"""

from typing import Any

import pytest
from google.protobuf.message import Message

from tests.doubles.fake_engine import make_config
from weft.core.engine_info import EngineInfo
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import AllBlocksCleared, BlockRemoved, BlockStored, KvEventBatch
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    Logprob,
    OutputKind,
    Request,
    RequestOutput,
    SamplingParams,
)
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.info import to_model_info, to_server_info
from weft.rpc.convert.kv_events import KvEventWriter
from weft.rpc.convert.output import StreamedReply
from weft.rpc.convert.request import to_generate_request, to_params

GENERATE = bytes.fromhex(
    "0a027231120c0a026869120601ac02f0a204226d0d00000000150000003f1807250000803e2d000080bf35000080"
    "3f3d0000c03f400948025201785201795a0204056001680170017802b00100b801ffffffffffffffffff01c001fd"
    "ffffffffffffffff01c80101d201070806150000c8c2d801ffffffffffffffffff01e0010128014800"
)
GENERATE_TEXT = bytes.fromhex("1a0568656c6c6f22058201027b7d")
GENERATE_PD = bytes.fromhex("32050a0168100142027b7d52070a0508031201755a0332016d")
CHUNK = bytes.fromhex(
    "0a380a0205061003180220012a1b0a08000000bf000080bf120205061a090a04000000bf1201051a00320d0a000a"
    "050d00000000120201023801"
)
COMPLETE = bytes.fromhex("121e0a020506120473746f7018032002280132031201053a0312010140015006")
COMPLETE_STRING = bytes.fromhex("12075a017868017002")
MODEL_INFO = bytes.fromhex(
    "0a016d100118800220800428013201733a017442056c6c616d614a0141520202035804600168ff0172027b7d"
)
SERVER_INFO = bytes.fromhex(
    "0801100119000000000000f83f2100000000000004402a09766c6c6d2d6772706348015a01666010720164a00108"
)
LOAD = bytes.fromhex(
    "08011002180320052806300739000000000000e03f41000000000000f83f49000000000000d03f51000000000000"
    "e83f58086009"
)
KV_BATCH = bytes.fromhex(
    "080711000000000000f83f1a2a080112260a1108feffffffffffffffff0112020102180210ffffffffffffffffff"
    "0118015a016c6201731a1108021a0d0a0bfeffffffffffffffff01031a04080322002000422d0801100218002100"
    "0000000000e03f29000000000000f83f30083809400a480151000000000000000058016002"
)


def decode(message_type: type[Message], data: bytes) -> Any:
    """The message, checked to hold everything the bytes say and to say the same again."""
    message = message_type.FromString(data)
    assert message.SerializeToString(deterministic=True) == data
    known = message_type()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    assert known == message
    return message


@pytest.mark.parametrize(
    ("message_type", "data"),
    [
        (pb.GenerateRequest, GENERATE),
        (pb.GenerateRequest, GENERATE_TEXT),
        (pb.GenerateRequest, GENERATE_PD),
        (pb.GenerateResponse, CHUNK),
        (pb.GenerateResponse, COMPLETE),
        (pb.GenerateResponse, COMPLETE_STRING),
        (pb.GetModelInfoResponse, MODEL_INFO),
        (pb.GetServerInfoResponse, SERVER_INFO),
        (pb.SchedulerLoad, LOAD),
        (common_pb2.KvEventBatch, KV_BATCH),
        (common_pb2.GetTokenizerChunk, bytes.fromhex("0a017a12026162")),
        (common_pb2.FlushCacheRequest, bytes.fromhex("0d0000c03f")),
        (pb.AbortRequest, bytes.fromhex("0a01610a0162")),
        (common_pb2.SubscribeKvEventsRequest, bytes.fromhex("08051001")),
    ],
)
def test_recorded_bytes_are_understood_in_full(message_type: type[Message], data: bytes):
    """Nothing in them is unknown, and encoding gives them back."""
    decode(message_type, data)


def test_recorded_request_means_what_it_says():
    """Every number of the parameters, through the same conversion that the server uses."""
    message = decode(pb.GenerateRequest, GENERATE)
    message.sampling_params.grammar_from_first_token = False

    params = to_params(message.sampling_params, is_streaming=message.stream)

    assert params == SamplingParams(
        temperature=0.0,
        top_p=0.5,
        top_k=7,
        min_p=0.25,
        frequency_penalty=-1.0,
        presence_penalty=1.0,
        repetition_penalty=1.5,
        max_tokens=9,
        min_tokens=2,
        stop=["x", "y"],
        stop_token_ids=[4, 5],
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
        ignore_eos=True,
        n=2,
        logprobs=0,
        prompt_logprobs=-1,
        seed=-3,
        include_stop_str_in_output=True,
        logit_bias={6: -100.0},
        truncate_prompt_tokens=-1,
        output_kind=OutputKind.DELTA,
    )


def test_client_writes_the_recorded_request():
    """The client's bytes are the published stubs' bytes."""
    recorded = pb.GenerateRequest.FromString(GENERATE)
    recorded.sampling_params.grammar_from_first_token = False
    recorded.tokenized.input_ids[:] = [1, 300, 400]
    params = to_params(recorded.sampling_params, is_streaming=recorded.stream)

    written = to_generate_request(
        Request(
            request_id="r1",
            engine_id="r1-1",
            prompt_token_ids=[1, 300, 400],
            prompt="hi",
            params=params,
            eos_token_ids=(2,),
            seed=0,
            arrival_time=0.0,
            data_parallel_rank=0,
        )
    )

    assert written == recorded


def test_server_writes_the_recorded_chunk_and_complete():
    """A chunk and a complete number the same ideas differently."""
    params = SamplingParams(n=2, logprobs=1, prompt_logprobs=0)
    logprobs = [{5: Logprob(-0.5, 1)}, {}]
    answer = CompletionOutput(
        index=1,
        token_ids=[5, 6],
        logprobs=logprobs,
        finish_reason=FinishReason.STOP,
        stop_reason=6,
    )
    output = RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=[1, 2, 3],
        outputs=[answer],
        is_finished=False,
        num_cached_tokens=1,
    )

    chunk, complete = StreamedReply(params).messages(output)

    recorded = pb.GenerateResponse.FromString(CHUNK).chunk
    assert chunk.chunk.token_ids == recorded.token_ids
    assert chunk.chunk.index == recorded.index
    assert (chunk.chunk.prompt_tokens, chunk.chunk.completion_tokens) == (3, 2)
    assert chunk.chunk.cached_tokens == recorded.cached_tokens == 1
    assert chunk.chunk.output_logprobs.top_logprobs == recorded.output_logprobs.top_logprobs
    end = pb.GenerateResponse.FromString(COMPLETE).complete
    complete.complete.ClearField("output_logprobs")
    end.ClearField("output_logprobs")
    end.ClearField("input_logprobs")
    assert complete.complete == end


def test_server_writes_the_recorded_info():
    """Model and server facts."""
    model = make_config(
        model="m",
        served_model_names=("s",),
        architectures=("A",),
        eos_token_ids=(2, 3),
        pad_token_id=4,
        default_sampling_params={},
        is_multimodal_model=True,
    ).model_config
    info = to_model_info(model)
    info.tokenizer_path, info.default_sampling_params_json = "t", "{}"
    server = to_server_info(
        EngineInfo.of(make_config(dtype="d")),
        num_active_requests=1,
        is_paused=True,
        last_receive_time=1.5,
        uptime_s=2.5,
    )
    server.kv_cache_dtype = "f"

    assert info.SerializeToString(deterministic=True) == MODEL_INFO
    assert server.SerializeToString(deterministic=True) == SERVER_INFO


def test_server_writes_the_recorded_events():
    """Events, and the load of a record: a batch of ours with the record's load is theirs."""
    low = [(-2).to_bytes(8, "big", signed=True), (3).to_bytes(8, "big")]
    stored = BlockStored(
        block_hashes=[bytes(24) + low[0]],
        parent_block_hash=b"\xff" * 32,
        token_ids=[1, 2],
        block_size=2,
        lora_name="l",
        cache_salt="s",
    )
    removed = BlockRemoved(block_hashes=[bytes(24) + h for h in low])
    batch = KvEventBatch(
        sequence_number=7, timestamp=1.5, events=[stored, removed, AllBlocksCleared()]
    )
    recorded = decode(common_pb2.KvEventBatch, KV_BATCH)
    load = EngineLoad(num_running=1, num_waiting=2, gen_throughput=1.5, max_running=8)

    written = KvEventWriter().batch(batch, load, age_s=0.009)

    written.events[1].removed.ClearField("tier")  # ours says more than the recorded one
    assert list(written.events) == list(recorded.events)
    assert (written.sequence_number, written.dp_rank) == (7, 0)
    assert (written.load.age_ms, written.load.running_requests) == (9, 1)
    assert written.load.HasField("waiting_uncached_tokens")
