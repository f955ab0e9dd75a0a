"""The fingerprint of a server: equal for servers with equal answers, and for no others."""

import grpc
import msgspec
import pytest

from tests.contract.engines import MODEL, local, resolved
from tests.doubles.fake_engine import FakeEngine
from tests.engine.test_lora import adapter
from tests.model.checkpoints import write_checkpoint
from tests.rpc.calls import channel_to, refusal, request
from weft.model.open import open_model
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.fingerprint import SETTINGS, Fingerprints
from weft.rpc.methods import FINGERPRINT_METADATA

# Settings that change no token: sizes, names, limits of queues, and features around the model.
CHANGE_NO_TOKEN = {
    "api_server_directory",
    "cache_config.block_bytes",
    "cache_config.enable_prefix_caching",
    "cache_config.num_blocks",
    "cache_config.states",
    "compute_config.num_threads",
    "data_parallel_rank",
    "data_parallel_size",
    "elastic_config",
    "engine_restarts",
    "kv_events_config",
    "kv_offloading_config",
    "kv_transfer_config",
    "lora_config",
    "items_config",  # media do not pass over gRPC
    "pooler_config",  # requests without tokens
    "profiler_config",
    "prompt_embeds_size",
    "ranks",
    "scheduler_config",
    "sounds_config",
    "stream_interval_ms",
    "weight_transfer_config",
    *(
        f"model_config.{name}"
        for name in (
            "architectures",  # the weights' digest has the model's spec
            "bos_token_id",  # the digest of the tokenizer has it
            "is_multimodal_model",
            "media",
            "model",
            "model_type",
            "packed_cache_bytes",
            "pad_token_id",
            "revision",
            "runner_type",
            "served_model_names",
            "speech",
        )
    ),
}


async def fingerprint_of(engine, reasoning_parser=None, files=None):
    """The fingerprint of an engine's model."""
    files = files or open_model(engine.model_config.model).tokenizer_files
    found = Fingerprints(engine, files, reasoning_parser)
    text = await found.refresh()
    await found.close()
    return text


def test_every_setting_is_of_the_fingerprint_or_changes_no_token():
    """A new setting must be put into one of the two lists."""
    _, config = resolved()
    settings = msgspec.to_builtins(config)
    parts = {name.partition(".")[0] for name in SETTINGS}
    names = set()
    for name, value in settings.items():
        names |= (
            {f"{name}.{inner}" for inner in value}
            if name in parts and isinstance(value, dict)
            else {name}
        )
    cache = {name for name in names if name.startswith("cache_config.")}
    assert cache
    assert names - set(SETTINGS) - CHANGE_NO_TOKEN == set()
    assert set(SETTINGS) <= names


async def test_equal_servers_have_equal_fingerprints():
    """Sizes of queues and pools differ between machines and change no token."""
    async with local() as one, local(num_gpu_blocks_override=32, max_num_seqs=2) as other:
        first = await fingerprint_of(one)
        assert first
        assert first == await fingerprint_of(other)


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8"},
        {"max_model_len": 128},
        {"model": f"{MODEL}&seed=2"},
        {"model": f"{MODEL.replace('layers=2', 'layers=1')}"},
    ],
)
async def test_a_server_with_other_tokens_has_another_fingerprint(options):
    """Any difference that can change a token counts."""
    async with local() as one, local(**options) as other:
        assert await fingerprint_of(one) != await fingerprint_of(other)


async def test_reasoning_and_tokenizer_count():
    """Constraints begin elsewhere, and stop strings are other tokens."""
    async with local() as engine:
        whole = await fingerprint_of(engine)
        assert whole != await fingerprint_of(engine, reasoning_parser="qwen3")
        assert whole != await fingerprint_of(engine, files={"tokenizer.json": b"{}"})


async def test_the_content_of_files_counts(tmp_path):
    """Not their names or times; files that have changed since they were loaded give no fingerprint."""
    one = write_checkpoint(tmp_path / "one")
    same = write_checkpoint(tmp_path / "same")
    async with (
        local(model=str(one), max_model_len=128) as first,
        local(model=str(same), max_model_len=128) as second,
    ):
        assert await fingerprint_of(first) == await fingerprint_of(second)
        [weights] = one.glob("*.safetensors")
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        assert await fingerprint_of(first) == ""
    async with (
        local(model=str(one), max_model_len=128) as changed,
        local(model=str(same), max_model_len=128) as second,
    ):
        assert await fingerprint_of(changed) != await fingerprint_of(second)


async def test_engines_of_another_kind_have_none():
    """Nothing is known of what they compute with."""
    assert await fingerprint_of(FakeEngine(), files={"tokenizer.json": b"{}"}) == ""


async def test_an_adapter_counts_for_its_requests(tmp_path):
    """By the content of its files."""
    lora = adapter(tmp_path, "a")
    async with local(enable_lora=True) as engine:
        found = Fingerprints(engine, open_model(MODEL).tokenizer_files, None)
        model = await found.refresh()
        assert found.of(None) == model
        assert found.of(lora) == ""
        await engine.add_lora(lora)
        await found.refresh()
        before = found.of(lora)
        assert before.startswith(f"{model}:")
        weights = tmp_path / "a" / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes() + b" ")
        await found.refresh()
        assert found.of(lora) != before
        await found.close()


async def test_answers_begin_with_the_fingerprint_once_it_is_known():
    """Nothing is read before a client asks for it."""
    async with local() as engine, channel_to(engine, open_model(MODEL).tokenizer_files) as channel:
        stub = VllmEngineStub(channel)
        assert FINGERPRINT_METADATA not in await headers_of(stub)
        await stub.GetServerInfo(pb.GetServerInfoRequest())
        assert FINGERPRINT_METADATA not in await headers_of(stub)
        info = await stub.GetServerInfo(pb.GetServerInfoRequest(weft_with_fingerprint=True))
        assert (await headers_of(stub))[FINGERPRINT_METADATA] == info.weft_fingerprint


async def headers_of(stub):
    """The metadata before an answer."""
    call = stub.Generate(request(max_tokens=1))
    headers = dict(await call.initial_metadata())
    async for _ in call:
        pass
    return headers


def given(*answers, **fields):
    """A resumption of a request."""
    return pb.WeftResumption(**{"answers": answers, "number": 1, "num_losses": 1, **fields})


TOKENS = pb.WeftGivenAnswer(token_ids=[5])


@pytest.mark.parametrize(
    ("resumption", "fields", "fault"),
    [
        (given(), {}, "must have n=1 answers, got 0"),
        (given(TOKENS, TOKENS), {}, "must have n=1 answers, got 2"),
        (given(pb.WeftGivenAnswer(has_ended=True)), {}, "every answer has ended"),
        (given(TOKENS, number=0), {}, "number must be from 1"),
        (given(TOKENS, num_losses=2_000_000), {}, "num_losses must be from 0"),
        (given(TOKENS), {"stream": False}, "needs stream=true"),
        (given(pb.WeftGivenAnswer(token_ids=[1, 2, 3])), {}, "fewer than max_tokens=3"),
        (given(pb.WeftGivenAnswer(token_ids=[400])), {}, "below 400"),
    ],
)
async def test_a_resumption_that_no_server_has_begun_is_refused(resumption, fields, fault):
    """The field is named, and the engine gets nothing."""
    async with local() as engine, channel_to(engine, open_model(MODEL).tokenizer_files) as channel:
        stub = VllmEngineStub(channel)
        message = request(**{"stream": True, "weft_resumption": resumption, **fields})
        status, detail = await refusal(stub.Generate(message))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert "weft_resumption" in detail
    assert fault in detail


async def test_a_resumption_of_another_server_is_refused():
    """Also while this server does not know its own fingerprint."""
    async with local() as engine, channel_to(engine, open_model(MODEL).tokenizer_files) as channel:
        stub = VllmEngineStub(channel)
        message = request(stream=True, weft_resumption=given(TOKENS, fingerprint="another"))
        for _ in range(2):
            status, detail = await refusal(stub.Generate(message))
            assert status is grpc.StatusCode.FAILED_PRECONDITION
            assert "other weights or settings" in detail
            await stub.GetServerInfo(pb.GetServerInfoRequest(weft_with_fingerprint=True))
