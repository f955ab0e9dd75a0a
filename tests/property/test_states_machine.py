"""Random submit, step, lend, abort and reset where sequences keep states; invariants after each rule.

Blocks and slots are few, what leaves them goes to a second tier, and prompts are lent to nobody in particular. The
runner sees to it that blocks hold the tokens of the state behind them.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.busy import PATIENCE_S
from tests.doubles.state_runner import StateRunner, answer_of
from tests.doubles.stepping import make_engine
from tests.engine.test_kv_tier import wait
from weft.core.values.kv_cache import StateCacheConfig
from weft.core.values.kv_transfer import KEY
from weft.core.values.types import FinishReason
from weft.engine.kv.kv_tier import KvTier
from weft.engine.kv.kv_tier_stores import MemoryBlocks

# On a machine with a load of 14 a sleep of 2 ms takes 100, and a walk may have hundreds of steps left.
_STEPS_AT_ONCE = 100
PROMPTS = st.lists(st.integers(3, 5), min_size=1, max_size=14)
LENT = [None, {"do_remote_decode": True}, {"do_remote_decode": True, "do_chunked_transfer": True}]


class Lender:
    """Remembers what is lent, and sees that it stays as it was."""

    def __init__(self, runner: StateRunner) -> None:
        self.leases: dict[str, dict[int, bytes]] = {}  # what blocks that are computed hold
        self.states: dict[str, tuple[int, bytes]] = {}
        self._block_ids: dict[str, list[int]] = {}
        self._runner = runner

    def offer(self, request_id, block_ids, hashes, num_computed, slot):
        assert len(block_ids) == len(hashes) > 0
        self._block_ids[request_id] = block_ids
        self.leases[request_id] = {}
        self.advance(request_id, num_computed, slot)
        return {"remote_block_ids": [block_ids]}

    def share(self, request_id):
        """See `Lender`. Nothing is lent twice."""
        return {"remote_block_ids": [self._block_ids[request_id]]}

    def advance(self, request_id, num_computed, slot):
        lease = self.leases[request_id]
        for block_id in self._block_ids[request_id][:num_computed]:
            lease[block_id] = self._runner.read_block(block_id).tobytes()
        if slot is not None:
            assert num_computed == len(self._block_ids[request_id])
            self.states[request_id] = slot, self._runner.state_slots.read_block(slot).tobytes()

    def withdraw(self, request_id):
        self.check()
        del self.leases[request_id]
        self.states.pop(request_id, None)

    def check(self) -> None:
        """Everything that is lent is as it was when it was."""
        for lease in self.leases.values():
            for block_id, held in lease.items():
                assert self._runner.read_block(block_id).tobytes() == held
        for slot, held in self.states.values():
            assert self._runner.state_slots.read_block(slot).tobytes() == held


class StatesMachine(RuleBasedStateMachine):
    """A pool of twelve blocks of two tokens, and up to five slots."""

    requests = Bundle("requests")

    @initialize(
        num_slots=st.integers(2, 5),
        interval=st.sampled_from([2, 4, 8]),
        tier_bytes=st.sampled_from([200, 1000, 100_000]),
    )
    def start(self, num_slots, interval, tier_bytes):
        """With a tier that may be too small for all of it."""
        self.submitted: dict[str, tuple[list[int], int]] = {}
        self.aborted: set[str] = set()
        self.tier = KvTier(MemoryBlocks(), tier_bytes, lambda: None, has_states=True)
        self.tier.wait_until_found(PATIENCE_S)
        runner = self.make_runner()
        self.lender = Lender(runner)
        self.engine = make_engine(
            runner,
            tier=self.tier,
            lender=self.lender,
            num_blocks=12,
            block_size=2,
            max_model_len=24,
            max_num_seqs=4,
            max_num_batched_tokens=6,
            states=StateCacheConfig(num_slots=num_slots, slot_bytes=8, mamba_block_size=interval),
        )

    def make_runner(self):
        return StateRunner()

    @rule(
        target=requests,
        prompt=PROMPTS,
        n=st.integers(1, 2),
        max_tokens=st.integers(1, 8),
        lends=st.sampled_from(LENT),
    )
    def submit(self, prompt, n, max_tokens, lends):
        """A request arrives; its prompt is to be lent, or is not."""
        request_id = f"r{len(self.submitted)}"
        self.submitted[request_id] = prompt, max_tokens
        extra_args = None if lends is None else {KEY: lends}
        num_answers = 1 if lends else n
        self.engine.submit(
            request_id, prompt, n=num_answers, max_tokens=max_tokens, extra_args=extra_args
        )
        return request_id

    @rule(num_steps=st.integers(1, 4))
    def step(self, num_steps):
        """The engine runs, and takes what has come."""
        for _ in range(num_steps):
            self.engine.offloading.take_arrived(self.engine.runner)
            self.engine.step()

    @rule()
    def wait_for_tier(self):
        """The tier does all that it has to do."""
        wait(lambda: not self.tier._writes and not self.tier._fetches)

    @rule(request_id=consumes(requests))
    def abort(self, request_id):
        """A caller leaves."""
        self.aborted.add(request_id)
        self.engine.abort(request_id)

    @rule(preempt=st.booleans())
    def reset_cache(self, preempt):
        """The cache is dropped, or refuses."""
        self.engine.scheduler.reset_cache(preempt_running=preempt)

    @rule(number=st.integers(0, 11))
    def end_lease(self, number):
        """One is released, or has run out. What is drawn does not depend on the leases: the tier's thread decides when
        some of them begin.
        """
        lent = self.engine.scheduler.cache.lent
        leases = sorted(self.lender.leases)
        ended = leases[number % len(leases)] if leases else None
        if ended is not None and lent.is_ahead(ended):
            self.abort(ended)
        elif ended is not None:
            lent.end(ended)

    @invariant()
    def everything_agrees(self):
        """Counts equal owners, of blocks and of slots; what is lent is as it was; a state has its block."""
        self.engine.scheduler.check()
        self.lender.check()
        cache = self.engine.scheduler.cache
        assert cache.states._slot_by_hash.keys() <= cache._blocks_by_hash.keys()
        assert set(self.lender.states) <= set(self.lender.leases)
        for request_id, answers in self.engine.answers.items():
            expected = answer_of(*self.submitted[request_id])
            for answer in answers:
                assert answer.error is None
                assert answer.num_endings <= 1
                assert answer.token_ids == expected[: len(answer.token_ids)]

    def _is_at_end(self):
        """Whether no request is open after some steps. Whoever waits for it sleeps: not after each step."""
        for _ in range(_STEPS_AT_ONCE):
            if not self.engine.scheduler.num_open_requests:
                return True
            self.step(1)
        return False

    def teardown(self):
        """Every answer is whole; leases apart, nobody holds anything."""
        if not hasattr(self, "engine"):
            return

        wait(self._is_at_end)
        self.everything_agrees()
        for request_id, answers in self.engine.answers.items():
            for answer in answers:
                is_whole = len(answer.token_ids) == self.submitted[request_id][1]
                assert is_whole or answer.finish_reason is FinishReason.ABORT
                assert answer.finish_reason is not FinishReason.ABORT or request_id in self.aborted
        self.engine.scheduler.cache.lent.end_all()
        assert self.engine.pool.num_held == 0
        assert self.engine.scheduler.cache.states.pool.num_held == 0
        self.tier.close(PATIENCE_S)


WALKS = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestStatesMachine(StatesMachine.TestCase):
    """A few walks in every run of the tests."""

    settings = settings(WALKS, max_examples=15, stateful_step_count=40)


@pytest.mark.slow
class TestStatesMachineLonger(StatesMachine.TestCase):
    """Many."""

    settings = WALKS
