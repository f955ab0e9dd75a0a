"""An engine with a second tier: the same answers as without one, whatever happens between them."""

import random
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.engine_thread import EngineThread
from tests.doubles.fake_runner import FakeRunner, logits_after
from tests.doubles.stepping import make_config, make_engine, make_request
from tests.engine.test_kv_tier import wait
from tests.model.adapters import write_adapter
from weft import LLM
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvOffloadingConfig,
    Medium,
)
from weft.core.values.types import (
    FinishReason,
    LoRARequest,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.engine.ipc.messages import Abort, Add, Ping, ResetPrefixCache, StepOutput
from weft.engine.kv.kv_tier import KvTier
from weft.engine.kv.kv_tier_stores import DirectoryBlocks, MemoryBlocks
from weft.engine.start.fit import fit
from weft.model.open import open_model

MODEL = "embedded:random?layers=3&hidden=64&heads=4&kv_heads=2&intermediate=96&vocab=300"
MEMORY = KvOffloadingConfig(num_bytes=1 << 20, path=None)


def mixed(number: int):
    """Prompts of eight beginnings, and parameters of every kind; more than a pool of 30 blocks holds."""
    draw = random.Random(7)
    beginnings = [[draw.randrange(5, 250) for _ in range(100)] for _ in range(8)]
    extras = [
        {},
        {"temperature": 0.9, "seed": 5, "top_p": 0.9},
        {"n": 2, "temperature": 1.0, "seed": 6},
        {"prompt_logprobs": 1},
        {"structured_outputs": StructuredOutputsParams(regex="[a-c]{3,9}")},
        {"min_tokens": 3, "repetition_penalty": 1.3},
    ]
    tails = [[draw.randrange(5, 250) for _ in range(draw.randrange(1, 40))] for _ in range(number)]
    prompts = [{"prompt_token_ids": beginnings[i % 8] + tails[i]} for i in range(number)]
    params = [
        SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "logprobs": 2, **extras[i % 6]})
        for i in range(number)
    ]
    return prompts, params


def every_third(request: LoRARequest, number: int) -> list[LoRARequest | None]:
    return [None if i % 3 else request for i in range(number)]


def adapter(directory: Path) -> LoRARequest:
    path = write_adapter(directory / "adapter", open_model(MODEL).spec, seed=1)
    return LoRARequest(lora_name="adapter", lora_int_id=1, lora_path=str(path))


def threads_of(model: str) -> int | None:
    """The reference, which computes gated delta nets, leaves them to numpy."""
    return None if "delta" in model else 1


def answers(number: int, lora: LoRARequest | None = None, model: str = MODEL, **options):
    """Tokens and log-probabilities of all answers, and how many tokens were found in a cache."""
    loras = None if lora is None else every_third(lora, number)
    fixed = {"max_model_len": 256, "num_threads": threads_of(model)}
    with LLM(model, **fixed, enable_lora=lora is not None, **options) as llm:
        outputs = llm.generate(*mixed(number), use_tqdm=False, lora_request=loras)
    found = [(a.token_ids, a.logprobs, o.prompt_logprobs) for o in outputs for a in o.outputs]
    return found, sum(output.num_cached_tokens or 0 for output in outputs)


MODELS = pytest.mark.parametrize(
    "model",
    [MODEL, f"{MODEL}&conv=3", f"{MODEL}&mamba=8", f"{MODEL}&delta=4"],
    ids=["attention", "convolutions", "mamba", "delta"],
)


@pytest.mark.slow
@pytest.mark.parametrize("model", [f"{MODEL}&mamba=8", f"{MODEL}&delta=4"], ids=["mamba", "delta"])
def test_answers_of_models_with_states_are_the_same_bits_with_a_tier(tmp_path, model):
    """64 requests in a pool that holds three: alone, with memory, with files, and with those of before."""
    small = {"model": model, "num_gpu_blocks_override": 30, "mamba_block_size": 32}
    files = {**small, "kv_offloading_size": 0.25, "kv_offloading_path": str(tmp_path / "tier")}
    expected, num_alone = answers(64, **small)
    in_memory, num_in_memory = answers(64, **small, kv_offloading_size=0.25)
    on_disk, num_on_disk = answers(64, **files)
    again, num_again = answers(64, **files)
    assert in_memory == on_disk == again == expected
    assert num_alone < num_in_memory
    assert num_alone < num_on_disk < num_again


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_answers_are_the_same_bits_with_a_tier_and_after_a_restart(tmp_path, kv_cache_dtype):
    """64 requests in a pool that holds three: alone, with memory, with files, and with those of before.

    A third of them has an adapter.
    """
    lora = adapter(tmp_path)
    small = {"num_gpu_blocks_override": 30, "kv_cache_dtype": kv_cache_dtype, "lora": lora}
    files = {**small, "kv_offloading_size": 0.25, "kv_offloading_path": str(tmp_path / "tier")}
    expected, num_alone = answers(64, **small)
    in_memory, num_in_memory = answers(64, **small, kv_offloading_size=0.25)
    on_disk, num_on_disk = answers(64, **files)
    again, num_again = answers(64, **files)
    assert in_memory == on_disk == again == expected
    assert num_alone < num_in_memory
    assert num_alone < num_on_disk < num_again


@MODELS
def test_a_restart_finds_the_pool_of_before(tmp_path, model):
    """All that could still be found when the engine ended is there, states too, and gives the same answers."""
    files = {"kv_offloading_size": 0.25, "kv_offloading_path": str(tmp_path)}
    before, num_before = answers(4, model=model, **files)
    after, num_after = answers(4, model=model, **files)
    assert after == before
    assert num_before == 0
    assert num_after >= 3 * 96  # of the fourth all prompt rows are wanted


def test_other_rounding_finds_nothing(tmp_path):
    """Blocks of bfloat16 mean nothing to an engine of int8."""
    files = {"kv_offloading_size": 0.25, "kv_offloading_path": str(tmp_path)}
    answers(1, **files)
    assert answers(1, **files, kv_cache_dtype="int8")[1] == 0


def test_a_reset_clears_the_tier_too(tmp_path):
    """Nothing of before is found, nor lies there."""
    options = {"kv_offloading_size": 0.25, "kv_offloading_path": str(tmp_path)}
    prompts, params = mixed(8)
    with LLM(MODEL, max_model_len=256, num_gpu_blocks_override=16, **options) as llm:
        llm.generate(prompts, params, use_tqdm=False)
        assert llm.reset_prefix_cache()
        assert llm.generate(prompts[0], params[0], use_tqdm=False)[0].num_cached_tokens == 0
        assert llm.reset_prefix_cache()
    assert not list(tmp_path.glob("engine-0/??/*"))


def test_a_directory_that_vanishes_is_no_error_of_a_request(tmp_path, caplog):
    """One line says that there is no tier any more."""
    options = {"kv_offloading_size": 0.25, "kv_offloading_path": str(tmp_path)}
    expected, _ = answers(6, num_gpu_blocks_override=16)
    prompts, params = mixed(6)
    with LLM(MODEL, max_model_len=256, num_gpu_blocks_override=16, **options) as llm:
        shutil.rmtree(tmp_path)
        outputs = llm.generate(prompts, params, use_tqdm=False)
    found = [(a.token_ids, a.logprobs, o.prompt_logprobs) for o in outputs for a in o.outputs]
    assert found == expected
    assert len([r for r in caplog.records if "is off" in r.message]) == 1


def greedy(prompt: list[int], num_tokens: int) -> list[int]:
    """What a `FakeRunner` answers."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(int(logits_after(token_ids, 64).argmax()))
    return token_ids[len(prompt) :]


@pytest.mark.parametrize("seed", range(4))
def test_requests_aborts_and_resets_at_random_end_once_and_right(seed):
    """In a pool of twelve blocks, whose every token depends on all blocks before it. None leaks."""
    draw = random.Random(seed)
    beginnings = [[draw.randrange(3, 60) for _ in range(16)] for _ in range(4)]
    config = msgspec.structs.replace(
        make_config(num_blocks=12, max_model_len=40), kv_offloading_config=MEMORY
    )
    requests, aborted = {}, set()
    with EngineThread(FakeRunner(), config) as engine:
        for number in range(60):
            request_id = f"r{number}"
            prompt = [*draw.choice(beginnings)[: draw.randrange(1, 17)], number % 60 + 3]
            params = SamplingParams(
                temperature=0.0, ignore_eos=True, max_tokens=draw.randrange(1, 9)
            )
            requests[request_id] = prompt, params.max_tokens
            engine.send(Add(make_request(request_id, prompt, params)))
            if not draw.randrange(8):
                aborted.add(f"r{draw.randrange(number + 1)}")
                engine.send(Abort([max(aborted)]))
            if not draw.randrange(12):
                engine.send(ResetPrefixCache(number, bool(draw.randrange(2))))
        tokens, reasons = {}, {}

        def take(event):
            for output in event.outputs if isinstance(event, StepOutput) else ():
                tokens.setdefault(output.engine_id, []).extend(output.token_ids)
                if output.finish_reason is not None:
                    reasons.setdefault(output.engine_id, []).append(output.finish_reason)
            return len(reasons) == len(requests)

        events = engine.until(take)
        engine.send(Ping(1000))
        events += engine.until(lambda event: getattr(event, "call_id", None) == 1000)
    assert all(len(each) == 1 for each in reasons.values())
    for request_id, (prompt, num_tokens) in requests.items():
        got, expected = tokens.get(request_id, []), greedy(prompt, num_tokens)
        assert got == expected[: len(got)]
        assert len(got) == num_tokens or reasons[request_id] == [FinishReason.ABORT]
    assert events[-1].load.num_held_blocks == 0
    last = [event for event in events if isinstance(event, StepOutput)][-1]
    assert last.stats.tier.num_loaded_blocks > 0


def test_events_follow_a_block_through_pool_and_tier():
    """Each medium by itself: a router that adds and takes away as it is told holds exactly what is there."""
    config = msgspec.structs.replace(make_config(num_blocks=10), kv_offloading_config=MEMORY)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=2)
    prompts = {"a": [5] * 30, "b": [6] * 30, "c": [5] * 30}
    held = {medium: set() for medium in Medium}
    with EngineThread(FakeRunner(), config) as engine:

        def is_last(event):
            for kv in (getattr(event, "kv_events", None) and event.kv_events.events) or ():
                match kv:
                    case BlockStored():
                        assert len(kv.token_ids) == kv.block_size * len(kv.block_hashes)
                        held[kv.medium] |= set(kv.block_hashes)
                    case BlockRemoved():
                        held[kv.medium] -= set(kv.block_hashes)
                    case AllBlocksCleared():
                        held.update({medium: set() for medium in Medium})
            return any(o.finish_reason for o in getattr(event, "outputs", ()))

        for request_id, prompt in prompts.items():
            engine.send(Add(make_request(request_id, prompt, params)))
            [*_, last] = engine.until(is_last)
        assert last.outputs[0].num_cached_tokens == 28
        while len(held[Medium.MEMORY]) < 10:  # five of the first prompt, and five of the second
            engine.until(lambda event: is_last(event) or getattr(event, "kv_events", None))
    assert 1 <= len(held[Medium.POOL]) <= 10
    assert held[Medium.DISK] == set()


class GatedBlocks(MemoryBlocks):
    """One block is read for each `allow`."""

    def __init__(self):
        super().__init__()
        self.allowed = threading.Semaphore(0)
        self.names = []  # of those that were read

    def read(self, name):
        assert self.allowed.acquire(timeout=PATIENCE_S)
        self.names.append(name)
        return super().read(name)


@contextmanager
def with_blocks_of(prompt: list[int], **overrides):
    """An engine of eight blocks, in whose tier are those of a prompt that it has no more."""
    store = GatedBlocks()
    tier = KvTier(store, 1 << 20, lambda: None)
    tier.wait_until_found(PATIENCE_S)
    engine = make_engine(tier=tier, num_blocks=8, **overrides)
    engine.submit("before", prompt, max_tokens=1)
    engine.run()
    engine.submit("other", [9] * 31, max_tokens=1)
    engine.run()
    wait(lambda: not tier._writes)
    try:
        yield engine, store
    finally:
        store.allowed.release(1000)
        tier.close(PATIENCE_S)


def take_arrived(engine, num_blocks=1):
    """Let so many blocks be read, and give them to the engine."""
    tier = engine.tier
    tier._store.allowed.release(num_blocks)
    wait(lambda: len(tier._arrived) == num_blocks)
    engine.offloading.take_arrived(engine.runner)
    engine.scheduler.check()


def finish(engine, store):
    """Let all be read, and turn until every request has ended."""
    store.allowed.release(1000)

    def has_ended():
        engine.offloading.take_arrived(engine.runner)
        engine.step()
        engine.scheduler.check()
        return not engine.scheduler.num_open_requests

    wait(has_ended)


def test_a_block_that_found_no_room_is_not_followed_by_the_next():
    """It would be taken for the one before, and every answer with that prefix be wrong."""
    prompt = [*range(5, 18)]
    with with_blocks_of(prompt) as (engine, store):
        engine.submit("long", [7] * 4, max_tokens=28)
        engine.step()
        engine.submit("again", prompt, max_tokens=4)
        while engine.pool.num_free:
            engine.step()
        take_arrived(engine)
        engine.abort("long")
        finish(engine, store)
        assert engine.answers["again"][0].token_ids == greedy(prompt, 4)
        engine.submit("last", prompt, max_tokens=4)
        finish(engine, store)
        assert engine.answers["last"][0].token_ids == greedy(prompt, 4)


def test_nothing_more_is_read_for_a_request_that_was_aborted():
    """Others wait behind it."""
    prompt = [*range(5, 18)]
    with with_blocks_of(prompt) as (engine, store):
        engine.submit("a", prompt, max_tokens=1)
        assert engine.step() is None
        engine.abort("a")
        engine.submit("b", [*prompt[:5], 3], max_tokens=1)
        assert engine.step() is None
        store.allowed.release(1000)
        wait(lambda: not engine.tier.is_fetching or engine.tier._arrived)
        engine.offloading.take_arrived(engine.runner)
        assert len(store.names) <= 2
        engine.run()
        assert engine.answers["b"][0].num_cached_tokens == 4
        assert engine.pool.num_free == 8


def test_a_prefix_that_many_wait_for_is_read_once():
    """And lies in the pool once; what is behind it each fetches for itself."""
    prompt = [*range(5, 22)]
    with with_blocks_of(prompt) as (engine, store):
        engine.submit("short", prompt[:9], max_tokens=1)
        engine.submit("long", prompt, max_tokens=1)
        engine.submit("too", prompt[:9], max_tokens=1)
        assert engine.step() is None
        finish(engine, store)
        assert len(store.names) == 4
        answers = [engine.answers[name][0] for name in ("short", "long", "too")]
        assert [answer.num_cached_tokens for answer in answers] == [8, 16, 8]
        assert [answer.token_ids for answer in answers[:2]] == [
            greedy(prompt[:9], 1),
            greedy(prompt, 1),
        ]


def test_who_waits_for_what_another_fetches_goes_on_when_that_one_leaves():
    """It fetches for itself then."""
    prompt = [*range(5, 18)]
    with with_blocks_of(prompt) as (engine, store):
        engine.submit("a", prompt, max_tokens=1)
        engine.submit("b", prompt, max_tokens=1)
        engine.submit("c", prompt[:5], max_tokens=1)
        assert engine.step() is None
        engine.abort("c")
        engine.abort("a")
        finish(engine, store)
        assert engine.answers["b"][0].num_cached_tokens == 12
        assert engine.answers["b"][0].num_endings == 1


def test_who_has_no_room_beside_a_fetch_waits_for_its_end():
    """An engine that tried again and again meanwhile would take the processor from who reads."""
    prompt = [*range(5, 18)]
    with with_blocks_of(prompt) as (engine, _):
        engine.submit("a", prompt, max_tokens=1)
        engine.submit("b", [8] * 25, max_tokens=1)
        assert engine.step() is None
        assert not engine.scheduler.has_work
        take_arrived(engine)
        take_arrived(engine)
        assert not engine.scheduler.has_work
        take_arrived(engine)
        engine.run()
        assert [engine.answers[name][0].num_endings for name in "ab"] == [1, 1]


def test_what_no_other_process_could_find_is_not_written_at_the_end(tmp_path):
    """Blocks of adapters would only push others out."""
    tier = KvTier(DirectoryBlocks.open(str(tmp_path), "a"), 1 << 20, lambda: None)
    engine = make_engine(tier=tier)
    engine.submit("a", [5] * 13, max_tokens=1)
    engine.submit("b", [6] * 13, lora="x", max_tokens=1)
    engine.run()
    engine.offloading.close(engine.runner)
    wait(lambda: not tier._thread.is_alive())
    names = [path.name for path in tmp_path.glob("engine-0/??/*")]
    stored = [e for e in engine.scheduler.cache.take_events() if isinstance(e, BlockStored)]
    of_base = {h.hex() for e in stored if e.lora_name is None for h in e.block_hashes}
    assert {name.split("-")[1] for name in names} == of_base
    assert len(names) == 3


def hashes(lora=None, has_new_weights=False):
    """Those of a prompt's blocks in a new engine."""
    engine = make_engine()
    if has_new_weights:
        engine.scheduler.start_weights_epoch()
    engine.submit("a", [*range(5, 20)], lora=lora, max_tokens=1)
    engine.run()
    events = engine.scheduler.cache.take_events()
    return [h for event in events if isinstance(event, BlockStored) for h in event.block_hashes]


def test_processes_agree_on_hashes_only_where_they_mean_the_same():
    """Adapters and updates of the weights are counted from the start in each: a number says nothing."""
    assert hashes() == hashes()
    assert hashes(lora="x") != hashes(lora="x")
    assert hashes(has_new_weights=True) != hashes(has_new_weights=True)


def test_who_waits_while_weights_change_has_hashes_of_the_new():
    """Else what the new weights compute would lie under a hash of the old, and be found by it later."""
    engine = make_engine(num_blocks=8)
    engine.submit("a", [*range(5, 25)], max_tokens=8)
    engine.step()
    before = [h for e in engine.scheduler.cache.take_events() for h in e.block_hashes]
    engine.scheduler.start_weights_epoch()
    engine.run()
    events = engine.scheduler.cache.take_events()
    after = [h for e in events if isinstance(e, BlockStored) for h in e.block_hashes]
    assert before
    assert not set(before) & set(after)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kv_offloading_path": "/tmp/x"}, "--kv-offloading-path needs --kv-offloading-size"),
        ({"kv_offloading_size": -1.0}, "must be above 0 and at most 1048576 GiB, not -1"),
        ({"kv_offloading_size": float("nan")}, "must be above 0"),
        ({"kv_offloading_size": 1e-9}, "is less than the"),
        ({"kv_offloading_size": 1.0, "kv_offloading_path": " "}, "must name a directory"),
        ({"kv_offloading_size": 1.0, "block_size": 24}, "a multiple of 16, not 24"),
        ({"kv_offloading_size": 1.0, "enable_prefix_caching": False}, "needs a prefix cache"),
        (
            {"kv_offloading_size": 1024.0},
            r"its weights and second tier \(--kv-offloading-size\) take 1 TiB .* but [\d.]+ [GM]iB of",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(options, text):
    """By their names."""
    settings = EngineOptions(**{"model": MODEL, **options})
    with pytest.raises(ConfigError, match=text):
        fit(open_model(settings.model), settings)
