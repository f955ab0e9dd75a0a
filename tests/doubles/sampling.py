"""The choice of a token in numpy, from the definitions: what every sampler is held to."""

import numpy as np

from weft.compute.processed import constrain, score_values, truncate
from weft.engine.step_sampler import noise_key, to_choice

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def choose(logits, sequence):
    """The next token of one sequence."""
    if sequence.forced_token_id is not None:
        return sequence.forced_token_id
    choice = to_choice(sequence)
    row = constrain(logits, choice)
    if sequence.params.is_greedy:
        return int(row.argmax())
    candidates, scores = truncate(row, choice)
    noise = gumbel(sequence.seed, sequence.num_output_tokens, candidates)
    return int(candidates[(scores + noise).argmax()])


def gumbel(seed, position, token_ids):
    """Standard Gumbel noise for each token id: adding it to log-probabilities and taking the largest
    draws from the distribution (the Gumbel-max trick)."""
    key = np.uint64(noise_key(seed, position))
    bits = _mix(key + (token_ids.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    # 53 bits, centred in their cell: never 0 or 1, whose logarithms are infinite.
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _mix(values):
    values = (values ^ (values >> np.uint64(30))) * _M1
    values = (values ^ (values >> np.uint64(27))) * _M2
    return values ^ (values >> np.uint64(31))


def logprob_row(logits, token_id, num_top):
    """The token's own log-probability first, then the `num_top` best (-1: the whole vocabulary)."""
    largest = logits.max()
    log_sum = np.log(np.exp(logits - largest, dtype=np.float64).sum())
    logprobs = (logits.astype(np.float64) - largest - log_sum).astype(np.float32)
    return score_values(logprobs, [token_id], len(logits) if num_top == -1 else num_top)
