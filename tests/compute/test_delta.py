"""Gated delta nets: what rounding leaves of them, and that a state may go on in another slot."""

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.compute.steps import Part, alone, step
from weft.model.open import open_model

MODEL = "embedded:random?layers=4&hidden=64&heads=4&head_dim=16&delta=4"
IDS = np.random.default_rng(1).integers(3, 300, 40).tolist()


@pytest.mark.parametrize(("quantization", "error"), [("int8", 0.1), ("int4", 0.5)])
def test_linear_layers_are_rounded_and_the_answer_stays_near(quantization, error):
    """Other than without, and by no more than so many bits lose."""
    whole = alone(load_runner(open_model(MODEL), compute="reference"), IDS)
    runner = load_runner(open_model(MODEL), compute="reference", quantization=quantization)
    rounded = alone(runner, IDS)
    assert 0 < np.linalg.norm(rounded - whole) < error * np.linalg.norm(whole)


def test_two_sequences_go_on_from_one_state():
    """It is read by both and written by neither, so it is there for a third."""
    runner = load_runner(open_model(MODEL), compute="reference")
    tails = ([5, 6, 7], [8, 9], [10, 11, 12, 13])
    expected = [alone(runner, IDS + tail)[len(IDS) :] for tail in tails]
    runner.allocate_kv(num_blocks=10, block_size=8, num_state_slots=3)
    runner.forward(step([Part(IDS, 40, [0, 1, 2, 3, 4], 0, 40, (0, 0))], 8))
    parts = [
        Part(IDS + tail, 40, [0, 1, 2, 3, 4, 5 + i], 40, 40 + len(tail), (0, 1 + i))
        for i, tail in enumerate(tails[:2])
    ]
    both = runner.forward(step(parts, 8))
    third = Part(IDS + tails[2], 40, [0, 1, 2, 3, 4, 7], 40, 44, (0, 2))
    assert both.tobytes() == np.concatenate(expected[:2]).tobytes()
    assert runner.forward(step([third], 8)).tobytes() == expected[2].tobytes()


def test_what_a_slot_held_before_does_not_matter():
    """A sequence that begins finds zeros, whoever had the slot."""
    runner = load_runner(open_model(MODEL), compute="reference")
    expected = alone(runner, IDS)
    for slots in runner._slots:
        slots[:] = np.nan
    got = runner.forward(step([Part(IDS, 40, [0, 1, 2], 0, 40)], 16))
    assert got.tobytes() == expected.tobytes()
