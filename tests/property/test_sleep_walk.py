"""Random walks of requests, aborts, pauses, sleep and wake through the engine's loop, on a real model.

With a second tier as without: then blocks leave the pool, which is small, and are found again.

Whatever happens in between, every request ends once, every call is answered once, no block is held in the
end, and who was not aborted got the tokens, with the very log-probabilities, that an engine gives that has
nothing else to do.
"""

from functools import cache

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.doubles.stepping import make_request
from weft.core.config.engine_options import EngineOptions
from weft.core.values.controls import PauseMode, SleepTag
from weft.core.values.types import FinishReason, SamplingParams
from weft.engine.ipc.messages import (
    Abort,
    Add,
    Pause,
    Ping,
    Reply,
    ResetPrefixCache,
    Resume,
    StepOutput,
    Stop,
    Wake,
)
from weft.engine.loop import EngineLoop
from weft.engine.start.configure import resolve
from weft.engine.weights.engine_model import EngineModel
from weft.model.open import open_model

MODEL = "embedded:random?layers=1&hidden=16&heads=2&kv_heads=1&head_dim=8&intermediate=16&vocab=270"
OPTIONS = EngineOptions(
    model=MODEL, max_model_len=48, num_gpu_blocks_override=12, block_size=4, num_threads=1
)
CHECKPOINT = open_model(MODEL)
CONFIG = resolve(OPTIONS, CHECKPOINT.card, 1 << 30)
TIERED = resolve(
    msgspec.structs.replace(
        OPTIONS, num_gpu_blocks_override=4, block_size=16, kv_offloading_size=0.001
    ),
    CHECKPOINT.card,
    1 << 30,
)

STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 14), st.integers(1, 10), st.integers(1, 3)),
    st.tuples(st.just("abort"), st.integers(0, 9)),
    st.tuples(st.just("pause"), st.sampled_from([m.value for m in PauseMode]), st.booleans()),
    st.tuples(st.just("sleep"), st.sampled_from([m.value for m in PauseMode]), st.integers(1, 2)),
    st.tuples(st.just("wake"), st.lists(st.sampled_from([t.value for t in SleepTag]), max_size=3)),
    st.tuples(st.just("resume")),
    st.tuples(st.just("reset"), st.booleans()),
    st.tuples(st.just("ping")),
    st.tuples(st.just("run"), st.integers(1, 5)),
)


class Walk:
    """A mailbox that hands out one step at a time, wakes all in the end and stops when all is done."""

    config, checkpoint = CONFIG, CHECKPOINT

    def __init__(self, steps):
        self.turns = [turn for step in steps for turn in self._turns(step)]
        self.requests = {}
        self.aborted = set()
        self.calls = []
        self.events = []
        self._has_ended = False

    def _turns(self, step):
        return [("run",)] * step[1] if step[0] == "run" else [step]

    def receive(self, timeout_s):
        """The commands of the next turn."""
        self.loop._scheduler.check()
        if self.turns:
            return self._commands(self.turns.pop(0))
        if not self._has_ended:
            self._has_ended = True
            return [Wake(self._call(), [*SleepTag]), Stop(1000.0)]
        return []

    def wake(self):
        """It never waits."""

    def prompt(self, num_tokens):
        """Of so many tokens; all begin alike."""
        return [5 + i * 3 % 7 for i in range(num_tokens)]

    def _commands(self, step):
        match step:
            case ("add", num_prompt, max_tokens, n):
                request_id = f"r{len(self.requests)}"
                prompt = self.prompt(num_prompt)
                params = SamplingParams(
                    temperature=0.0, ignore_eos=True, max_tokens=max_tokens, n=n, logprobs=1
                )
                self.requests[request_id] = (num_prompt, max_tokens, n)
                return [Add(make_request(request_id, prompt, params))]
            case ("abort", number):
                self.aborted.add(f"r{number}")
                return [Abort([f"r{number}"])]
            case ("pause", mode, clear):
                self._count_aborts(mode)
                return [Pause(self._call(), mode, clear)]
            case ("sleep", mode, level):
                self._count_aborts(mode)
                return [Pause(self._call(), mode, False, level)]
            case ("wake", tags):
                return [Wake(self._call(), tags)]
            case ("resume",):
                return [Resume(self._call())]
            case ("reset", preempts):
                return [ResetPrefixCache(self._call(), preempts)]
            case ("ping",):
                return [Ping(self._call())]
        return []

    def _count_aborts(self, mode):
        if mode == PauseMode.ABORT:
            self.aborted |= set(self.requests)

    def _call(self):
        self.calls.append(len(self.calls))
        return self.calls[-1]

    def play(self):
        """Run the loop over all turns."""
        model = EngineModel.load(self.config, self.checkpoint)
        model.allocate_kv()
        self.loop = EngineLoop(self.config, model, self, self.events.append, str)
        self.loop.run()
        return self

    def outputs(self):
        """Every output of every sequence, in order."""
        return [o for e in self.events if isinstance(e, StepOutput) for o in e.outputs]


class TieredWalk(Walk):
    """One with a second tier, and three beginnings, each of a block and more, in a pool of four."""

    config = TIERED

    def prompt(self, num_tokens):
        return [5 + (i * 3 + num_tokens % 3) % 7 for i in range(20 + num_tokens)]


@cache
def alone(kind, num_prompt, max_tokens):
    """The tokens of such a request, with their log-probabilities, in an engine of its own."""
    walk = kind([("add", num_prompt, max_tokens, 1)]).play()
    return [row for output in walk.outputs() for row in rows(output)]


def rows(output):
    """Tokens with their log-probabilities."""
    return list(zip(output.token_ids, output.logprobs or (), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Walk, TieredWalk])
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=10, max_size=60))
def test_a_walk_through_sleep_changes_no_answer(kind, steps):
    """See the module."""
    check(kind(steps).play(), kind)


def check(walk, kind):
    """What the module says of a walk that has been played; `kind` answers alone too."""
    tokens, endings = {}, {}
    for output in walk.outputs():
        key = (output.engine_id, output.index)
        tokens.setdefault(key, []).extend(rows(output))
        if output.finish_reason is not None:
            endings.setdefault(key, []).append(output.finish_reason)
    answers = {(r, i): shape for r, shape in walk.requests.items() for i in range(shape[2])}
    assert {key: len(reasons) for key, reasons in endings.items()} == dict.fromkeys(answers, 1)
    for (request_id, index), (num_prompt, max_tokens, _) in answers.items():
        expected, got = alone(kind, num_prompt, max_tokens), tokens.get((request_id, index), [])
        [reason] = endings[request_id, index]
        if reason is FinishReason.ABORT:
            assert request_id in walk.aborted
        else:
            assert reason is FinishReason.LENGTH
            assert len(got) == len(expected)
        assert got == expected[: len(got)]
    assert sorted(e.call_id for e in walk.events if isinstance(e, Reply)) == walk.calls
    assert walk.loop._scheduler.cache.pool.num_held == 0


def test_a_walk_with_a_second_tier_finds_blocks_there():
    """Else it would prove nothing."""
    adds = [("add", number % 3 + 10, 1, 1) for number in range(12)]
    walk = TieredWalk([step for add in adds for step in (add, ("run", 5))]).play()
    assert walk.loop._offloading._elsewhere.tier.stats().num_loaded_blocks
