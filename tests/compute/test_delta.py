"""Gated delta nets: what rounding leaves of them, and that a state may go on in another slot."""

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.compute.steps import Part, alone, step
from weft.compute.arithmetic.convolution import Channels
from weft.compute.arithmetic.delta import DeltaNet
from weft.model.open import open_model
from weft.model.recurrence import DeltaSpec

MODEL = "embedded:random?layers=4&hidden=64&heads=4&head_dim=16&delta=4"
SPEC = DeltaSpec(
    num_key_heads=2,
    num_value_heads=6,
    key_size=7,
    value_size=5,
    conv_width=4,
    is_by_key_head=False,
)
IDS = np.random.default_rng(1).integers(3, 300, 40).tolist()


def make_layer(spec=SPEC, seed=0) -> DeltaNet:
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    channels = Channels(draw(spec.conv_size, spec.conv_width), None)
    vectors = {name: draw(*shape) for name, shape in spec.vectors.items()}
    return DeltaNet(spec, channels, np.float32(1e-5), **vectors)


def test_rows_are_the_same_bits_in_any_chunks():
    """And so is the state that they leave."""
    layer = make_layer()
    width = sum(SPEC.products.values())
    rows = np.random.default_rng(1).standard_normal((23, width)).astype(np.float32)
    whole, parts = (np.zeros(SPEC.state_size, np.float32) for _ in range(2))
    expected = layer(rows, whole)
    chunks = np.split(rows, [1, 2, 4, 16])
    got = np.concatenate([layer(chunk, parts) for chunk in chunks])
    assert expected.tobytes() == got.tobytes()
    assert whole.tobytes() == parts.tobytes()


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
