"""The choice of a token in numpy, from the definitions: what every sampler is held to."""

import numpy as np

from tests.doubles.processed import constrain, processed, score_values, truncate
from weft.compute.native import NativeSampler
from weft.compute.protocols.masks import flags_of
from weft.compute.protocols.sampler import Choice, Choices, Lists, Scoring
from weft.core.values.logprobs import LogprobsMode
from weft.engine.step.step_choices import noise_key, to_choice

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def choose(logits, sequence):
    """The next token of one sequence."""
    return choose_by(logits, to_choice(sequence, forced_token_id=sequence.forced_token_id))


def choose_by(logits, choice):
    """The token that a choice takes from a row."""
    if choice.forced_token_id is not None:
        return choice.forced_token_id
    row = constrain(masked(logits, choice), choice)
    if choice.temperature == 0:
        return int(row.argmax())
    candidates, scores = truncate(row, choice)
    noise = gumbel_of(choice.key, candidates)
    return int(candidates[(scores + noise).argmax()])


def masked(logits, choice):
    """The row without what the mask of the choice forbids."""
    if choice.mask is None:
        return logits
    return np.where(flags_of(choice.mask, len(logits)), logits, np.float32(-np.inf))


def sample(logits, choices, mode=LogprobsMode.RAW_LOGPROBS):
    """What `Sampler.sample` gives, row by row: tokens (None: the row is not finite) and rows of scores."""
    tokens = []
    for place, row in enumerate(choices.rows):
        choice = choices[place]
        is_finite = np.isfinite(logits[row].max()) and (
            choice.forced_token_id is not None or np.isfinite(masked(logits[row], choice).max())
        )
        tokens.append(choose_by(logits[row], choice) if is_finite else None)
    scoring = choices.scoring
    scores = [_score(logits, choices, tokens, mode, i) for i in range(len(scoring or ()))]
    return tokens, scores


def _score(logits, choices, tokens, mode, i):
    scoring = choices.scoring
    row, given, place = logits[scoring.rows[i]], scoring.given[i].tolist(), scoring.choices[i]
    if place >= 0:
        choice = choices[place]
        row, given = masked(row, choice), [tokens[place], *given]
        if choice.forced_token_id is not None:
            choice = Choice(allowed=[choice.forced_token_id])
        if mode in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS):
            row = processed(row, choice)
    if not np.isfinite(row.max()) or None in given:
        return None
    if mode in (LogprobsMode.RAW_LOGPROBS, LogprobsMode.PROCESSED_LOGPROBS):
        row = log_softmax(row)
    num_best = scoring.num_best[i]
    return score_values(row, given, len(row) if num_best < 0 else num_best)


def gumbel(seed, position, token_ids):
    """The noise of one output position for each token id."""
    return gumbel_of(noise_key(seed, position), token_ids)


def gumbel_of(key, token_ids):
    """Standard Gumbel noise for each token id: adding it to log-probabilities and taking the largest
    draws from the distribution (the Gumbel-max trick)."""
    bits = _mix(np.uint64(key) + (token_ids.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    # 53 bits, centred in their cell: never 0 or 1, whose logarithms are infinite.
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _mix(values):
    values = (values ^ (values >> np.uint64(30))) * _M1
    values = (values ^ (values >> np.uint64(27))) * _M2
    return values ^ (values >> np.uint64(31))


def log_softmax(row):
    """Log-probabilities of a row, summed in float64."""
    largest = row.max()
    log_sum = np.log(np.exp(row - largest, dtype=np.float64).sum())
    return (row.astype(np.float64) - largest - log_sum).astype(np.float32)


def logprob_row(logits, token_id, num_top):
    """The token's own log-probability first, then the `num_top` best (-1: the whole vocabulary)."""
    num_best = len(logits) if num_top == -1 else num_top
    return score_values(log_softmax(logits), [token_id], num_best)


def choose_natively(row, choice):
    """The token that the native sampler takes from a row; None where it is not finite."""
    outcome = NativeSampler.sample(row[None], Choices.of([0], [choice])).result()
    return outcome.token_ids[0].item() if outcome.is_finite[0] else None


def score_natively(row, given, num_best=0, mode=LogprobsMode.RAW_LOGPROBS):
    """The scores of a row from which nothing is chosen."""
    scoring = Scoring(
        np.zeros(1, np.int32),
        np.full(1, -1, np.int32),
        Lists.of([given]),
        np.array([num_best], np.int32),
    )
    outcome = NativeSampler.sample(row[None], Choices.of([], [], scoring), mode).result()
    return outcome.scores.rows()[0]
