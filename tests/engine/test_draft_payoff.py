"""weft.engine.scheduling.draft_payoff: drafts are left out where steps with them give less."""

import pytest

from tests.doubles.drafting import by_model, draft_with
from tests.doubles.fake_runner import FakeRunner
from tests.doubles.stepping import make_engine
from weft.engine.scheduling.draft_payoff import HOME_STEPS, TRIAL_STEPS, DraftPayoff


class Machine:
    """Steps of given lengths, on a clock that only they move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.payoff = DraftPayoff(lambda: self.now)

    def run(self, num_steps, num_sequences, *, plain_s, drafted_s, gain):
        """How many of the steps were drafted; `gain` is the tokens of a sequence in one of those."""
        num_drafted = 0
        for _ in range(num_steps):
            self.payoff.plan()
            is_on = self.payoff.wants(num_sequences)
            self.payoff.begin(num_sequences, is_drafted=is_on)
            self.now += drafted_s if is_on else plain_s
            self.payoff.commit(num_sequences)
            if is_on:
                self.payoff.commit(round((gain - 1) * num_sequences))
            num_drafted += is_on
        return num_drafted


ROUND = TRIAL_STEPS + HOME_STEPS


@pytest.mark.parametrize(("drafted_s", "is_better"), [(1.9, True), (2.1, False)])
def test_what_gives_more_tokens_a_second_goes_on(drafted_s, is_better):
    """Both kinds are tried first; the other is tried again for a few of some hundred steps."""
    machine = Machine()
    costs = {"plain_s": 1.0, "drafted_s": drafted_s, "gain": 2}
    assert machine.run(2 * TRIAL_STEPS, 8, **costs) == TRIAL_STEPS
    num_drafted = machine.run(10 * ROUND, 8, **costs)
    assert num_drafted == 10 * (HOME_STEPS if is_better else TRIAL_STEPS)


def test_each_size_of_a_batch_is_decided_for_itself():
    """One stream may gain while a busy server loses."""
    machine = Machine()
    alone = {"plain_s": 1.0, "drafted_s": 1.5, "gain": 2}
    busy = {"plain_s": 1.0, "drafted_s": 4.0, "gain": 2}
    for _ in range(3):
        machine.run(TRIAL_STEPS, 1, **alone)
        machine.run(TRIAL_STEPS, 30, **busy)
    assert machine.run(100, 1, **alone) == 100
    assert machine.run(100, 30, **busy) == 0


def test_a_text_that_begins_to_repeat_itself_switches_drafts_on_again():
    """The next trial finds it, and what was measured long before hardly counts."""
    machine = Machine()
    machine.run(4 * ROUND, 4, plain_s=1.0, drafted_s=3.0, gain=2)
    assert machine.run(ROUND, 4, plain_s=1.0, drafted_s=3.0, gain=2) == TRIAL_STEPS
    machine.run(ROUND, 4, plain_s=1.0, drafted_s=3.0, gain=5)
    assert machine.run(ROUND, 4, plain_s=1.0, drafted_s=3.0, gain=5) == HOME_STEPS


def test_where_nothing_is_found_to_draft_nothing_is_decided():
    """A trial has as many drafts as another, however seldom they come; what lies between is without."""
    machine = Machine()
    for number in range(TRIAL_STEPS * 20):
        machine.payoff.plan()
        assert machine.payoff.wants(2)
        machine.payoff.begin(2, is_drafted=number % 20 == 19)
        machine.now += 5.0 if number % 20 == 19 else 1.0
        machine.payoff.commit(2)
    assert machine.run(100, 2, plain_s=1.0, drafted_s=5.0, gain=1) == 0


def test_drafts_that_turn_bad_are_left_out_soon():
    """Not only when the next trial is due."""
    machine = Machine()
    machine.run(2 * TRIAL_STEPS + 100, 4, plain_s=1.0, drafted_s=1.5, gain=4)
    assert machine.run(HOME_STEPS // 2, 4, plain_s=1.0, drafted_s=1.5, gain=1) < 100
    assert machine.run(100, 4, plain_s=1.0, drafted_s=1.5, gain=1) == 0


def test_what_is_made_up_for_after_a_pause_is_no_cost_of_the_trial():
    """The first drafted step computes what was left out before."""
    machine = Machine()
    machine.run(TRIAL_STEPS, 4, plain_s=1.0, drafted_s=1.5, gain=2)
    assert machine.run(TRIAL_STEPS, 4, plain_s=1.0, drafted_s=1.5, gain=2) == 0
    machine.run(HOME_STEPS, 4, plain_s=1.0, drafted_s=1.5, gain=2)  # drafts are better
    machine.run(TRIAL_STEPS, 4, plain_s=1.0, drafted_s=1.5, gain=2)  # without, for a trial
    machine.run(1, 4, plain_s=1.0, drafted_s=1000.0, gain=2)
    assert machine.run(HOME_STEPS - 1, 4, plain_s=1.0, drafted_s=1.5, gain=2) == HOME_STEPS - 1


def test_steps_that_compute_prompts_are_not_counted():
    """They are slow for another reason."""
    machine = Machine()
    for _ in range(3 * TRIAL_STEPS):
        machine.payoff.plan()
        machine.payoff.begin(None, is_drafted=True)
        machine.now += 50.0
        machine.payoff.commit(4)
    assert machine.run(TRIAL_STEPS, 4, plain_s=1.0, drafted_s=1.5, gain=2) == TRIAL_STEPS


def test_an_engine_leaves_out_drafts_that_lose_and_answers_the_same():
    """A draft that is always right, and takes so long that nothing is gained."""

    class Slow(FakeRunner):
        def forward(self, batch):
            machine.now += 10.0
            return super().forward(batch)

    machine = Machine()
    answers = []
    for is_drafted in (False, True):
        engine = make_engine(num_blocks=512, max_model_len=1024, speculation=by_model(2))
        draft = Slow()
        if is_drafted:
            draft_with(engine, draft, machine.payoff)
        else:
            engine.scheduler.draft_by(Silent())
        engine.runner.forward = ticking(machine, engine.runner.forward)
        engine.submit("a", [3, 4, 5], max_tokens=300)
        engine.run()
        answers.append(engine.answers["a"][0].token_ids)
    assert answers[0] == answers[1]
    assert len(draft.num_rows) == 2 * TRIAL_STEPS


class Silent:
    """Drafts nothing."""

    has_cost = False

    def propose(self, rooms, budget, grow):
        return {}

    def forget(self):
        pass


def ticking(machine, forward):
    """A forward pass that takes a second."""

    def run(batch):
        machine.now += 1.0
        return forward(batch)

    return run
