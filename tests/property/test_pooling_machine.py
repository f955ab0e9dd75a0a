"""Random submit, step, abort, preempt and reset on an engine that pools, with a real model.

The pool is small and prompts share prefixes; whatever was batched with what, cut into chunks, computed
again or found in the cache, a result is bit for bit that of its prompt alone.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.compute.runners import load_runner
from tests.doubles.stepping import make_engine
from weft.compute.pooler import load_pooler
from weft.core.config.engine import PoolerConfig
from weft.core.values.types import FinishReason, PoolingKind
from weft.engine.step.step_pooler import StepPooler
from weft.model.open import open_model

MODEL = open_model(
    "embedded:random?layers=2&hidden=34&heads=3&kv_heads=1&head_dim=16&vocab=260&qk_norm=true",
    dtype="bfloat16",
    runner="pooling",
)
POOLER = load_pooler(
    MODEL, PoolerConfig(kinds={"embed": PoolingKind.LAST}, embedding_size=34, normalize=True)
)
# Shared by all examples: making the KV pool anew is all that an engine needs of one.
SHARED, ALONE = (load_runner(MODEL, compute="native", num_threads=n) for n in (2, 1))
# Most are long, and begin as others do.
PROMPTS = st.builds(
    lambda start, length, last: [*range(start, start + length), last],
    st.sampled_from([10, 100]),
    st.sampled_from([2, 9, 13, 15]),
    st.integers(3, 4),
)


class PoolingMachine(RuleBasedStateMachine):
    """A pool of ten blocks of two tokens, four sequences and six tokens a step."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.engine = make_engine(
            SHARED,
            num_blocks=10,
            block_size=2,
            max_model_len=20,
            max_num_seqs=4,
            max_num_batched_tokens=6,
            policy="priority",
        )
        self.engine.parts.finisher = StepPooler(POOLER)
        self.submitted = {}
        self.aborted = set()

    @rule(
        target=requests,
        prompt=PROMPTS,
        kind=st.sampled_from(list(PoolingKind)),
        salt=st.sampled_from([None, "a"]),
        priority=st.integers(-1, 1),
        dimensions=st.sampled_from([None, 5]),
        skip_reading_prefix_cache=st.booleans(),
    )
    def submit(self, prompt, kind, salt, priority, **params):
        """A request arrives."""
        request_id = f"r{len(self.submitted)}"
        self.engine.submit_pooling(request_id, prompt, kind, salt=salt, priority=priority, **params)
        self.submitted[request_id] = (prompt, kind, params)
        return request_id

    @rule(num_steps=st.integers(1, 4))
    def step(self, num_steps):
        """The engine runs."""
        for _ in range(num_steps):
            self.engine.step()

    @rule(request_id=consumes(requests))
    def abort(self, request_id):
        """A caller leaves."""
        self.aborted.add(request_id)
        self.engine.abort(request_id)

    @rule(preempt=st.booleans())
    def reset_cache(self, preempt):
        """The cache is dropped, or refuses."""
        self.engine.scheduler.reset_cache(preempt_running=preempt)

    @rule()
    def drain(self):
        """Everything that is open runs to its end."""
        self.engine.run()
        assert self.engine.pool.num_held == 0

    @invariant()
    def pool_and_scheduler_agree(self):
        """Counts equal owners; every request ends at most once, and without a token."""
        self.engine.scheduler.check()
        for answers in self.engine.answers.values():
            assert [(a.token_ids, a.error, a.num_endings <= 1) for a in answers] == [
                ([], None, True)
            ]

    def teardown(self):
        """Every result is that of an engine that ran the prompt alone, in one step, uncached."""
        self.engine.run()
        for request_id, (prompt, kind, params) in self.submitted.items():
            [got] = self.engine.answers[request_id]
            if got.finish_reason is FinishReason.ABORT:
                assert request_id in self.aborted
                assert got.pooled is None
            else:
                assert got.finish_reason is FinishReason.STOP
                assert got.pooled == alone(prompt, kind, params)


def alone(prompt, kind, params):
    """What the model makes of a prompt."""
    engine = make_engine(ALONE, num_blocks=4, block_size=16, enable_prefix_caching=False)
    engine.parts.finisher = StepPooler(POOLER)
    engine.submit_pooling("alone", prompt, kind, **params)
    assert engine.step().num_tokens == len(prompt)
    [answer] = engine.answers["alone"]
    return answer.pooled


WALKS = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestPoolingMachine(PoolingMachine.TestCase):
    """A few walks in every run of the tests."""

    settings = settings(WALKS, max_examples=40)


@pytest.mark.slow
class TestPoolingMachineLonger(PoolingMachine.TestCase):
    """Many."""

    settings = WALKS
