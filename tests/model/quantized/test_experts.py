"""Experts that are rounded one by one, as GPTQ, AWQ and compressed-tensors store them."""

import pytest

from tests.model.checkpoints import write_checkpoint
from tests.model.quantized.packers import (
    assert_near,
    assert_same,
    logits_of,
    packed_tensors,
    write,
)
from tests.model.quantized.test_groups import CASES
from tests.model.test_experts import MIXTRAL, QWEN, replace_steps
from weft.compute.arithmetic.grouped import describe_rounded_again
from weft.model.open import open_model

WIDE_HEADS = {"head_dim": 16}
CONFIGS = {
    "mixtral": {**MIXTRAL, **WIDE_HEADS},
    "qwen2_moe": {**replace_steps(QWEN), **WIDE_HEADS, "num_hidden_layers": 2},
}


@pytest.mark.parametrize("compute", ["native", "reference"])
@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("case", ["gptq", "awq", "groups"])
def test_experts_are_widened_to_what_they_mean(tmp_path, case, family, compute):
    """Bit for bit, each from its own tensors; the router is never rounded."""
    scheme, pack, _ = CASES[case]
    config = CONFIGS[family]
    stored, meant = packed_tensors(pack, config=config)
    name = write(tmp_path / "m", scheme, stored, config)
    whole = write_checkpoint(tmp_path / "f", config, meant)
    assert_same(name, whole, {"quantization": "none"}, compute=compute)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("case", ["gptq", "awq", "groups"])
def test_experts_are_computed_in_their_own_numbers(tmp_path, case, family):
    """Like the reference, which multiplies the same; near the floats that they mean."""
    scheme, pack, form = CASES[case]
    config = CONFIGS[family]
    name = write(tmp_path / "m", scheme, packed_tensors(pack, config=config)[0], config)
    checkpoint = open_model(name)
    own = {name: of for name, of in checkpoint.groups.items() if ".experts." in name}
    assert len(own) == config["num_hidden_layers"] * 3 * 3
    assert set(own.values()) == {form}
    assert describe_rounded_again(checkpoint.spec, checkpoint.groups) is None
    assert_near(name, logits_of(name, dtype="float32", quantization="none"), within=0.1)


def test_one_expert_that_was_left_out_takes_its_layer_with_it(tmp_path):
    """All of a layer are one product: that one is int8, in every expert, and the start says so."""
    scheme, pack, _ = CASES["gptq"]
    left_out = ["layers.0.block_sparse_moe.experts.1.w2"]
    stored, _ = packed_tensors(pack, left_out, CONFIGS["mixtral"])
    name = write(tmp_path / "m", scheme, stored, CONFIGS["mixtral"])
    checkpoint = open_model(name)
    said = describe_rounded_again(checkpoint.spec, checkpoint.groups)
    assert said.startswith("2 of these 25 matrices")
    assert_near(name)
