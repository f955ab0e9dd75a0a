"""Sleep: memory goes, the very bits come back, and nothing is answered without weights."""

import asyncio
from contextlib import aclosing

import numpy as np
import psutil
import pytest

from tests.busy import until
from tests.contract.engines import MODEL, stop
from tests.contract.engines import running_engine as engine
from tests.doubles.fake_runner import FakeRunner
from tests.doubles.standing_engine import only_when_told, standing_still
from tests.engine.test_lora import GREEDY as LORA_GREEDY
from tests.engine.test_lora import adapter, tokens
from tests.engine.test_lora import engine as lora_engine
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from weft import LLM
from weft.core.errors import FailedPrecondition
from weft.core.observe.metrics import Metrics, expose
from weft.core.values.types import FinishReason, PoolingParams, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.clients.process_client import ProcessClient

MIB = 1 << 20
LARGE = "embedded:random?layers=8&hidden=1024&heads=8&intermediate=3072&vocab=1000"
PROMPT = {"prompt_token_ids": list(range(100, 140))}
LONG = {"prompt_token_ids": [100 + i % 250 for i in range(200)]}
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)


async def answer(client, prompt=PROMPT, params=PARAMS, request_id="r"):
    """The finished answer, log-probabilities and all."""
    async with aclosing(client.generate(prompt, params, request_id)) as outputs:
        async for output in outputs:
            last = output
    return last.outputs[0]


async def test_memory_goes_back_to_the_system():
    """At most 150 MB and a tenth of what was there stay resident, at each level; then all of it comes back."""
    async with engine(ProcessClient, model=LARGE) as client:
        process = psutil.Process(client._child.process.pid)
        before = await answer(client, LONG)
        for level in (1, 2):
            awake = process.memory_info().rss
            assert awake > 400 * MIB
            await client.sleep(level)
            assert process.memory_info().rss <= 150e6 + awake / 10
            assert await client.wake_up()
            assert await answer(client, LONG) == before
        assert process.memory_info().rss > 400 * MIB


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8", "kv_cache_dtype": "int8"},
        {"compute": "reference"},
        {"model": "embedded:tiny"},
        {"model": "embedded:echo"},
    ],
    ids=str,
)
@pytest.mark.parametrize("level", [1, 2])
async def test_every_backend_wakes_bit_for_bit(options, level):
    """Log-probabilities included."""
    async with engine(**options) as client:
        before = await answer(client)
        for _ in range(2):
            await client.sleep(level)
            await client.wake_up()
            assert await answer(client) == before


async def test_a_model_that_pools_sleeps_too():
    """The same numbers come out."""

    async def embedding(client):
        params = PoolingParams(task="embed")
        async with aclosing(client.encode(PROMPT, params, "e")) as outputs:
            return [output.data async for output in outputs]

    async with engine(runner="pooling") as client:
        before = await embedding(client)
        await client.sleep(1)
        waiting = asyncio.create_task(embedding(client))
        await until(lambda: client.num_active_requests == 1)
        await client.wake_up()
        assert await waiting == before


def changed(directory):
    """Other weights in the same place, in a new file as downloads write it."""
    (directory / "model.safetensors").unlink()
    tensors = {name: np.flip(tensor).copy() for name, tensor in tensors_of().items()}
    return write_checkpoint(directory, tensors=tensors)


async def test_level_1_refuses_files_that_have_changed_and_level_2_takes_them(tmp_path):
    """The former brings back what was there or nothing; the latter serves what is there now."""
    path = write_checkpoint(tmp_path / "m")
    async with engine(model=str(path), max_model_len=128) as client:
        before = await answer(client)
        await client.sleep(1)
        changed(path)
        waiting = asyncio.create_task(answer(client))
        with pytest.raises(FailedPrecondition, match=r"model\.safetensors has changed"):
            await client.wake_up()
        assert await client.is_sleeping()
        await client.sleep(2, mode="keep")
        assert await client.wake_up()
        after = await waiting
    async with engine(model=str(path), max_model_len=128) as fresh:
        assert after == await answer(fresh)
    assert after != before


async def test_another_model_in_the_same_place_is_refused(tmp_path):
    """Requests, blocks and limits are those of the former."""
    path = write_checkpoint(tmp_path / "m")
    async with engine(model=str(path), max_model_len=128) as client:
        await client.sleep(2)
        config = {**CONFIG, "num_hidden_layers": CONFIG["num_hidden_layers"] + 1}
        (path / "model.safetensors").unlink()
        write_checkpoint(path, config)
        with pytest.raises(FailedPrecondition, match="is another model now"):
            await client.wake_up()
        (path / "model.safetensors").unlink()
        with pytest.raises(FailedPrecondition, match="no weights"):
            await client.wake_up()
        write_checkpoint(path)
        assert await client.wake_up()
        assert (await answer(client)).finish_reason is FinishReason.LENGTH


async def test_adapters_wake_with_the_model(tmp_path):
    """One that is added meanwhile waits for the weights that it changes."""
    a, b = adapter(tmp_path, "a"), adapter(tmp_path, "b")
    async with lora_engine() as client:
        alone = [await tokens(client, one) for one in (None, a)]
        await client.sleep(1)
        adding = asyncio.create_task(client.add_lora(b))
        waiting = asyncio.create_task(tokens(client, b))
        await asyncio.wait({adding}, timeout=0.05)
        assert not adding.done()
        await client.wake_up(["weights"])
        assert await adding
        await client.wake_up(["kv_cache"])
        assert [await tokens(client, one) for one in (None, a)] == alone
        of_b = await waiting
    async with lora_engine() as fresh:
        assert await tokens(fresh, b) == of_b


async def test_an_adapter_that_has_changed_is_not_woken(tmp_path):
    """It is named; without it the rest wakes."""
    a = adapter(tmp_path, "a")
    async with lora_engine() as client:
        alone = await tokens(client)
        await tokens(client, a)
        await client.sleep(1)
        (tmp_path / "a" / "adapter_model.safetensors").unlink()
        with pytest.raises(FailedPrecondition, match="adapter_model"):
            await client.wake_up()
        await client.remove_lora(a.lora_int_id)
        assert await client.wake_up()
        assert await tokens(client, None, PROMPT, LORA_GREEDY) == alone


async def test_a_model_that_cannot_come_back_does_not_leave(monkeypatch):
    """Who handed it over holds it still; and nothing is paused by the refusal."""
    config = (await _config()).vllm_config
    async with engine() as other:
        runner = FakeRunner(config.model_config.vocab_size)
        client = await LocalClient.start_with(runner, other.renderer, config)
        with pytest.raises(FailedPrecondition, match="handed over"):
            await client.sleep(1)
        assert not await client.is_sleeping()
        await client.sleep(0)
        assert await client.wake_up()
        await stop(client)


async def _config():
    async with engine() as client:
        return client


async def test_a_wait_that_could_not_end_is_refused():
    """Frozen requests end after the wake, so nobody can wait for them before."""
    async with engine() as client:
        with only_when_told(client):
            frozen = asyncio.create_task(
                answer(client, params=SamplingParams(max_tokens=150, ignore_eos=True))
            )
            await until(lambda: client._load.num_running == 1)
            await client.sleep(1, mode="keep")
        with pytest.raises(FailedPrecondition, match="cannot end while the engine sleeps"):
            await client.pause_generation(mode="wait")
        await client.wake_up()
        assert (await frozen).finish_reason is FinishReason.LENGTH


async def test_a_sleep_that_waits_can_be_called_off():
    """By a wake: it says that it did not sleep, and nothing was lost."""
    async with engine() as client:
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        with only_when_told(client):
            running = asyncio.create_task(answer(client, params=params))
            await until(lambda: client._load.num_running == 1)
            sleeping = asyncio.create_task(client.sleep(1, mode="wait"))
            await asyncio.sleep(0)
            assert await client.wake_up()
        with pytest.raises(FailedPrecondition, match="before it slept"):
            await sleeping
        assert (await running).finish_reason is FinishReason.LENGTH


async def test_the_state_of_sleep_is_a_metric():
    """One of three is 1."""
    metrics = Metrics()

    def state():
        lines = expose(metrics.registry).decode().splitlines()
        [line] = [
            x for x in lines if x.startswith("vllm:engine_sleep_state{") and x.endswith(" 1.0")
        ]
        return line.partition('sleep_state="')[2].partition('"')[0]

    async with engine(metrics=metrics) as client:
        await answer(client)
        states = [state()]
        for level in (1, 2):
            await client.sleep(level)
            states.append(state())
        await client.wake_up()
        states.append(state())
    assert states == ["awake", "weights_offloaded", "discard_all", "awake"]


async def test_a_long_wake_is_not_taken_for_a_stall():
    """It loads a model, which no ping can interrupt."""
    async with engine() as client:
        await client.sleep(1)
        with standing_still(client):
            waking = asyncio.create_task(client.wake_up())
            await until(lambda: bool(client._calls._loads))
            client._calls._pinged_at, client._calls.last_event_at = 1.0, 0.0
            await client.check_health()
        await waking


def test_an_llm_sleeps_and_wakes():
    """The same answers, without `async`."""
    with LLM(MODEL, max_model_len=256, num_gpu_blocks_override=64) as llm:
        before = llm.generate([PROMPT], PARAMS)[0].outputs
        llm.sleep(level=1)
        assert llm.wake_up(tags=["weights"]) is False
        assert llm.wake_up() is True
        assert llm.generate([PROMPT], PARAMS)[0].outputs == before
        assert llm.reset_prefix_cache() is True
