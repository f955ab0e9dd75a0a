"""Whisper's rules for times, beside transformers' own processors of logits."""

import numpy as np
import pytest
import torch
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from weft.compute.protocols.masks import flags_of
from weft.core.values.media import SpeechRules
from weft.engine.constraints.times import allowed_tokens

WIDTH, END, FIRST = 200, 90, 100
RULES = SpeechRules(
    end=END,
    first_timestamp=FIRST,
    suppressed=[3, 4, *range(END + 1, FIRST)],
    suppressed_first=[5, END],
)
PROMPT = [91, 92]


def theirs(output, logits):
    """Tokens that transformers leaves."""
    config = GenerationConfig(
        no_timestamps_token_id=FIRST - 1, eos_token_id=END, bos_token_id=END,
        max_initial_timestamp_index=RULES.max_first_steps,
    )  # fmt: skip
    ids, scores = torch.tensor([PROMPT + output]), torch.tensor(logits[None])
    for processor in (
        SuppressTokensLogitsProcessor(RULES.suppressed),
        SuppressTokensAtBeginLogitsProcessor(RULES.suppressed_first, len(PROMPT)),
        WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT)),
    ):
        scores = processor(ids, scores)
    return torch.isfinite(scores[0]).numpy()


@pytest.mark.parametrize(
    "output",
    [
        [],
        [FIRST],
        [FIRST, 7],
        [FIRST, 7, FIRST + 9],
        [FIRST, 7, FIRST + 9, FIRST + 9],
        [FIRST, 7, FIRST + 9, FIRST + 12, 8, 9],
        [FIRST + 2, FIRST + 3],
        [FIRST, 7, FIRST + 99],
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(20))
def test_the_tokens_that_may_come_next_are_those_of_transformers(output, seed):
    """After every order of times and text, and whether times or text are more probable."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, WIDTH).astype(np.float32)
    logits[FIRST:] += rng.uniform(-6, 2)
    mine = flags_of(allowed_tokens(RULES, output, logits), WIDTH)
    np.testing.assert_array_equal(mine, theirs(output, logits))


def test_a_transcript_whose_times_are_used_up_ends():
    """Where no token is left the end is, so that no step fails."""
    rules = SpeechRules(
        end=END, first_timestamp=FIRST, suppressed=list(range(FIRST)), suppressed_first=[]
    )
    logits = np.zeros(WIDTH, np.float32)
    [token] = np.flatnonzero(flags_of(allowed_tokens(rules, [FIRST], logits), WIDTH)).tolist()
    assert token == END
