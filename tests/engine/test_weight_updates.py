"""Weights from outside: served whole or not at all, and never mixed with others."""

import asyncio
import gc
import os
import uuid
from contextlib import aclosing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.busy import until
from tests.contract.engines import running_engine
from tests.doubles.standing_engine import only_when_told, standing_still
from tests.engine.test_lora import tokens
from tests.model.adapters import write_adapter
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint, write_shards
from weft import LLM
from weft.core.errors import BadRequest, ConfigError, FailedPrecondition, Unsupported
from weft.core.values.types import FinishReason, LoRARequest, SamplingParams
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.engine.clients.local_client import LocalClient
from weft.engine.clients.process_client import ProcessClient
from weft.engine.weights.weight_transfer import read_weight_transfer
from weft.model.open import open_model

PROMPT = {"prompt_token_ids": list(range(100, 140))}
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)
LONG = {**CONFIG, "max_position_embeddings": 2048}
ROOM = {"max_model_len": 2048, "num_gpu_blocks_override": 256}
TIED = {**CONFIG, "tie_word_embeddings": True}
MIXTRAL = {
    **CONFIG,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
}
GPT_OSS = {
    **MIXTRAL,
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 8,
}
SEGMENTS = {"backend": "shared_memory"}


def others(config=CONFIG, scale=1.0):
    """Other weights for the same model."""
    return {name: np.flip(t).copy() * np.float32(scale) for name, t in tensors_of(config).items()}


def engine(path, client_class=LocalClient, transfer=SEGMENTS, **options):
    """An engine that takes weights."""
    settings = {"max_model_len": 128, "weight_transfer_config": transfer, **options}
    return running_engine(client_class, model=str(path), **settings)


async def answer(client, params=PARAMS, request_id="r"):
    """The finished answer, log-probabilities and all."""
    async with aclosing(client.generate(PROMPT, params, request_id)) as outputs:
        async for output in outputs:
            last = output
    return last.outputs[0]


async def answer_of(tmp_path, tensors, config=CONFIG, **options):
    """What a new engine with those weights says."""
    path = write_checkpoint(tmp_path / uuid.uuid4().hex, config, tensors)
    async with engine(path, **options) as client:
        return await answer(client)


@contextmanager
def segment(tensors):
    """The tensors in shared memory, one behind the other, and what is said of them."""
    path = Path("/dev/shm", f"weft-test-{uuid.uuid4().hex}")
    path.write_bytes(b"".join(tensor.tobytes() for tensor in tensors.values()))
    try:
        yield {
            "segment": path.name,
            "names": list(tensors),
            "dtype_names": [str(tensor.dtype) for tensor in tensors.values()],
            "shapes": [list(tensor.shape) for tensor in tensors.values()],
        }
    finally:
        path.unlink()


def overwrite(name):
    """Other numbers in the same place."""
    Path("/dev/shm", name).write_bytes(b"\xff" * 64)


async def begin(client):
    """As far as the first tensor."""
    await client.init_weight_transfer_engine(WeightTransferInitRequest())
    await client.start_weight_update()


async def send(client, **info):
    """One call with that."""
    await client.update_weights(WeightTransferUpdateRequest(info))


async def push(client, tensors):
    """A whole update through shared memory, in two calls; the segments are overwritten at once."""
    await begin(client)
    names = list(tensors)
    for part in (names[::2], names[1::2]):
        with segment({name: tensors[name] for name in part}) as info:
            await send(client, **info)
            overwrite(info["segment"])
    await client.finish_weight_update()


@pytest.mark.parametrize("client_class", [LocalClient, ProcessClient])
async def test_what_was_sent_is_served_bit_for_bit(client_class, tmp_path):
    """As by an engine that started with it, log-probabilities included; no prefix of the former is found."""
    path, sent = write_checkpoint(tmp_path / "m"), others()
    async with engine(path, client_class) as client:
        before = [await answer(client) for _ in range(2)]
        await push(client, sent)
        after = [await answer(client) for _ in range(2)]
        await push(client, tensors_of())
        assert await answer(client) == before[0]
    expected = await answer_of(tmp_path, sent)
    assert before[0] == before[1] != expected
    assert after == [expected] * 2


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (TIED, {}),
        (CONFIG, {"quantization": "int8", "kv_cache_dtype": "int8"}),
        (CONFIG, {"dtype": "bfloat16"}),
        (CONFIG, {"compute": "reference"}),
        (MIXTRAL, {"quantization": "int4"}),
        (GPT_OSS, {}),
    ],
    ids=["tied", "int8", "rounded", "reference", "experts", "experts in one tensor"],
)
async def test_every_form_of_weights_is_updated(config, options, tmp_path):
    """Packed, rounded and shared ones too."""
    path, sent = write_checkpoint(tmp_path / "m", config), others(config)
    async with engine(path, **options) as client:
        await push(client, sent)
        after = await answer(client)
    assert after == await answer_of(tmp_path, sent, config, **options)


@pytest.mark.parametrize("is_sharded", [False, True])
async def test_files_are_served_and_wake_again(is_sharded, tmp_path):
    """A file, or a directory of shards, below the one that is allowed; from there they come back after a sleep."""
    path, sent = write_checkpoint(tmp_path / "m"), others()
    allowed = tmp_path / "allowed"
    write_checkpoint(allowed, tensors=sent)
    if is_sharded:
        write_shards(allowed, sent)
    where = "." if is_sharded else "model.safetensors"
    transfer = {"backend": "safetensors", "directory": str(allowed)}
    expected = await answer_of(tmp_path, sent)
    async with engine(path, transfer=transfer) as client:
        former = await answer(client)
        await begin(client)
        await send(client, path=where)
        await client.finish_weight_update()
        assert await answer(client) == expected
        await client.sleep(1)
        await client.wake_up()
        assert await answer(client) == expected
        await client.sleep(2)
        await client.wake_up()
        assert await answer(client) == former


@pytest.mark.parametrize("path", ["../m", "/etc", "link", "nothing", "\0", "x" * 5000, ""])
async def test_paths_outside_are_refused_like_those_of_nothing(path, tmp_path):
    """By name, by dots and by links."""
    model = write_checkpoint(tmp_path / "m")
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to(model)
    transfer = {"backend": "safetensors", "directory": str(allowed)}
    async with engine(model, transfer=transfer) as client:
        await begin(client)
        with pytest.raises(BadRequest, match=r"update_info"):
            await send(client, path=path)
        assert (await answer(client)).finish_reason is FinishReason.LENGTH


async def test_a_shard_that_leads_outside_is_refused(tmp_path):
    """The directory is inside, a file of it is not."""
    model = write_checkpoint(tmp_path / "m")
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "model.safetensors").symlink_to(model / "model.safetensors")
    transfer = {"backend": "safetensors", "directory": str(allowed)}
    async with engine(model, transfer=transfer) as client:
        await begin(client)
        with pytest.raises(FailedPrecondition, match="leads out of"):
            await send(client, path=".")


async def test_an_engine_that_is_about_to_sleep_takes_no_weights(tmp_path):
    """Who was told that it sleeps is right: what it wakes with was there when that was said."""
    async with engine(write_checkpoint(tmp_path / "m")) as client:
        before = await answer(client)
        await begin(client)
        with segment(others()) as info:
            await send(client, **info)
        with standing_still(client):  # it will take both at once
            sleeping = asyncio.create_task(client.sleep(1))
            await until(lambda: len(client._calls._pending) == 1)
            finishing = asyncio.create_task(client.finish_weight_update())
            await until(lambda: len(client._calls._pending) == 2)
        await sleeping
        with pytest.raises(FailedPrecondition, match="sleeps"):
            await finishing
        await client.wake_up()
        assert await answer(client) == before


def spoilt(info, **changes):
    """The same with other values; None takes a key away."""
    return {k: v for k, v in {**info, **changes}.items() if v is not None}


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"names": ["model.norm.wait"]}, "is not a tensor of this model"),
        ({"shapes": [[17]]}, r"float32 \[17\]; the checkpoint has float32 \[16\]"),
        ({"dtype_names": ["float16"]}, r"float16 \[16\]; the checkpoint has float32"),
        ({"dtype_names": ["float64"]}, "dtype_names must be of float32"),
        ({"shapes": [[16], [16]]}, "shapes has 2 entries, and names has 1"),
        ({"shapes": [[1 << 40, 1 << 40]]}, "too large"),
        ({"shapes": [[-16]]}, "update_info"),
        ({"offsets": [8]}, "ends at byte 72 of .* which has 64"),
        ({"segment": "../../etc/passwd"}, "without a path"),
        ({"segment": "weft-nothing"}, "cannot be read"),
        ({"segment": None}, "segment"),
        ({"names": []}, "names"),
        ({"handles": ["gASVKAAAAAAAAAC="]}, "handles"),
    ],
    ids=str,
)
async def test_what_does_not_fit_is_refused_before_a_byte_is_taken(changes, match, tmp_path):
    """By name; the update is over where the engine refused it, and the former weights go on."""
    async with engine(write_checkpoint(tmp_path / "m")) as client:
        before = await answer(client)
        await begin(client)
        with (
            segment({NORM: tensors_of()[NORM]}) as info,
            pytest.raises((BadRequest, FailedPrecondition), match=match) as refused,
        ):
            await send(client, **spoilt(info, **changes))
        if refused.type is FailedPrecondition:
            with pytest.raises(FailedPrecondition, match="no weight update is open"):
                await client.finish_weight_update()
        assert await answer(client) == before


async def not_a_number(client):
    """One value of one tensor."""
    sent = others()
    sent[NORM][3] = np.nan
    await push(client, sent)


async def missing(client):
    """All but one."""
    sent = others()
    del sent[NORM]
    await push(client, sent)


async def twice(client):
    """The same tensor in two calls."""
    await begin(client)
    with segment({NORM: others()[NORM]}) as info:
        await send(client, **info)
        await send(client, **info)


@pytest.mark.parametrize(
    ("failing", "match"),
    [
        (not_a_number, rf"{NORM} holds NaN"),
        (missing, rf"incomplete: {NORM} of 21 tensors"),
        (twice, "sent twice"),
    ],
)
async def test_an_update_that_fails_changes_nothing(failing, match, tmp_path):
    """The former weights go on, prefixes and all; the next update is served."""
    async with engine(write_checkpoint(tmp_path / "m")) as client:
        before = await answer(client)
        with pytest.raises(FailedPrecondition, match=match):
            await failing(client)
        assert await answer(client) == before
        await push(client, others())
        assert await answer(client) != before


async def test_a_file_that_changes_while_it_is_sent_is_refused(tmp_path):
    """What is served is one file, and no mixture of two."""
    model = write_checkpoint(tmp_path / "m")
    transfer = {"backend": "safetensors", "directory": str(tmp_path)}
    save_file(others(), tmp_path / "new.safetensors")
    async with engine(model, transfer=transfer) as client:
        before = await answer(client)
        await begin(client)
        await send(client, path="new.safetensors")
        (tmp_path / "new.safetensors").unlink()
        with pytest.raises(FailedPrecondition, match=r"new\.safetensors"):
            await client.finish_weight_update()
        assert await answer(client) == before


async def test_steps_out_of_turn_are_refused(tmp_path):
    """Each names the one that is missing; a sender that comes anew begins anew."""
    async with engine(write_checkpoint(tmp_path / "m")) as client:
        with pytest.raises(FailedPrecondition, match="init_weight_transfer_engine has not"):
            await client.start_weight_update()
        with pytest.raises(BadRequest, match="Invalid init_info for shared_memory"):
            await client.init_weight_transfer_engine(WeightTransferInitRequest({"port": 1}))
        await client.init_weight_transfer_engine(WeightTransferInitRequest())
        with pytest.raises(FailedPrecondition, match="start_weight_update opens one"):
            await client.finish_weight_update()
        with pytest.raises(BadRequest, match="is_checkpoint_format"):
            await client.start_weight_update(is_checkpoint_format=False)
        await client.start_weight_update()
        with pytest.raises(FailedPrecondition, match="open already"):
            await client.start_weight_update()
        await begin(client)


async def running(client, num_tokens=500):
    """A request that is being answered; the engine is to be held, or it may have been answered."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    task = asyncio.create_task(answer(client, params, "running"))
    await until(lambda: client._load.num_running == 1)
    return task, params


async def test_weights_do_not_change_under_a_request(tmp_path):
    """Unless somebody has said what becomes of it: with "wait" it ends with the weights it began with."""
    async with engine(write_checkpoint(tmp_path / "m", LONG), **ROOM) as client:
        with only_when_told(client):
            task, params = await running(client)
            with pytest.raises(FailedPrecondition, match="pause_generation first"):
                await push(client, others())
        before = await task
        with only_when_told(client):
            task, _ = await running(client)
            pausing = asyncio.create_task(client.pause_generation(mode="wait"))
            await until(lambda: client.controls._num_pausing)
        await pausing
        later = asyncio.create_task(answer(client, params, "later"))
        await push(client, others())
        await client.resume_generation()
        assert await task == before
        assert await later != before


async def test_a_frozen_request_goes_on_with_the_new_weights(tmp_path):
    """What it has said stays; what it says then is what the new weights say after that, and nothing else."""
    path, sent = write_checkpoint(tmp_path / "m", LONG), others()
    async with engine(path, **ROOM) as client:
        with only_when_told(client):
            task, _ = await running(client)
            await client.pause_generation(mode="keep", clear_cache=False)
        num_old, _ = next(iter(client._requests.open)).stream.progress(0)
        await push(client, sent)
        await client.resume_generation()
        said = (await task).token_ids
    prompt = {"prompt_token_ids": PROMPT["prompt_token_ids"] + said[:num_old]}
    fresh = write_checkpoint(tmp_path / "fresh", LONG, sent)
    async with engine(fresh, **ROOM) as client:
        rest = SamplingParams(temperature=0.0, max_tokens=500 - num_old, ignore_eos=True)
        async with aclosing(client.generate(prompt, rest, "rest")) as outputs:
            outputs = [output async for output in outputs]
    assert outputs[-1].outputs[0].token_ids == said[num_old:]


async def test_adapters_apply_to_the_new_weights(tmp_path):
    """As on an engine that started with these."""
    path, sent = write_checkpoint(tmp_path / "m"), others()
    where = write_adapter(tmp_path / "a", open_model(str(path)).spec, seed=1)
    one = LoRARequest(lora_name="a", lora_int_id=1, lora_path=str(where))
    async with engine(path, enable_lora=True) as client:
        await tokens(client, one)
        await push(client, sent)
        after = [await tokens(client, which) for which in (None, one)]
    fresh = write_checkpoint(tmp_path / "fresh", tensors=sent)
    async with engine(fresh, enable_lora=True) as client:
        assert after == [await tokens(client, which) for which in (None, one)]


async def test_pushed_weights_are_not_forgotten_by_a_sleep(tmp_path):
    """Level 1 would have to bring them back, and no file has them; after level 2 it is the checkpoint again."""
    async with engine(write_checkpoint(tmp_path / "m")) as client:
        before = await answer(client)
        await push(client, others())
        with pytest.raises(FailedPrecondition, match="use level 2"):
            await client.sleep(1)
        assert not await client.is_sleeping()
        await client.sleep(2)
        with pytest.raises(FailedPrecondition, match="wake_up its weights first"):
            await push(client, others())
        assert await client.wake_up(["weights"]) is False
        await push(client, others())
        await client.wake_up(["kv_cache"])
        assert await answer(client) != before
        await client.sleep(2)
        await client.wake_up()
        assert await answer(client) == before


async def test_nothing_stays_of_what_was_staged(tmp_path):
    """Neither of updates that were served nor of those that were not."""

    def staged():
        links = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return [link for link in links if "weft-weights" in link]

    gc.collect()  # runners of other tests that compute with what they mapped
    assert not staged()
    async with engine(write_checkpoint(tmp_path / "m")) as client:
        await push(client, others())
        with pytest.raises(FailedPrecondition):
            await missing(client)
        assert not staged()


async def test_without_a_backend_nothing_is_taken(tmp_path):
    """Nor from a model that has no names for its weights."""
    async with engine(write_checkpoint(tmp_path / "m"), transfer=None) as client:
        with pytest.raises(Unsupported, match="--weight-transfer-config"):
            await client.init_weight_transfer_engine(WeightTransferInitRequest())
    async with engine("embedded:random") as client:
        with pytest.raises(FailedPrecondition, match="safetensors"):
            await client.init_weight_transfer_engine(WeightTransferInitRequest())


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ('{"backend": "nccl"}', "nccl"),
        ("{}", "backend"),
        ('{"backend": "safetensors"}', "directory"),
        ('{"backend": "safetensors", "directory": "/nonexistent"}', "/nonexistent"),
        ('{"backend": "shared_memory", "directory": "/tmp"}', "directory"),
        ('{"backend": "shared_memory", "port": 1}', "port"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused(given, match):
    """At the start, by key."""
    with pytest.raises(ConfigError, match=rf"--weight-transfer-config: .*{match}"):
        read_weight_transfer(given)


def test_an_llm_is_updated(tmp_path):
    """Without `async`."""
    path = write_checkpoint(tmp_path / "m")
    save_file(others(), tmp_path / "new.safetensors")
    transfer = {"backend": "safetensors", "directory": str(tmp_path)}
    with LLM(str(path), weight_transfer_config=transfer, num_gpu_blocks_override=32) as llm:
        before = llm.generate([PROMPT], PARAMS)[0].outputs
        llm.init_weight_transfer_engine()
        llm.start_weight_update()
        llm.update_weights({"path": "new.safetensors"})
        llm.finish_weight_update()
        assert llm.generate([PROMPT], PARAMS)[0].outputs != before
