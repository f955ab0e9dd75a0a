"""weft.engine.step.step_size: the memory of a row, by which a step's number of rows is bounded."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weft.engine.step.step_size import row_bytes
from weft.model.files.checkpoint import Checkpoint
from weft.model.open import open_model
from weft.model.spec import ExpertsSpec, LatentSpec, ModelSpec

PLAIN = (
    "embedded:random?layers=2&hidden=32&heads=4&kv_heads=2&head_dim=16&intermediate=96&vocab=400"
)
EXPERTS = ExpertsSpec(count=8, per_token=3, inner_size=24)
LATENT = LatentSpec(rank=16, rope_size=4, key_size=12, value_size=20, query_rank=10)


def spec() -> ModelSpec:
    """Two layers of attention and an MLP."""
    found = open_model(PLAIN).spec
    assert isinstance(found, ModelSpec)
    return found


def bytes_of(dtype: str = "float32", **changes: Any) -> int:
    """Bytes of a row of the model with these changes."""
    made = SimpleNamespace(spec=replace(spec(), **changes), card=SimpleNamespace(dtype=dtype))
    return row_bytes(cast(Checkpoint, made))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # In float32 the hidden state, and queries, keys and values; in the model's type the normed hidden state,
        # the inputs and outputs of attention, and the inner vector of the MLP.
        ({}, 4 * (32 + 64 + 2 * 32) + 4 * (32 + 2 * 64 + 96)),
        ({"dtype": "bfloat16"}, 4 * (32 + 64 + 2 * 32) + 2 * (32 + 2 * 64 + 96)),
        # A gate as large as the queries.
        ({"has_output_gate": True}, 4 * (32 + 64 + 2 * 32 + 64) + 4 * (32 + 2 * 64 + 96)),
        # An input of each of two layers, and one of them in the model's type.
        ({"per_layer_size": 8}, 4 * (32 + 64 + 2 * 32 + 2 * 8) + 4 * (32 + 2 * 64 + 96 + 8)),
        # Queries of four heads and one vector; the values of the heads, and the compressed query.
        (
            {"latent": LATENT},
            4 * (32 + 4 * (12 + 4) + 32) + 4 * (32 + 2 * 64 + 96 + 4 * 20 + 10),
        ),
        # Three experts: an input, an inner vector and an output each. There is no other MLP.
        (
            {"layers": tuple(replace(layer, experts=EXPERTS) for layer in spec().layers)},
            4 * (32 + 64 + 2 * 32) + 4 * (32 + 2 * 64) + 3 * (4 * 32 + 4 * 32 + 4 * 24),
        ),
    ],
    ids=["plain", "bfloat16", "gate", "per layer", "latent", "experts"],
)
def test_a_row_takes_what_its_vectors_take(changes: dict[str, Any], expected: int):
    """Too little would let a step exceed the memory of the machine."""
    assert bytes_of(**changes) == expected


def test_a_model_that_computes_nothing_has_rows_without_bytes():
    """Nothing bounds its steps."""
    assert row_bytes(open_model("embedded:echo")) == 0
