"""What the engine is, how busy it is, and the calls that keep it in order."""

import asyncio
import datetime as dt
import time
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from tests.busy import PATIENCE_S
from tests.doubles.fake_engine import FakeEngine, make_config
from tests.rpc.calls import check_canary, completes, refusal, request
from weft.core.engine_info import EngineInfo
from weft.core.errors import GenerationError
from weft.core.values.engine_snapshots import EngineLoad
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.convert.incoming import to_model_config
from weft.rpc.convert.info import to_model_info, to_server_info

INVALID = grpc.StatusCode.INVALID_ARGUMENT
LOAD = EngineLoad(
    num_running=2,
    num_waiting=3,
    num_used_tokens=256,
    max_total_tokens=1024,
    max_running=8,
    num_waiting_uncached_tokens=40,
    gen_throughput=12.5,
    cache_hit_rate=0.75,
)


async def test_model_info_tells_the_facts(stub: VllmEngineStub):
    """Everything that has a meaning here is filled."""
    info = await stub.GetModelInfo(pb.GetModelInfoRequest())

    assert info == pb.GetModelInfoResponse(
        model_path="fake",
        is_generation=True,
        max_context_length=256,
        vocab_size=512,
        served_model_name="fake-model",
        model_type="llama",
        architectures=["LlamaForCausalLM"],
        eos_token_ids=[2],
        bos_token_id=1,
        max_req_input_len=255,
        default_sampling_params_json='{"temperature": 0.6}',
    )


@pytest.mark.parametrize("text", ["[1]", "0.6", "{", "[" * 100_000])
def test_default_parameters_that_are_no_object_are_refused(text: str):
    """By a client of such a server, whatever stands there."""
    info = pb.GetModelInfoResponse(default_sampling_params_json=text)
    with pytest.raises(GenerationError, match="default_sampling_params_json"):
        to_model_config(info, pb.GetServerInfoResponse())


def test_tokenizer_path_is_a_directory_or_empty(tmp_path: Path):
    """Gateways load it from there; empty sends them to GetTokenizer."""
    paths = [
        to_model_info(make_config(model=name).model_config).tokenizer_path
        for name in (str(tmp_path), "embedded:tiny")
    ]

    assert paths == [str(tmp_path), ""]


async def test_server_info_is_real(stub: VllmEngineStub, engine: FakeEngine):
    """Five fields that others leave at 0, and the engine's settings."""
    before = time.time()
    fresh = await stub.GetServerInfo(pb.GetServerInfoRequest())
    await engine.pause_generation()
    call = stub.Generate(request())
    await engine.wait_for_open(1)

    info = await stub.GetServerInfo(pb.GetServerInfoRequest())

    assert (fresh.active_requests, fresh.is_paused) == (0, False)
    assert 0 < fresh.last_receive_timestamp <= before
    assert (info.active_requests, info.is_paused) == (1, True)
    assert before <= info.last_receive_timestamp <= time.time()
    assert info.uptime_seconds > fresh.uptime_seconds > 0
    assert info.server_type == "vllm-grpc"
    assert (info.data_parallel_size, info.block_size, info.max_num_seqs) == (1, 16, 8)
    assert (info.kv_cache_dtype, info.model_dtype) == ("float32", "float32")
    assert (info.kv_connector, info.kv_role, info.kv_engine_id) == ("", "", "")
    call.cancel()


@pytest.mark.parametrize(
    ("rules_thoughts", "start"), [(False, "after_reasoning"), (True, "first_token")]
)
def test_server_info_tells_where_constraints_begin(rules_thoughts: bool, start: str):
    """Gateways that find reasoning themselves go by it; without a parser a caller may say where it ends."""
    config = replace(make_config(), structured_outputs_in_reasoning=rules_thoughts)
    facts = {
        "num_active_requests": 0,
        "is_paused": False,
        "last_receive_time": 1,
        "uptime_s": 1,
    }
    info = to_server_info(EngineInfo.of(config), **facts, reasoning_parser="deepseek_r1")
    assert (info.engine_reasoning_parser, info.constrained_decoding_start) == ("deepseek_r1", start)
    silent = to_server_info(EngineInfo.of(config), **facts)
    assert silent.engine_reasoning_parser == ""
    assert silent.constrained_decoding_start == ("first_token" if rules_thoughts else "")


async def test_loads_are_the_engine_s(stub: VllmEngineStub, engine: FakeEngine):
    """Every field, with the time and the version."""
    engine.load = LOAD

    answer = await stub.GetLoads(pb.GetLoadsRequest())

    assert dt.datetime.fromisoformat(answer.timestamp).tzinfo is not None
    assert answer.version
    assert answer.dp_rank_count == 1
    [load] = answer.loads
    assert load == pb.SchedulerLoad(
        num_running_reqs=2,
        num_waiting_reqs=3,
        num_total_reqs=5,
        num_used_tokens=256,
        max_total_num_tokens=1024,
        token_usage=0.25,
        gen_throughput=12.5,
        cache_hit_rate=0.75,
        utilization=0.25,
        max_running_requests=8,
        num_waiting_uncached_tokens=40,
    )


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        (["queues"], {"num_running_reqs", "num_waiting_reqs", "num_total_reqs"}),
        (["memory"], {"num_used_tokens", "max_total_num_tokens", "token_usage"}),
        (["disagg"], set()),
        (["core", "disagg", "queues", "memory"], {"gen_throughput", "cache_hit_rate"}),
        (["all"], {"gen_throughput", "cache_hit_rate"}),
    ],
)
async def test_sections_decide_what_is_filled(
    stub: VllmEngineStub, engine: FakeEngine, sections: list[str], names: set[str]
):
    """The gateway asks for core, disagg, queues and memory."""
    engine.load = LOAD

    answer = await stub.GetLoads(pb.GetLoadsRequest(include=sections))

    filled = {field.name for field, _ in answer.loads[0].ListFields()}
    assert names <= filled
    assert ("gen_throughput" in filled) == ("gen_throughput" in names)


async def test_unknown_ranks_and_sections_are_refused(stub: VllmEngineStub):
    """By name, with what is allowed."""
    rank = await refusal(stub.GetLoads(pb.GetLoadsRequest(dp_rank=1)))
    section = await refusal(stub.GetLoads(pb.GetLoadsRequest(include=["nope"])))

    assert rank == (INVALID, "dp_rank must be one of [0], got 1")
    assert section[0] == INVALID
    assert "all, core, queues, memory" in section[1]
    assert len((await stub.GetLoads(pb.GetLoadsRequest(dp_rank=0))).loads) == 1


async def test_flush_tries_once_without_a_timeout(stub: VllmEngineStub, engine: FakeEngine):
    """0 asks once: true or false, at once."""
    engine.num_resets_refused = 1

    refused = await stub.FlushCache(common_pb2.FlushCacheRequest())
    done = await stub.FlushCache(common_pb2.FlushCacheRequest())

    assert (refused.success, done.success) == (False, True)
    assert "hold cached blocks" in refused.message


async def test_flush_tries_again_until_its_timeout(stub: VllmEngineStub, engine: FakeEngine):
    """With a timeout it waits for the requests that hold blocks."""
    engine.num_resets_refused = 2

    async with asyncio.timeout(PATIENCE_S):
        answer = await stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=30))

    assert answer.success


async def test_flush_gives_up_at_its_timeout(stub: VllmEngineStub, engine: FakeEngine):
    """And says that nothing was dropped; a bad timeout is refused."""
    engine.num_resets_refused = 10_000

    answer = await stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=0.1))
    status, _ = await refusal(stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=-1)))

    assert not answer.success
    assert status == INVALID


async def test_profiling_is_the_engine_s_affair(stub: VllmEngineStub, engine: FakeEngine):
    """UNIMPLEMENTED without a profiler, passed on with one."""
    status, detail = await refusal(stub.StartProfile(common_pb2.StartProfileRequest()))
    assert (status, detail) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "start_profile is not supported by this engine",
    )
    assert (await refusal(stub.StopProfile(common_pb2.StopProfileRequest())))[0] == status

    engine.has_profiler = True
    assert (await stub.StartProfile(common_pb2.StartProfileRequest(num_steps=5))).success
    assert engine.profiles == [(None, None, 5)]
    assert (await stub.StopProfile(common_pb2.StopProfileRequest())).success


async def test_embed_is_not_for_models_that_generate(stub: VllmEngineStub):
    """Row 67."""
    message = pb.EmbedRequest(request_id="e", tokenized=pb.TokenizedInput(input_ids=[5]))

    status, detail = await refusal(stub.Embed(message))

    assert status == grpc.StatusCode.UNIMPLEMENTED
    assert "Embed is not supported by this model: it generates text" in detail
    await check_canary(stub)


async def test_unknown_ids_are_aborted_silently(stub: VllmEngineStub):
    """Finished, never seen, empty: all are no-ops."""
    await completes(stub, request_id="done")

    answer = await stub.Abort(pb.AbortRequest(request_ids=["done", "never", ""]))

    assert answer == pb.AbortResponse()
    await check_canary(stub)
