"""The random walks of this directory on a device that computes nothing before somebody waits: steps are launched ahead.

Commands come while a step is in flight; what must find none drains first, as the engine's loop does.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.doubles.async_device import AsyncRunner, Stream
from tests.doubles.fake_runner import FakeRunner
from tests.doubles.state_runner import StateRunner
from tests.doubles.stepping import make_engine
from tests.property import test_scheduler_machine as in_turn
from tests.property import test_states_machine as states


class AheadMachine(in_turn.SchedulerMachine):
    """The same invariants, of steps that are launched before the one before is known."""

    @initialize(target_ms=st.sampled_from([0.0, 100.0]))
    def start(self, speculation=None, target_ms=0.0):
        super().start(None, target_ms)

    def make_engine(self, **sizes):
        return make_engine(AsyncRunner(FakeRunner(in_turn.VOCAB), Stream()), **sizes)

    @rule(preempt=st.booleans())
    def reset_cache(self, preempt):
        self.engine.drain()
        super().reset_cache(preempt)

    @rule()
    def change_weights(self):
        self.engine.drain()
        self.engine.scheduler.start_weights_epoch()
        self.engine.runner.inner.epoch += 1

    @rule()
    def wait(self):
        """The step in flight is committed, and none is launched behind it."""
        self.engine.drain()

    def _check_no_work_on_ended(self, plan):
        """Who was aborted while the step was in flight is still in it; nobody is there twice."""
        entries = plan.entries if plan else ()
        assert len({id(e.sequence) for e in entries}) == len(entries)
        assert sum(e.num_rows for e in entries) <= 6

    def teardown(self):
        super().teardown()
        assert not self.engine.steps.is_in_flight


class TestAheadMachine(AheadMachine.TestCase):
    """A few walks in every run of the tests."""

    settings = settings(in_turn.WALKS, max_examples=40)


@pytest.mark.slow
class TestAheadMachineLonger(AheadMachine.TestCase):
    """Many."""

    settings = in_turn.WALKS


class AheadStatesMachine(states.StatesMachine):
    """With states, a second tier and leases."""

    def make_runner(self):
        return AsyncRunner(StateRunner(), Stream())

    @rule(preempt=st.booleans())
    def reset_cache(self, preempt):
        self.engine.drain()
        super().reset_cache(preempt)


class TestAheadStatesMachine(AheadStatesMachine.TestCase):
    """A few walks in every run of the tests."""

    settings = settings(states.WALKS, max_examples=15, stateful_step_count=40)


@pytest.mark.slow
class TestAheadStatesMachineLonger(AheadStatesMachine.TestCase):
    """Many."""

    settings = states.WALKS
