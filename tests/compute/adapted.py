"""Steps in which rows have adapters, of whichever runner: each sequence in eight blocks of its own."""

from dataclasses import replace

import numpy as np

from tests.compute.steps import Part, step
from tests.model.adapters import ATTENTION, MLP

EVERY = (*ATTENTION, *MLP, "embed_tokens", "lm_head")
BLOCK_SIZE = 8


def prompt(seed, length):
    """Any tokens."""
    return np.random.default_rng(seed).integers(0, 301, length).tolist()


def part(token_ids, place, start=0, end=None):
    """A sequence in the blocks of its place."""
    blocks = list(range(place * 8, place * 8 + 8))
    return Part(token_ids, len(token_ids), blocks, start, len(token_ids) if end is None else end)


def run(runner, parts, adapter_ids, logit_rows=None):
    """The logits of one step, of every row unless some are named."""
    ids = None if adapter_ids is None else np.array(adapter_ids, np.int32)
    return runner.forward(replace(step(parts, BLOCK_SIZE, logit_rows), adapter_ids=ids))
