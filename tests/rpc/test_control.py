"""`vllm.Control`: facts, adapters, pause and sleep, weights; and who may call what."""

import asyncio
import json
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from msgspec import structs
from safetensors.numpy import save_file

from tests.busy import PATIENCE_S
from tests.contract.engines import MODEL, local, running_engine
from tests.doubles.fake_engine import FakeEngine, make_config
from tests.engine.test_weight_updates import others
from tests.model.adapters import write_adapter
from tests.model.checkpoints import write_checkpoint
from tests.rpc.calls import PROMPT, TOKENIZER_FILES, begin, channel_to, refusal
from weft import __version__
from weft.core.config.engine import LoraConfig
from weft.core.config.ranks import RanksConfig
from weft.core.engine_info import EngineInfo
from weft.core.errors import BadRequest
from weft.core.values.kv_cache import KvEventsConfig
from weft.core.values.types import LoRARequest
from weft.core.values.weight_transfer import WeightTransferConfig
from weft.model.open import open_model
from weft.pb import vllm_control_pb2 as pb
from weft.pb import vllm_inference_pb2
from weft.pb.vllm_control_pb2_grpc import ControlStub
from weft.pb.vllm_inference_pb2_grpc import InferenceStub
from weft.rpc.auth import ACCESS_BY_VLLM_METHOD, OPERATOR_CALLS, Access
from weft.rpc.convert.control_info import to_control_server_info, to_kv_event_sources
from weft.rpc.convert.json_objects import MAX_JSON_BYTES, from_json
from weft.rpc.methods import CONTROL_METHODS, INFERENCE_METHODS, VLLM_REFUSALS

ADMIN = (("authorization", "Bearer admin"),)
USER = (("authorization", "Bearer user"),)
KEYS = {"api_keys": ("user",), "control_api_keys": ("admin",)}
Status = grpc.StatusCode


class Operator:
    """The generated client, with a control key on every call."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ControlStub(channel)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._stub, name)
        return lambda message: call(message, metadata=ADMIN)


# -- facts ------------------------------------------------------------------------------------


async def test_facts_of_the_server(channel: grpc.aio.Channel):
    """What orchestrators plan by; the id of the instance is new at each start and stays."""
    control = ControlStub(channel)
    info = await control.GetServerInfo(pb.GetServerInfoRequest())
    again = await control.GetServerInfo(pb.GetServerInfoRequest())
    assert info.instance_id == again.instance_id != ""
    assert (info.engine_version, info.api_version, info.proto_version) == (
        __version__,
        "vllm",
        "0.6.0",
    )
    assert (info.max_model_len, info.kv_block_size, info.total_kv_blocks) == (256, 16, 64)
    assert (info.max_running_requests, info.max_batched_tokens, info.max_loras) == (8, 64, 0)
    assert info.effective_attention_block_size == 16
    assert info.parallelism.data_parallel_size_local == 1
    assert not info.rl_capabilities.weight_transfer_enabled


def test_facts_of_several_engines():
    """Blocks of the engines here; ranks of all."""
    config = structs.replace(
        make_config(),
        data_parallel_size=8,
        ranks=RanksConfig(start=4, num_local=2),
        lora_config=LoraConfig(max_loras=3, max_lora_rank=8),
        weight_transfer_config=WeightTransferConfig(backend="safetensors", directory="/w"),
    )
    info = to_control_server_info(EngineInfo.of(config), "id")
    ranks, abilities = info.parallelism, info.rl_capabilities
    assert (ranks.data_parallel_size, ranks.world_size) == (8, 8)
    assert (ranks.data_parallel_rank, ranks.data_parallel_size_local) == (4, 2)
    assert (info.total_kv_blocks, info.max_loras) == (128, 3)
    assert abilities.weight_transfer_enabled
    assert abilities.weight_transfer_backend == "safetensors"


async def test_facts_of_the_model():
    """Names, and what a request may hold."""
    config = make_config(served_model_names=("one", "two"))
    config = structs.replace(config, lora_config=LoraConfig(max_loras=1, max_lora_rank=8))
    engine = FakeEngine(config)
    async with channel_to(engine, TOKENIZER_FILES, reasoning_parser="qwen3") as channel:
        model = await ControlStub(channel).GetModelInfo(pb.GetModelInfoRequest())
    assert model == pb.ModelInfo(
        model_id="fake",
        served_model_name="one",
        served_model_aliases=["two"],
        supports_text_input=True,
        supports_token_ids_input=True,
        supports_lora=True,
        reasoning_parser="qwen3",
    )


async def test_without_a_tokenizer_there_is_no_text():
    """Token ids are taken all the same."""
    async with channel_to(FakeEngine(), {}) as channel:
        model = await ControlStub(channel).GetModelInfo(pb.GetModelInfoRequest())
    assert (model.supports_text_input, model.supports_token_ids_input) == (False, True)


async def test_event_sources_are_those_of_the_flag(channel: grpc.aio.Channel):
    """None without --kv-events-config; else one for each engine here, at its own port."""
    none = await ControlStub(channel).GetKvEventSources(pb.GetKvEventSourcesRequest())
    assert list(none.sources) == []
    events = KvEventsConfig(
        endpoint="tcp://*:5557",
        binds=True,
        replay_endpoint="tcp://127.0.0.1:6000",
        buffer_steps=10,
        hwm=20,
        topic="kv",
    )
    config = structs.replace(make_config(), data_parallel_size=2, kv_events_config=events)
    first, second = to_kv_event_sources(config)
    assert first == pb.KvEventSource(
        transport="zmq",
        endpoint="tcp://*:5557",
        topic="kv",
        replay_endpoint="tcp://127.0.0.1:6000",
        data_parallel_rank=0,
        encoding="msgpack",
        schema_version=1,
        buffer_steps=10,
        hwm=20,
    )
    assert (second.endpoint, second.replay_endpoint) == ("tcp://*:5558", "tcp://127.0.0.1:6001")
    without_replay = structs.replace(events, replay_endpoint=None)
    [only] = to_kv_event_sources(structs.replace(make_config(), kv_events_config=without_replay))
    assert only.replay_endpoint == ""


# -- adapters ---------------------------------------------------------------------------------


async def test_adapters_come_and_go(tmp_path):
    """Loaded from a directory of the server, listed by name, named by requests, and forgotten."""
    path = str(write_adapter(tmp_path / "a", open_model(MODEL).spec))
    asked = vllm_inference_pb2.GenerateRequest(
        token_ids={"ids": [*range(100, 120)]},
        stopping={"max_new_tokens": 8, "ignore_eos": True},
        response={"output_token_ids": True},
    )
    async with (
        local(enable_lora=True, max_loras=2) as engine,
        channel_to(engine, **KEYS, allow_runtime_lora_updating=True) as channel,
    ):
        operator, inference = Operator(channel), InferenceStub(channel)
        for name in ("sql", "another"):
            loaded = await operator.LoadLora(pb.LoadLoraRequest(lora_name=name, source_path=path))
            assert (loaded.adapter.lora_name, loaded.adapter.source_path) == (name, path)
            assert loaded.adapter.lora_id > 0
        listed = await ControlStub(channel).ListLoras(pb.ListLorasRequest(), metadata=USER)
        assert [one.lora_name for one in listed.adapters] == ["another", "sql"]
        plain = await inference.Generate(asked, metadata=USER)
        asked.lora_name = "sql"
        changed = await inference.Generate(asked, metadata=USER)
        assert list(changed.outputs.token_ids) != list(plain.outputs.token_ids)
        again = operator.LoadLora(pb.LoadLoraRequest(lora_name="sql", source_path=path))
        assert (await refusal(again))[0] is Status.ALREADY_EXISTS
        gone = await operator.UnloadLora(pb.UnloadLoraRequest(lora_name="sql"))
        assert gone.adapter.lora_name == "sql"
        unknown = operator.UnloadLora(pb.UnloadLoraRequest(lora_name="sql"))
        assert (await refusal(unknown))[0] is Status.NOT_FOUND
        for bad in ("here", ""):
            call = operator.LoadLora(pb.LoadLoraRequest(lora_name="x", source_path=bad))
            code, details = await refusal(call)
            assert (code, "source_path must" in details) == (Status.INVALID_ARGUMENT, True)


async def test_a_tenant_lists_its_own_adapters(tmp_path):
    """Others' names are not shown."""
    keys = tmp_path / "keys.json"
    keys.write_text('{"tenants": [{"name": "a", "keys": ["user"], "adapters": ["mine"]}]}')
    loras = {
        name: LoRARequest(lora_name=name, lora_int_id=number, lora_path="/a")
        for number, name in enumerate(("mine", "other"), start=1)
    }

    class WithAdapters(FakeEngine):
        lora_requests = loras

    async with channel_to(WithAdapters(), api_key_file=keys) as channel:
        listed = await ControlStub(channel).ListLoras(pb.ListLorasRequest(), metadata=USER)
    assert list(listed.adapters) == [pb.LoraAdapter(lora_id=1, lora_name="mine", source_path="/a")]


# -- pause and sleep --------------------------------------------------------------------------


async def test_pause_and_resume(engine: FakeEngine):
    """Whoever may not pause may still ask whether it is paused."""
    async with channel_to(engine, **KEYS) as channel:
        operator, control = Operator(channel), ControlStub(channel)
        for mode in (pb.PAUSE_MODE_UNSPECIFIED, pb.PAUSE_MODE_WAIT, pb.PAUSE_MODE_KEEP):
            await operator.PauseGeneration(pb.PauseGenerationRequest(mode=mode))
            state = await control.IsPaused(pb.IsPausedRequest(), metadata=USER)
            assert state.paused
            await operator.ResumeGeneration(pb.ResumeGenerationRequest())
        state = await control.IsPaused(pb.IsPausedRequest(), metadata=USER)
        assert not state.paused
        code, details = await refusal(operator.PauseGeneration(pb.PauseGenerationRequest(mode=9)))
    assert (code, "mode must be one of abort, wait, keep" in details) == (
        Status.INVALID_ARGUMENT,
        True,
    )


async def test_a_pause_treats_requests_in_flight_as_its_mode_says(engine: FakeEngine):
    """Without a mode they are aborted; with KEEP they go on after it."""
    async with channel_to(engine, **KEYS) as channel:
        operator, inference = Operator(channel), InferenceStub(channel)
        for mode, reason in ((None, "ABORTED"), (pb.PAUSE_MODE_KEEP, "LENGTH")):
            engine.hold()
            asked = vllm_inference_pb2.GenerateRequest(
                token_ids={"ids": PROMPT}, stopping={"max_new_tokens": 2}
            )
            call = asyncio.ensure_future(_answer(inference.Generate(asked, metadata=USER)))
            async with asyncio.timeout(PATIENCE_S):
                await engine.wait_for_open(1)
                await operator.PauseGeneration(pb.PauseGenerationRequest(mode=mode))
                await operator.ResumeGeneration(pb.ResumeGenerationRequest())
                await engine.run_freely()
                end = (await call).outputs.finish_info
            assert vllm_inference_pb2.FinishInfo.FinishReason.Name(end.finish_reason) == reason


async def _answer(call: Any) -> Message:
    return await call


async def test_sleep_and_wake():
    """All of the memory at once, or part by part."""
    async with (
        local() as engine,
        channel_to(engine, open_model(MODEL).tokenizer_files, **KEYS) as channel,
    ):
        operator = Operator(channel)
        await operator.Sleep(pb.SleepRequest())
        asked = ControlStub(channel).IsSleeping(pb.IsSleepingRequest(), metadata=USER)
        assert (await asked).sleeping
        await operator.WakeUp(pb.WakeUpRequest(tags=["weights"]))
        assert await engine.is_sleeping()
        await operator.WakeUp(pb.WakeUpRequest())
        assert not await engine.is_sleeping()
        for message, name in (
            (pb.SleepRequest(level=3), "level"),
            (pb.WakeUpRequest(tags=["x"]), "tags"),
        ):
            call = operator.Sleep if name == "level" else operator.WakeUp
            code, details = await refusal(call(message))
            assert (code, name in details) == (Status.INVALID_ARGUMENT, True)


# -- weights ----------------------------------------------------------------------------------


async def test_weights_from_outside(tmp_path):
    """Announced, sent as a file, and served whole."""
    save_file(others(), tmp_path / "new.safetensors")
    served = write_checkpoint(tmp_path / "served")
    expected = write_checkpoint(tmp_path / "expected", tensors=others())
    asked = vllm_inference_pb2.GenerateRequest(
        token_ids={"ids": PROMPT},
        stopping={"max_new_tokens": 8, "ignore_eos": True},
        response={"output_token_ids": True},
    )
    transfer = {"backend": "safetensors", "directory": str(tmp_path)}
    async with (
        running_engine(model=str(expected), max_model_len=128) as engine,
        channel_to(engine, {}) as channel,
    ):
        wanted = await InferenceStub(channel).Generate(asked)
    async with (
        running_engine(
            model=str(served), max_model_len=128, weight_transfer_config=transfer
        ) as engine,
        channel_to(engine, {}, **KEYS) as channel,
    ):
        operator, inference = Operator(channel), InferenceStub(channel)
        await operator.InitWeightTransferEngine(pb.InitWeightTransferEngineRequest())
        await operator.StartWeightUpdate(pb.StartWeightUpdateRequest())
        path = json.dumps({"path": str(tmp_path / "new.safetensors")}).encode()
        await operator.UpdateWeights(pb.UpdateWeightsRequest(update_info_json=path))
        with_version = pb.FinishWeightUpdateRequest(weight_version="2")
        code, details = await refusal(operator.FinishWeightUpdate(with_version))
        assert code is Status.INVALID_ARGUMENT
        assert "weight_version must be absent" in details
        before = await inference.Generate(asked, metadata=USER)
        await operator.FinishWeightUpdate(pb.FinishWeightUpdateRequest())
        after = await inference.Generate(asked, metadata=USER)
    assert list(before.outputs.token_ids) != list(wanted.outputs.token_ids)
    assert list(after.outputs.token_ids) == list(wanted.outputs.token_ids)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_bytes_that_hold_no_json_object_are_refused(data: bytes):
    """By the field's name."""
    with pytest.raises(BadRequest, match="update_info_json must be a JSON object"):
        from_json("update_info_json", data)


def test_a_json_object_has_a_bound():
    """By its bytes, before it is read."""
    with pytest.raises(BadRequest, match="takes at most"):
        from_json("init_info_json", b" " * (MAX_JSON_BYTES + 1))


# -- who may call what, and what is refused to all -------------------------------------------


@pytest.mark.parametrize("name", sorted(CONTROL_METHODS))
async def test_calls_that_change_the_engine_need_a_control_key(name: str):
    """Without any key on the server they are off, as over HTTP; the others are then open."""
    method, is_operators = CONTROL_METHODS[name], name in OPERATOR_CALLS
    kinds = [
        ({}, (), Status.PERMISSION_DENIED),
        ({"api_keys": ("user",)}, USER, Status.PERMISSION_DENIED),
        (KEYS, (), Status.UNAUTHENTICATED),
        (KEYS, USER, Status.UNAUTHENTICATED),
    ]
    for keys, metadata, expected in kinds:
        async with channel_to(FakeEngine(), **keys) as channel:
            code = await outcome(begin(channel, method, metadata=metadata))
        is_without_key = keys and not metadata
        if is_operators:
            assert code is expected
        else:
            assert (code is Status.UNAUTHENTICATED) is bool(is_without_key)
    access = ACCESS_BY_VLLM_METHOD.get(name, Access.API)
    assert (access is Access.CONTROL) is is_operators


async def outcome(call: Any) -> Status:
    """How a call ends."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return Status.OK


@pytest.mark.parametrize("name", sorted(VLLM_REFUSALS))
async def test_a_refusal_is_as_the_reference_says(name: str):
    """The status that is listed, and a sentence."""
    method = (CONTROL_METHODS | INFERENCE_METHODS)[name]
    message = method.request_type()
    if name in INFERENCE_METHODS:
        message.text = "a"
    if name == "UpdateWeights":
        message.update_info_json = b"{}"
    options = {"runner": "pooling"} if name in INFERENCE_METHODS else {}
    files = open_model(MODEL).tokenizer_files
    async with (
        local(**options) as engine,
        channel_to(engine, files, control_api_keys=("admin",)) as channel,
    ):
        call = begin(channel, method, message.SerializeToString(), metadata=ADMIN)
        status, detail = await refusal(call)
    assert status is VLLM_REFUSALS[name][0]
    assert " " in detail
