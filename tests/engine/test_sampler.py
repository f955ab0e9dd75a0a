"""Sampling against exact probabilities, and each transformation against its definition."""

import msgspec
import numpy as np
import pytest

from tests.doubles.processed import truncate
from tests.doubles.sampling import choose, choose_natively, gumbel, logprob_row
from tests.doubles.stepping import make_request
from weft.compute.native import NativeSampler
from weft.compute.protocols.masks import mask_of
from weft.compute.protocols.sampler import Choice, Choices
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.types import SamplingParams
from weft.engine.constraints.grammar import GrammarFailed
from weft.engine.constraints.reasoning_tracker import OpenReasoning, ReasoningTracker
from weft.engine.scheduling.plan import Plan, PlannedRows
from weft.engine.scheduling.sequence import Sequence, SequenceStatus
from weft.engine.step.step_choices import next_choice, plain_choices
from weft.engine.step.step_sampler import StepSampler

VOCAB = 12
LOGITS = np.array([2.0, 1.5, 1.5, 1.0, 0.5, 0.0, -0.5, -1, -2, -3, -4, -9], np.float32)


def make_sequence(output=(), prompt=(3, 4), seed=1, bad=(), **params):
    """A sequence that has sampled `output` so far."""
    request = make_request("r", list(prompt), SamplingParams(seed=seed, **params))
    request = msgspec.structs.replace(request, bad_token_ids=[list(ids) for ids in bad])
    running = SequenceStatus.RUNNING
    return Sequence(request, 0, (0, 0), token_ids=[*prompt, *output], status=running)


def softmax(scores):
    """Probabilities of scores."""
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def chi_square(observed, probabilities):
    """Pearson's statistic over the outcomes that can happen."""
    possible = probabilities > 0
    assert not observed[~possible].any(), "an impossible token was drawn"
    expected = probabilities[possible] * observed.sum()
    return float((((observed[possible] - expected) ** 2) / expected).sum())


# The statistic's 99.99 % quantile for 11 degrees of freedom is 37.4; fewer outcomes have a smaller one.
QUANTILE = 37.4


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, range(VOCAB)),
        ({"temperature": 0.5}, range(VOCAB)),
        ({"top_k": 2}, range(3)),  # ties with the second stay
        ({"top_p": 0.7}, range(3)),
        ({"min_p": 0.3}, range(4)),
        ({"top_k": 6, "top_p": 0.9, "temperature": 1.3}, range(5)),
        ({"min_p": 0.05, "top_k": 7, "top_p": 0.8}, range(4)),
    ],
)
def test_draws_follow_the_exact_distribution(params, kept):
    """Many seeds give each token as often as its renormalised probability says."""
    temperature = params.get("temperature", 1.0)
    expected = np.zeros(VOCAB)
    expected[list(kept)] = softmax(LOGITS[list(kept)].astype(np.float64) / temperature)
    draws = [choose(LOGITS, make_sequence(seed=seed, **params)) for seed in range(6000)]
    assert chi_square(np.bincount(draws, minlength=VOCAB), expected) < QUANTILE


def test_successive_positions_are_independent_draws():
    """One seed's positions are as good as many seeds."""
    draws = [choose(LOGITS, make_sequence(output=[0] * i)) for i in range(4000)]
    expected = softmax(LOGITS.astype(np.float64))
    assert chi_square(np.bincount(draws, minlength=VOCAB), expected) < QUANTILE


def test_noise_depends_on_seed_position_and_token_alone():
    """A masked vocabulary or another order changes no token's noise."""
    everything = gumbel(5, 3, np.arange(100))
    assert np.array_equal(gumbel(5, 3, np.array([7, 90, 2])), everything[[7, 90, 2]])
    assert not np.array_equal(gumbel(5, 4, np.arange(100)), everything)
    assert not np.array_equal(gumbel(6, 3, np.arange(100)), everything)


def test_noise_is_standard_gumbel():
    """Mean is Euler's constant, variance pi squared over six, and nothing is infinite."""
    noise = gumbel(1, 0, np.arange(200_000))
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.57722, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.02)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63 - 1, 2**64 - 1])
def test_any_seed_up_to_64_bits_serves(seed):
    """Large seeds wrap inside the hash and raise nothing."""
    assert np.isfinite(gumbel(seed, 10**6, np.arange(4))).all()


def test_greedy_takes_the_first_of_equals():
    """Ties go to the smaller id, always."""
    assert choose(np.array([0, 3, 3, 1], np.float32), make_sequence(temperature=0.0)) == 1


def test_allowed_token_ids_allow_nothing_else():
    """Everything outside the list is impossible."""
    draws = {choose(LOGITS, make_sequence(seed=s, allowed_token_ids=[7, 9])) for s in range(50)}
    assert draws == {7, 9}


def test_logit_bias_is_added_before_penalties_and_temperature():
    """A large bias decides a greedy choice."""
    assert choose(LOGITS, make_sequence(temperature=0.0, logit_bias={8: 10.0})) == 8


def test_min_tokens_masks_every_stop_token_until_it_is_reached():
    """End tokens and the caller's stop tokens cannot come early; then they can."""
    logits = np.zeros(VOCAB, np.float32)
    logits[[1, 2, 6]] = [9, 8, 7]  # both end tokens, one stop token
    params = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": [6]}
    assert choose(logits, make_sequence(output=[5], **params)) == 0
    assert choose(logits, make_sequence(output=[5, 5], **params)) == 1


def test_min_tokens_lets_one_through_when_only_stop_tokens_are_allowed():
    """A row must never be all impossible."""
    params = {"temperature": 0.0, "min_tokens": 2, "allowed_token_ids": [1]}
    assert choose(LOGITS, make_sequence(**params)) == 1


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    """It counts prompt and output."""
    logits = np.array([1.0, -0.5, 0.4, -0.8], np.float32)
    sequence = make_sequence(prompt=(0,), output=(1,), temperature=0.0, repetition_penalty=3.0)
    assert choose(logits, sequence) == 2  # 1/3, -1.5, 0.4, -0.8


def test_frequency_and_presence_count_the_output_only():
    """Frequency by how often, presence by whether at all; the prompt does not count."""
    logits = np.array([1.0, 0.9, 0.5, 0.0], np.float32)
    params = {"temperature": 0.0, "prompt": (0, 0, 0), "output": (1, 1)}
    assert choose(logits, make_sequence(frequency_penalty=1.0, **params)) == 0
    params = {"temperature": 0.0, "prompt": (3,), "output": (0, 1)}
    assert choose(logits, make_sequence(presence_penalty=0.6, **params)) == 2


def test_sampling_leaves_the_logits_as_they_are():
    """Log-probabilities are of the model's own logits, taken after the choice."""
    logits = LOGITS.copy()
    sequence = make_sequence(
        output=[1], min_tokens=5, logit_bias={0: 5.0}, repetition_penalty=2.0, presence_penalty=1.0
    )
    choose(logits, sequence)
    assert np.array_equal(logits, LOGITS)


def test_logprobs_are_a_log_softmax_with_ranks():
    """The sampled token first, whatever its rank; then the best, ties by the smaller id."""
    row = logprob_row(LOGITS, 5, 3)
    exact = np.log(softmax(LOGITS.astype(np.float64)))
    assert [(token, rank) for token, _, rank in row] == [(5, 6), (0, 1), (1, 2), (2, 3)]
    assert [value for _, value, _ in row] == pytest.approx(exact[[5, 0, 1, 2]], abs=1e-6)


def test_rank_counts_ties_against_the_token():
    """Of two equals at the second place both have rank three."""
    assert logprob_row(LOGITS, 1, 0)[0][2] == 3


@pytest.mark.parametrize(("requested", "length"), [(0, 1), (5, 6), (-1, 13), (100, 13)])
def test_logprobs_hold_as_many_as_requested(requested, length):
    """0 is the sampled token alone, -1 the whole vocabulary."""
    assert len(logprob_row(LOGITS, 5, requested)) == length


def test_top_p_keeps_at_least_one():
    """However small it is."""
    candidates, _ = truncate(LOGITS, Choice(temperature=1.0, top_p=1e-9))
    assert candidates.tolist() == [0]


@pytest.mark.parametrize(
    ("output", "bad", "chosen"),
    [
        ((), [(0,)], 1),
        ((), [(0,), (1,)], 2),
        ((5,), [(5, 0)], 1),
        ((4,), [(5, 0)], 0),
        ((5, 6), [(5, 6, 0)], 1),
        ((6,), [(5, 6, 0)], 0),
        ((), [(4, 0)], 0),  # the prompt ends in 4, and does not count
    ],
)
def test_the_last_token_of_a_bad_word_may_not_follow_the_others(output, bad, chosen):
    """A word of one token never comes; one of several is stopped at its last, in the output alone."""
    assert choose(LOGITS, make_sequence(output, bad=bad, temperature=0.0)) == chosen


def test_a_mask_that_would_leave_nothing_is_passed_over():
    """Later masks give way to earlier ones."""
    only = {"allowed_token_ids": [5], "temperature": 0.0}
    assert choose(LOGITS, make_sequence(bad=[(5,)], **only)) == 5
    assert choose(LOGITS, make_sequence(stop_token_ids=[5], min_tokens=3, **only)) == 5


def test_chosen_ids_are_scored_with_their_ranks():
    """Beside the sampled token, in the order they were asked for; ties count against them."""
    step = make_sequence(temperature=0.0, logprobs=3, logprob_token_ids=[11, 2, 0])
    plan = Plan((PlannedRows(step, start=0, num_tokens=2, samples=True, num_leading=0),))
    [row] = StepSampler(NativeSampler()).sample(LOGITS[None], plan)
    exact = np.log(softmax(LOGITS.astype(np.float64)))
    assert [(token_id, rank) for token_id, _, rank in row.logprobs] == [
        (0, 1),
        (11, 12),
        (2, 3),
        (0, 1),
    ]
    assert [p for _, p, _ in row.logprobs] == pytest.approx(exact[[0, 11, 2, 0]], abs=1e-5)


PENALISED = {"frequency_penalty": 1.0, "output": (0,), "logprobs": 12}


def scored(mode, **params):
    """Token to value, as the sampler reports a row under this mode."""
    step = make_sequence(**params)
    plan = Plan((PlannedRows(step, start=0, num_tokens=3, samples=True, num_leading=0),))
    [row] = StepSampler(NativeSampler(), mode).sample(LOGITS[None], plan)
    assert row.logprobs[0][0] == row.token_id
    return {token_id: value for token_id, value, _ in row.logprobs}


def test_raw_values_are_of_the_models_own_logits():
    """Whatever is done to them afterwards."""
    exact = np.log(softmax(LOGITS.astype(np.float64)))
    logprobs = scored(LogprobsMode.RAW_LOGPROBS, temperature=0.5, top_k=2, **PENALISED)
    logits = scored(LogprobsMode.RAW_LOGITS, temperature=0.5, top_k=2, **PENALISED)
    assert [logprobs[i] for i in range(VOCAB)] == pytest.approx(exact, abs=1e-6)
    assert [logits[i] for i in range(VOCAB)] == LOGITS.tolist()


def test_processed_values_are_of_what_may_be_drawn():
    """Penalties, temperature and truncation are in them, and what was cut off is not listed."""
    expected = (LOGITS.astype(np.float64) - np.eye(VOCAB)[0]) / 0.5
    best = [1, 2, 0, 3]  # 3.0, 3.0, 2.0 and, as good as the last of three, 2.0
    params = {"temperature": 0.5, "top_k": 3, **PENALISED}
    logits = scored(LogprobsMode.PROCESSED_LOGITS, **params)
    assert logits == {i: pytest.approx(expected[i]) for i in best}
    logprobs = scored(LogprobsMode.PROCESSED_LOGPROBS, **params)
    exact = np.log(softmax(expected[best]))
    assert logprobs == {i: pytest.approx(p, abs=1e-6) for i, p in zip(best, exact, strict=True)}


def test_a_greedy_row_is_processed_without_a_temperature():
    """It has none."""
    logits = scored(LogprobsMode.PROCESSED_LOGITS, temperature=0.0, **PENALISED)
    assert logits[0] == 1.0
    assert [logits[i] for i in range(1, VOCAB)] == LOGITS[1:].tolist()


@pytest.mark.parametrize("mode", list(LogprobsMode))
def test_a_forced_token_comes_whatever_else_was_requested(mode):
    """Masks and draws are for tokens that are chosen; the twin in numpy says the same."""
    step = make_sequence(logprobs=2, temperature=0.7, top_k=3, allowed_token_ids=[1, 2])
    end = OpenReasoning(end="b", end_token_ids=[11])
    step.reasoning = ReasoningTracker(end, lambda token_id: b"a", budget=0)
    plan = Plan((PlannedRows(step, start=0, num_tokens=2, samples=True, num_leading=0),))
    [row] = StepSampler(NativeSampler(), mode).sample(LOGITS[None], plan)
    assert row.token_id == row.logprobs[0][0] == choose(LOGITS, step) == 11


def test_an_ending_is_held_back_only_where_a_grammar_rules():
    """`ignore_eos` masks what would end an answer of a form, but not while reasoning comes before it."""
    step = make_sequence(ignore_eos=True, temperature=0.0)
    step.request = msgspec.structs.replace(step.request, eos_token_ids=(0,))
    step.grammar = AllowsAll()
    assert choose_natively(LOGITS, next_choice(step)) == choose(LOGITS, step) == 1
    step.reasoning = ReasoningTracker(
        OpenReasoning(end="b", end_token_ids=[11]), lambda token_id: b"a", budget=None
    )
    assert choose_natively(LOGITS, next_choice(step)) == choose(LOGITS, step) == 0


class AllowsAll:
    """A grammar that says nothing."""

    def mask(self):
        """Every token's bit."""
        return mask_of(np.ones(VOCAB, bool))


@pytest.mark.parametrize("mode", list(LogprobsMode))
def test_the_mode_changes_no_token(mode):
    """Nor does asking for log-probabilities: with them rows go another way, to the same draw."""
    sampler = StepSampler(NativeSampler(), mode)
    for params in ({}, {"temperature": 0.7}, {"temperature": 0.0}):
        for seed in range(30):
            plain, requested = (
                Plan((PlannedRows(step, 0, 2, samples=True, num_leading=0),))
                for step in (
                    make_sequence(seed=seed, **params, **wish) for wish in ({}, {"logprobs": 2})
                )
            )
            assert (
                sampler.sample(LOGITS[None], plain)[0].token_id
                == sampler.sample(LOGITS[None], requested)[0].token_id
            )


def test_rows_are_drawn_alike_alone_and_beside_one_that_is_not_plain():
    """A step of plain rows is drawn whole; where others are among them, the same rows are picked out."""
    plain = [make_sequence(seed=1), make_sequence(seed=2, temperature=0.0), make_sequence(seed=3)]
    entries = [PlannedRows.of(sequence, 1, 1) for sequence in plain]
    scored = PlannedRows.of(make_sequence(seed=4, logprobs=1), 1, 1)
    rows = np.random.default_rng(0).standard_normal((4, VOCAB)).astype(np.float32)
    sampler = StepSampler(NativeSampler())
    alone = sampler.sample(rows[[0, 1, 3]], Plan(tuple(entries)))
    beside = sampler.sample(rows, Plan((*entries[:2], scored, entries[2])))
    assert [row.token_id for row in alone] == [beside[i].token_id for i in (0, 1, 3)]
    assert alone[1].token_id == int(rows[1].argmax())


def plan_of(*sequences):
    """The next step of each, in one row of logits."""
    return Plan(tuple(PlannedRows.of(s, s.num_tokens - 1, 1) for s in sequences))


@pytest.mark.parametrize("narrowed", [{}, {"top_p": 0.9}, {"top_k": -1, "min_p": 0.1}])
@pytest.mark.parametrize("output", [(), (5, 7, 2)])
def test_a_plain_step_has_the_choices_of_its_rows(output, narrowed):
    """The choices made for the whole step are those that each sequence makes alone."""
    plain = [make_sequence(output, seed=seed, temperature=0.5 * seed) for seed in range(3)]
    plain.append(make_sequence(output, seed=3, **narrowed))
    made = plain_choices(plain)
    alone = Choices.of(range(4), list(map(next_choice, plain)))
    for place in range(4):
        assert msgspec.structs.asdict(made[place]) == msgspec.structs.asdict(alone[place])
    assert made.rows.tolist() == alone.rows.tolist()


def test_a_plain_row_that_is_not_finite_fails_alone():
    """The rows beside it are sampled as ever."""
    rows = np.tile(LOGITS, (3, 1))
    rows[1, 4] = np.nan
    plain = [make_sequence(temperature=0.0) for _ in range(3)]
    first, bad, last = StepSampler(NativeSampler()).sample(rows, plan_of(*plain))
    assert first.token_id == last.token_id == 0
    assert bad.is_corrupt


class FailsFirst(NativeSampler):
    """A sampler that fails in each call for more than one row."""

    @staticmethod
    def sample(logits, choices, mode):
        if len(choices) > 1:
            raise RuntimeError("too many")
        return NativeSampler.sample(logits, choices, mode)


def test_a_plain_step_whose_call_fails_is_sampled_row_by_row():
    """No request fails for what was wrong with all of them in one call."""
    plain = [make_sequence(seed=seed) for seed in range(3)]
    results = StepSampler(FailsFirst()).sample(np.tile(LOGITS, (3, 1)), plan_of(*plain))
    assert [row.token_id for row in results] == [choose(LOGITS, one) for one in plain]


def test_a_request_that_cannot_be_sampled_fails_alone(caplog):
    """Here for a stop token that the model does not have: the others of its step get their tokens."""
    bad = make_sequence(min_tokens=3, stop_token_ids=[VOCAB])
    good = [make_sequence(seed=seed, top_p=0.9) for seed in (1, 2)]
    rows = np.tile(LOGITS, (3, 1))
    results = StepSampler(NativeSampler()).sample(rows, plan_of(good[0], bad, good[1]))
    assert [results[0].token_id, results[2].token_id] == [choose(LOGITS, s) for s in good]
    assert results[1].error == "internal error while sampling"
    assert [record.message for record in caplog.records] == ["sampling failed: request_id=r"]


class AllowsNothing:
    """A grammar that can go on no more."""

    def mask(self):
        """Why."""
        raise GrammarFailed("no token fits")


def test_a_grammar_that_fails_fails_alone():
    """Its request is told why; the rows beside it are sampled."""
    bad, good = make_sequence(temperature=0.0), make_sequence(temperature=0.0)
    bad.grammar = AllowsNothing()
    failed, sampled = StepSampler(NativeSampler()).sample(
        np.tile(LOGITS, (2, 1)), plan_of(bad, good)
    )
    assert failed.error == "the grammar cannot be followed any further: no token fits"
    assert not failed.is_corrupt
    assert sampled.token_id == 0


class CountingSampler:
    """The native sampler; `calls` are the choices of each call."""

    def __init__(self):
        self.calls = []

    def sample(self, logits, choices, mode):
        self.calls.append(choices)
        return NativeSampler.sample(logits, choices, mode)


SETTINGS = [
    {},
    {"temperature": 0.0},
    {"frequency_penalty": 2.0, "repetition_penalty": 1.5, "top_p": 0.9},
    {"min_tokens": 3, "stop_token_ids": [0, 1, 2]},
    {"bad": [(1, 2), (2, 1), (1, 1)], "temperature": 0.0},
]


@pytest.mark.parametrize("params", SETTINGS)
def test_drafts_are_verified_in_the_call_that_samples(params):
    """Each row is chosen from as if the drafts before it were output, so the tokens are those of single steps."""
    rows = np.random.default_rng(6).standard_normal((4, VOCAB)).astype(np.float32) * 2
    expected, output = [], []
    for row in rows:
        expected.append(choose(row, make_sequence(output=output, **params)))
        output = [*output, expected[-1]]
    for num_right in range(4):
        step = make_sequence(**params)
        drafts = [*expected[:num_right], *[VOCAB - 1 - token for token in expected[num_right:3]]]
        entry = PlannedRows(step, 1, 1, samples=True, num_leading=0, draft_token_ids=tuple(drafts))
        sampler = CountingSampler()
        found = []
        for _, [result] in StepSampler(sampler).finish(rows, Plan((entry,))):
            found.append(result.token_id)
            step.token_ids.append(result.token_id)
        assert found == expected[: num_right + 1]
        assert [len(choices) for choices in sampler.calls] == [4]


def test_where_a_grammar_rules_drafts_are_verified_one_by_one():
    """Its mask is known when the token before is committed: a call for each row that is reached."""
    rows = np.tile(LOGITS, (3, 1))
    step = make_sequence(temperature=0.0)
    step.grammar = AllowsAll()
    entry = PlannedRows(step, 1, 1, samples=True, num_leading=0, draft_token_ids=(0, 5))
    sampler = CountingSampler()
    for _, [result] in StepSampler(sampler).finish(rows, Plan((entry,))):
        step.token_ids.append(result.token_id)
    assert step.output_token_ids == [0, 0]
    assert [choices.rows.tolist() for choices in sampler.calls] == [[0], [1]]
