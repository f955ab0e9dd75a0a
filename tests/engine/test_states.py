"""States of sequences: who has which slot, which are kept for others, and that answers do not depend on it."""

import random

import pytest

from tests.doubles.state_runner import StateRunner
from tests.doubles.stepping import SteppingEngine, make_engine
from weft.core.config.speculation import SpeculativeConfig
from weft.core.values.kv_cache import StateCacheConfig

PROMPT = list(range(10, 31))  # 21 tokens: five full blocks of 4, and the last token


DRAFTS = SpeculativeConfig(
    method="ngram",
    num_speculative_tokens=3,
    prompt_lookup_max=3,
    prompt_lookup_min=1,
    recomputes=True,
)
FEW_TOKENS = 5  # two of them are ever chosen: drafts come true half of the time


def engine_of(
    num_slots: int = 8, interval: int = 8, vocab_size: int = 64, **overrides
) -> SteppingEngine:
    """Blocks of 4 tokens."""
    states = StateCacheConfig(num_slots=num_slots, slot_bytes=1, mamba_block_size=interval)
    return make_engine(StateRunner(vocab_size), states=states, **overrides)


def answer(engine: SteppingEngine, name: str) -> list[int]:
    return engine.answers[name][0].token_ids


def alone(prompt: list[int], max_tokens: int, vocab_size: int = 64) -> list[int]:
    """What an engine that caches nothing, and drafts nothing, answers."""
    engine = engine_of(enable_prefix_caching=False, num_slots=2, vocab_size=vocab_size)
    engine.finish("a", prompt, max_tokens=max_tokens)
    return answer(engine, "a")


def test_a_prompt_stops_where_its_state_is_to_be_kept():
    """At every eighth token, and at its last full block before the last token."""
    engine = engine_of()
    engine.finish("a", PROMPT, max_tokens=1)
    assert engine.runner.chunks == [8, 8, 4, 1]
    assert engine.scheduler.cache.states.num_snapshots == 3


def test_without_a_prefix_cache_no_state_is_kept():
    """Nor is a prompt cut for it."""
    engine = engine_of(enable_prefix_caching=False)
    engine.finish("a", PROMPT, max_tokens=1)
    assert engine.runner.chunks == [21]
    assert engine.scheduler.cache.states.num_snapshots == 0


@pytest.mark.parametrize(
    ("prompt", "num_cached"),
    [
        (PROMPT, 20),  # again
        ([*PROMPT, 40, 41], 20),  # a prompt that goes on
        ([*PROMPT[:18], *range(40, 50)], 16),  # four blocks in common, and the state of the fourth
        ([*PROMPT[:14], *range(40, 50)], 8),  # three, but the last state is of the second
        ([*PROMPT[:6], *range(40, 50)], 0),  # a block, without a state
    ],
)
def test_a_hit_ends_at_the_last_boundary_that_has_a_state(prompt, num_cached):
    """However many blocks are there; and the answer is that of the prompt alone."""
    engine = engine_of()
    engine.finish("a", PROMPT, max_tokens=3)
    engine.finish("b", prompt, max_tokens=6)
    assert engine.answers["b"][0].num_cached_tokens == num_cached
    assert answer(engine, "b") == alone(prompt, 6)


def test_an_answer_leaves_states_too():
    """At its last full block, however far apart others are, so that a conversation may go on from there."""
    engine = engine_of(interval=64)
    engine.finish("a", PROMPT, max_tokens=20)
    whole = [*PROMPT, *answer(engine, "a")]
    assert engine.scheduler.cache.states.num_snapshots == 2  # of the prompt, and of the answer
    engine.finish("b", [*whole, 50, 51], max_tokens=2)
    assert engine.answers["b"][0].num_cached_tokens == 40
    assert answer(engine, "b") == alone([*whole, 50, 51], 2)


def test_an_answer_leaves_no_state_where_few_slots_are_free():
    """Those that run need them more."""
    engine = engine_of(interval=64, num_slots=2)
    engine.finish("a", PROMPT, max_tokens=20)
    assert engine.scheduler.cache.states.num_snapshots == 1
    assert engine.scheduler.planner.num_preemptions == 0


def test_a_state_goes_with_the_blocks_before_it():
    """Where these were given out nobody can find it, and its slot is free for others first."""
    engine = engine_of(num_blocks=8)
    engine.finish("a", PROMPT, max_tokens=1)
    engine.submit("b", list(range(31, 60)), max_tokens=3)  # all eight blocks
    engine.run()
    hashes = engine.scheduler.cache.num_cached
    assert engine.scheduler.cache.states.num_snapshots <= hashes
    engine.finish("c", PROMPT, max_tokens=4)
    assert engine.answers["c"][0].num_cached_tokens == 0
    assert answer(engine, "c") == alone(PROMPT, 4)


def test_two_slots_are_enough_for_one_after_the_other():
    """A sequence reads one and writes the other; the second waits, and neither waits for ever."""
    engine = engine_of(num_slots=2)
    engine.submit("a", PROMPT, max_tokens=9)
    engine.submit("b", PROMPT[::-1], max_tokens=9)
    while engine.scheduler.has_work:
        engine.step()
        engine.scheduler.check()
    assert (answer(engine, "a"), answer(engine, "b")) == (alone(PROMPT, 9), alone(PROMPT[::-1], 9))


def test_a_sequence_is_preempted_where_slots_run_out():
    """The newest, as for want of blocks; and it goes on from its last state."""
    engine = engine_of(num_slots=3, interval=4)
    engine.submit("a", PROMPT[:7], max_tokens=24)
    engine.finish("b", PROMPT[7:14], max_tokens=24)
    assert engine.scheduler.planner.num_preemptions > 0
    assert answer(engine, "a") == alone(PROMPT[:7], 24)
    assert answer(engine, "b") == alone(PROMPT[7:14], 24)


def test_states_are_forgotten_with_the_cache():
    """A reset leaves none to be found."""
    engine = engine_of()
    engine.finish("a", PROMPT, max_tokens=1)
    assert engine.scheduler.reset_cache(preempt_running=False)
    assert engine.scheduler.cache.states.num_snapshots == 0
    engine.finish("b", PROMPT, max_tokens=1)
    assert engine.answers["b"][0].num_cached_tokens == 0


def test_drafts_that_came_true_are_computed_once_more():
    """A state stops before drafts, right or wrong, and goes on by the right ones in the next step."""
    engine = engine_of(vocab_size=FEW_TOKENS, speculation=DRAFTS, interval=64)
    engine.submit("a", PROMPT, max_tokens=40)
    num_right, num_steps = 0, 0
    while engine.scheduler.has_work:
        before = engine.scheduler.drafts.num_accepted
        plan = engine.step()
        num_steps += 1
        [entry] = plan.entries
        if entry.start >= len(PROMPT):
            assert entry.num_tokens == 1 + num_right
        num_right = engine.scheduler.drafts.num_accepted - before
    assert answer(engine, "a") == alone(PROMPT, 40, FEW_TOKENS)
    assert engine.scheduler.drafts.num_accepted > 5
    assert num_steps < 40


@pytest.mark.parametrize("speculation", [None, DRAFTS], ids=["plain", "drafted"])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_answers_are_those_alone(seed, speculation):
    """Random prompts with beginnings in common, aborts, resets, few blocks and few slots; with drafts too."""
    draw = random.Random(seed)
    engine = engine_of(
        vocab_size=FEW_TOKENS,
        speculation=speculation,
        num_slots=draw.choice((2, 3, 5, 9)),
        interval=draw.choice((4, 8, 16)),
        num_blocks=draw.choice((20, 40)),
        max_num_batched_tokens=draw.choice((5, 16, 64)),
    )
    prompts: dict[str, tuple[list[int], int]] = {}
    for number in range(40):
        prompt = PROMPT[: draw.randrange(1, 22)] + [draw.randrange(10, 60)] * draw.randrange(1, 20)
        prompts[str(number)] = prompt, draw.randrange(1, 24)
        engine.submit(str(number), prompt, max_tokens=prompts[str(number)][1])
        for _ in range(draw.randrange(6)):
            engine.step()
            engine.scheduler.check()
        if draw.random() < 0.2:
            gone = draw.choice(list(prompts))
            engine.abort(gone)
            del prompts[gone]
        if draw.random() < 0.1:
            engine.scheduler.reset_cache(preempt_running=draw.random() < 0.5)
    engine.run()
    engine.scheduler.check()
    assert engine.scheduler.cache.states.pool.num_held == 0
    for name, (prompt, max_tokens) in prompts.items():
        assert answer(engine, name) == alone(prompt, max_tokens, FEW_TOKENS)
    assert (engine.scheduler.drafts.num_accepted > 0) is (speculation is not None)
