"""Adapters in an engine: who gets which, beside whom, and what is cached of them."""

import asyncio
import os
import shutil
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace

import pytest

from tests.busy import until
from tests.contract.engines import MODEL, ROOM, running_engine, start, stop
from tests.model.adapters import write_adapter
from weft import LLM
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import BadRequest, ConfigError, NotFound
from weft.core.observe.metrics import Metrics, expose
from weft.core.values.kv_cache import BlockStored
from weft.core.values.types import LoRARequest, OutputKind, SamplingParams, StreamingInput
from weft.engine.clients.local_client import LocalClient
from weft.engine.clients.process_client import ProcessClient
from weft.engine.ipc.messages import AddLora
from weft.engine.start.configure import resolve
from weft.engine.weights.lora_loader import LoraLoader
from weft.model.open import open_model

SPEC = open_model(MODEL).spec
PROMPT = {"prompt_token_ids": list(range(100, 140))}
GREEDY = SamplingParams(
    temperature=0.0, max_tokens=8, ignore_eos=True, output_kind=OutputKind.FINAL_ONLY
)
engine = partial(running_engine, enable_lora=True)


def adapter(directory, name, **options):
    """An adapter on disk, as a request names it."""
    path = write_adapter(directory / name, SPEC, seed=ord(name[-1]), **options)
    return LoRARequest(lora_name=name, lora_int_id=ord(name[-1]), lora_path=str(path))


async def answer(client, lora_request=None, prompt=PROMPT, params=GREEDY):
    """The finished output."""
    stream = client.generate(prompt, params, "r", lora_request=lora_request)
    async with aclosing(stream) as outputs:
        async for output in outputs:
            if output.is_finished:
                return output
    raise AssertionError


async def tokens(client, lora_request=None, prompt=PROMPT, params=GREEDY):
    """Its tokens."""
    return (await answer(client, lora_request, prompt, params)).outputs[0].token_ids


@pytest.mark.parametrize("client_class", [LocalClient, ProcessClient])
async def test_several_adapters_answer_beside_the_model_as_alone(tmp_path, client_class):
    """On a thread and in a process; each gives something else, and the same whatever runs beside."""
    a, b = adapter(tmp_path, "a"), adapter(tmp_path, "b")
    wanted = [None, a, b, None, a]
    async with engine(client_class) as client:
        alone = [await tokens(client, one) for one in (None, a, b)]
        together = await asyncio.gather(*(tokens(client, one) for one in wanted))
        assert sorted(client.lora_requests) == ["a", "b"]
        assert await client.list_loras() == {ord("a"), ord("b")}
    assert together == [alone[0], alone[1], alone[2], alone[0], alone[1]]
    assert len({tuple(one) for one in alone}) == 3


@pytest.mark.parametrize("compute", ["native", "reference"])
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
async def test_every_runner_of_decoders_has_adapters(tmp_path, compute, quantization):
    """In C++ and in numpy, on weights as they are and on int8."""
    a = adapter(tmp_path, "a", targets=("q_proj", "down_proj", "lm_head"))
    wanted = [None, a, None]
    async with engine(compute=compute, quantization=quantization) as client:
        alone = [await tokens(client, one) for one in wanted]
        together = await asyncio.gather(*(tokens(client, one) for one in wanted))
    assert together == alone
    assert alone[0] != alone[1]


async def test_an_adapter_has_blocks_of_its_own(tmp_path):
    """Its own are found again; the model's are not, nor another adapter's."""
    a, b = adapter(tmp_path, "a"), adapter(tmp_path, "b")
    async with engine() as client:
        hits = [(await answer(client, one)).num_cached_tokens for one in (None, a, b, None, a, b)]
    assert hits == [0, 0, 0, 32, 32, 32]


async def test_an_adapter_that_was_loaded_again_meets_nothing_stale(tmp_path):
    """The same name and the same path with other weights: other tokens, and no hit in the cache."""
    a = adapter(tmp_path, "a")
    async with engine() as client:
        before = await tokens(client, a)
        write_adapter(tmp_path / "a", SPEC, seed=99)
        assert await client.add_lora(LoRARequest(**_fields(a), load_inplace=True))
        after = await answer(client, a)
        assert after.num_cached_tokens == 0
        assert after.outputs[0].token_ids != before
    async with engine() as fresh:
        assert await tokens(fresh, a) == after.outputs[0].token_ids


async def test_an_adapter_that_was_removed_and_added_meets_nothing_stale(tmp_path):
    """Without `load_inplace` too."""
    a = adapter(tmp_path, "a")
    async with engine() as client:
        before = await tokens(client, a)
        assert await client.remove_lora(a.lora_int_id)
        write_adapter(tmp_path / "a", SPEC, seed=99)
        assert await client.add_lora(a)
        after = await answer(client, a)
    assert after.num_cached_tokens == 0
    assert after.outputs[0].token_ids != before


def _fields(request):
    return {
        "lora_name": request.lora_name,
        "lora_int_id": request.lora_int_id,
        "lora_path": request.lora_path,
    }


async def test_more_adapters_than_may_be_loaded_take_turns(tmp_path):
    """Nobody is refused, and everybody gets what was asked for."""
    adapters = [adapter(tmp_path, name) for name in "abcd"]
    async with engine(max_loras=4) as client:
        expected = [await tokens(client, one) for one in adapters]
    async with engine(max_loras=1) as client:
        assert await asyncio.gather(*(tokens(client, one) for one in adapters * 2)) == expected * 2
        assert len(await client.list_loras()) == 1


async def test_the_load_counts_adapters(tmp_path):
    """Those in the engine, and how many may be."""
    a, b = adapter(tmp_path, "a"), adapter(tmp_path, "b")
    async with engine(max_loras=3) as client:
        counts = [_slots(await client.get_loads())]
        for one in (a, b):
            await client.add_lora(one)
            counts.append(_slots(await client.get_loads()))
        await client.remove_lora(a.lora_int_id)
        counts.append(_slots(await client.get_loads()))
    assert counts == [(0, 3), (1, 3), (2, 3), (1, 3)]


def _slots(loads):
    [load] = loads
    return load.num_loras, load.max_loras


async def test_a_request_keeps_its_adapter_when_that_is_removed(tmp_path):
    """It goes on to its end with the weights that it began with."""
    a = adapter(tmp_path, "a")
    params = SamplingParams(
        temperature=0.0, max_tokens=60, ignore_eos=True, output_kind=OutputKind.DELTA
    )
    async with engine() as client:
        whole = await tokens(
            client, a, params=SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        )
        seen = []
        async with aclosing(client.generate(PROMPT, params, "r", lora_request=a)) as outputs:
            async for output in outputs:
                if not seen:
                    assert await client.remove_lora(a.lora_int_id)
                seen += output.outputs[0].token_ids
        assert seen == whole
        assert await client.list_loras() == set()


async def test_closing_a_request_lets_its_adapter_go(tmp_path):
    """Another waits for the room of one whose caller leaves."""
    a, b = adapter(tmp_path, "a"), adapter(tmp_path, "b")
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    async with engine(max_loras=1, **ROOM) as client:
        stream = client.generate(PROMPT, endless, "r", lora_request=a)
        await anext(stream)
        waiting = asyncio.create_task(tokens(client, b))
        await until(lambda: client.num_active_requests == 2)
        assert not waiting.done()
        await stream.aclose()
        assert len(await waiting) == 8


async def test_an_abort_ends_a_request_that_waits_for_room(tmp_path):
    """It never reaches the engine, and ends as any other."""
    a, b = adapter(tmp_path, "a"), adapter(tmp_path, "b")
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    async with engine(max_loras=1, **ROOM) as client:
        stream = client.generate(PROMPT, endless, "first", lora_request=a)
        await anext(stream)
        waiting = asyncio.create_task(answer(client, b))
        await until(lambda: client.num_active_requests == 2)
        await client.abort("r")
        assert (await waiting).outputs[0].finish_reason == "abort"
        await stream.aclose()


async def test_pieces_of_a_prompt_have_the_adapter_too(tmp_path):
    """Each is answered with it."""
    a = adapter(tmp_path, "a")

    async def pieces():
        yield StreamingInput({"prompt_token_ids": PROMPT["prompt_token_ids"]})

    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    async with engine() as client:
        assert await tokens(client, a, pieces(), params) == await tokens(client, a)


async def test_events_and_metrics_name_the_adapter(tmp_path):
    """Routers go by both."""
    a = adapter(tmp_path, "a")
    metrics = Metrics()
    client = await start_with_metrics(metrics)
    try:
        events = client.subscribe_kv_events(0)
        stream = client.generate(
            PROMPT, SamplingParams(max_tokens=None, ignore_eos=True), "r", lora_request=a
        )
        await anext(stream)
        text = expose(metrics.registry).decode()
        await stream.aclose()
        assert 'running_lora_adapters="a",waiting_lora_adapters=""' in text
        assert 'max_lora="3"' in text
        stored = [e for e in (await anext(events)).events if isinstance(e, BlockStored)]
        assert {event.lora_name for event in stored} == {"a"}
        await events.aclose()
    finally:
        await stop(client)


async def start_with_metrics(metrics):
    """An engine that is observed."""
    checkpoint = open_model(ROOM["model"])
    options = EngineOptions(**ROOM, enable_lora=True, max_loras=3)
    return await LocalClient.start(checkpoint, resolve(options, checkpoint.card, 1 << 30), metrics)


@pytest.mark.parametrize("client_class", [LocalClient, ProcessClient])
async def test_what_cannot_be_loaded_is_refused_and_the_engine_goes_on(tmp_path, client_class):
    """A path that is not there or cannot be, a rank beyond the limit, a module that the model has not."""
    high = adapter(tmp_path, "h", rank=9)
    missing = LoRARequest(lora_name="m", lora_int_id=1, lora_path=str(tmp_path / "missing"))
    impossible = LoRARequest(lora_name="i", lora_int_id=2, lora_path=str(tmp_path / ("i" * 300)))
    other = adapter(tmp_path, "o", targets=("q_proj",), target_modules=["c_attn"])
    async with engine(client_class, max_lora_rank=8) as client:
        for request, kind, message in (
            (high, BadRequest, "--max-lora-rank is 8"),
            (missing, NotFound, f"'m' was not loaded: No adapter found for {tmp_path}/missing"),
            (impossible, BadRequest, "cannot be read .File name too long"),
            (other, BadRequest, "q_proj is not among target_modules"),
        ):
            with pytest.raises(kind, match=message):
                await client.add_lora(request)
            with pytest.raises(kind, match=message):
                await answer(client, request)
        assert not client.lora_requests
        assert len(await tokens(client)) == 8


class Replacing:
    """Adapters of a runner, whose files another program changes while they are packed."""

    spec = SPEC

    def __init__(self, change):
        self.change = change
        self.adapters = {}

    def add_adapter(self, adapter_id, adapter):
        self.adapters[adapter_id] = adapter
        self.change()

    def remove_adapter(self, adapter_id):
        del self.adapters[adapter_id]


@pytest.mark.parametrize("is_removed", [False, True])
def test_files_that_change_while_they_are_packed_are_not_taken_for_those_that_were_read(
    tmp_path, is_removed
):
    """What woke with them would answer with other weights; and what is in the runner can be removed again."""
    path = write_adapter(tmp_path / "a", SPEC)

    def change():
        if is_removed:
            shutil.rmtree(path)
        else:
            write_adapter(path, SPEC, rank=8)

    store = Replacing(change)
    model = SimpleNamespace(runner=SimpleNamespace(adapters=store), has_weights=True)
    options = EngineOptions(model=MODEL, enable_lora=True)
    loader = LoraLoader(model, resolve(options, open_model(MODEL).card, 1 << 30))
    assert loader.load(AddLora(1, 7, str(path))).is_done
    with pytest.raises(ConfigError, match=r"changed since|cannot be read"):
        loader.restore(model.runner)
    loader.remove(7)
    assert not store.adapters


async def test_an_adapter_larger_than_the_memory_is_refused_unread(tmp_path):
    """By the size of its file; the engine is not brought down by it."""
    a = adapter(tmp_path, "a")
    os.truncate(tmp_path / "a" / "adapter_model.safetensors", 1 << 42)
    async with engine() as client:
        with pytest.raises(BadRequest, match="bytes of memory, and"):
            await client.add_lora(a)
        assert len(await tokens(client)) == 8


async def test_an_engine_without_adapters_refuses_them(tmp_path):
    """By the name of the flag."""
    a = adapter(tmp_path, "a")
    async with engine(enable_lora=False) as client:
        with pytest.raises(BadRequest, match="--enable-lora"):
            await client.add_lora(a)
        with pytest.raises(BadRequest, match="--enable-lora"):
            await answer(client, a)


async def test_a_model_without_weights_takes_no_adapters():
    """Said at the start."""
    with pytest.raises(ConfigError, match="without LoRA adapters"):
        await start(LocalClient, model="embedded:echo", enable_lora=True)


async def test_the_death_of_the_engine_ends_who_waits_for_room(tmp_path):
    """As it ends everybody else."""
    a, b = adapter(tmp_path, "a"), adapter(tmp_path, "b")
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    client = await start(ProcessClient, enable_lora=True, max_loras=1, **ROOM)
    stream = client.generate(PROMPT, endless, "first", lora_request=a)
    await anext(stream)
    waiting = asyncio.create_task(answer(client, b))
    loading = asyncio.create_task(client.add_lora(adapter(tmp_path, "c")))
    await until(lambda: client.num_active_requests == 2)
    client._kill()
    for task in (waiting, loading):
        with pytest.raises(Exception, match="engine"):
            await task
    await stream.aclose()
    await client.wait_closed()


def test_python_callers_name_an_adapter_too(tmp_path):
    """`LLM.generate` loads what it is given."""
    a = adapter(tmp_path, "a")
    with LLM(MODEL, max_model_len=256, enable_lora=True) as llm:
        plain = llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
        changed = llm.generate(PROMPT, GREEDY, lora_request=a)[0].outputs[0].token_ids
    assert plain != changed
