"""What an engine says of the requests that it holds, while they come and go."""

from collections import Counter

import msgspec

from tests.doubles.fake_runner import FakeRunner
from tests.doubles.stepping import SteppingEngine, make_engine
from tests.engine.test_stopwatch import timed_engine
from weft.core.values.engine_snapshots import MAX_FINISHED, MAX_LISTED, RequestPhase, RequestStates
from weft.engine.request_states import read_states

PROMPT = list(range(10, 30))  # 20 tokens: five blocks of 4


def states_of(engine: SteppingEngine) -> RequestStates:
    """As they are now."""
    return read_states(engine.scheduler, 3)


def phases(states: RequestStates) -> list[RequestPhase]:
    """Of each answer that is listed."""
    return [state.phase for state in states.requests]


def test_an_answer_goes_through_queue_prefill_and_decode():
    """One in each of them, and what is known of it there; the numbers are of the order of arrival."""
    engine = make_engine(max_num_batched_tokens=8, max_num_seqs=2)
    engine.submit("a", PROMPT[:6], max_tokens=9)
    engine.step()
    engine.submit("b", PROMPT[::-1], max_tokens=2)
    engine.submit("c", PROMPT[5:], max_tokens=2)
    engine.step()
    states = states_of(engine)
    assert states.data_parallel_rank == 3
    assert [state.number for state in states.requests] == [0, 1, 2]
    assert phases(states) == [RequestPhase.DECODE, RequestPhase.PREFILL, RequestPhase.QUEUED]
    assert [state.is_running for state in states.requests] == [True, True, False]
    assert [state.num_output_tokens for state in states.requests] == [2, 0, 0]
    assert (states.requests[1].num_computed_tokens, states.requests[1].num_prompt_tokens) == (7, 20)
    assert [state.decode_s is None for state in states.requests] == [False, True, True]
    assert states.requests[2].prefill_s is None
    engine.run()
    over = states_of(engine)
    assert over.requests == []
    assert sorted(state.number for state in over.finished) == [0, 1, 2]
    assert {state.phase for state in over.finished} == {RequestPhase.FINISHED}


def test_times_grow_while_a_phase_goes_on():
    """On a clock where a step takes a second; a phase that is over keeps its time."""
    engine = timed_engine(max_num_seqs=1)
    engine.submit("a", PROMPT, max_tokens=4)
    engine.submit("b", PROMPT[:3], max_tokens=1)
    for _ in range(3):
        engine.step()
    first, second = states_of(engine).requests
    assert (first.queue_s, first.prefill_s, first.decode_s) == (0.0, 1.0, 2.0)
    assert (second.queue_s, second.prefill_s) == (3.0, None)
    engine.run()
    engine.runner.now += 5.0
    newest, oldest = states_of(engine).finished
    assert (oldest.number, oldest.finished_s, oldest.decode_s) == (0, 6.0, 3.0)
    assert (newest.number, newest.finished_s, newest.queue_s) == (1, 5.0, 4.0)


def test_blocks_are_of_one_of_several_or_cached():
    """What all hold is each one's own and, once, what several share; the cache keeps the rest findable."""
    engine = make_engine()
    engine.submit("a", PROMPT, max_tokens=8)
    engine.submit("b", PROMPT, max_tokens=8)
    engine.submit("c", PROMPT[::-1], max_tokens=1)
    engine.step()
    states = states_of(engine)
    own = [state.num_blocks - state.num_shared_blocks for state in states.requests]
    # The last block of the prompt is computed by each; the one that ended left its five to the cache.
    assert [state.num_shared_blocks for state in states.requests] == [4, 4]
    assert states.num_shared_blocks == 4
    assert states.num_held_blocks == 4 + sum(own) == engine.pool.num_held
    assert states.num_cached_blocks == 5
    assert states.num_blocks == 64


def test_a_preempted_answer_is_in_its_phase_and_does_not_run():
    """It has no blocks, and how often that happened is said."""
    engine = make_engine(num_blocks=4, max_model_len=12)
    engine.submit("old", PROMPT[:7], max_tokens=4)
    engine.submit("new", PROMPT[10:17], max_tokens=4)
    while not engine.scheduler.planner.num_preemptions:
        engine.step()
    old, new = states_of(engine).requests
    assert (old.is_running, new.is_running) == (True, False)
    assert (new.phase, new.num_preemptions, new.num_blocks) == (RequestPhase.DECODE, 1, 0)


def test_the_list_is_bounded_and_says_what_it_leaves_out():
    """However many wait, and however many have ended."""
    engine = make_engine(max_num_seqs=2)
    for number in range(MAX_LISTED + 50):
        engine.submit(f"r{number}", PROMPT[:3], max_tokens=1)
    states = states_of(engine)
    assert (len(states.requests), states.num_unlisted) == (MAX_LISTED, 50)
    engine.run()
    ended = states_of(engine)
    assert len(ended.finished) == MAX_FINISHED
    assert ended.finished[0].number == MAX_LISTED + 49


def test_nothing_of_a_request_but_numbers_is_said():
    """No id, no token, no name: whoever may see the load may see this, and requests are of many callers."""
    engine = make_engine(runner=FakeRunner(64))
    engine.submit("an-id-of-somebody", PROMPT, max_tokens=8, salt="a-salt", lora="an-adapter")
    engine.step()
    fields = msgspec.to_builtins(states_of(engine).requests[0])
    kinds = Counter(type(value) for name, value in fields.items() if name != "phase")
    assert set(kinds) <= {int, float, bool, type(None)}
