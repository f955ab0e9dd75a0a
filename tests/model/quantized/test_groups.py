"""Weights of four bits are computed as a file has them, where there is a kernel for their groups."""

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.model.quantized.packers import (
    Rounded,
    assert_near,
    assert_same,
    awq,
    gptq,
    logits_from,
    logits_of,
    packed_tensors,
    rounded,
    words,
    write,
)
from weft.compute.backends import choose
from weft.compute.cpu import describe_rounding
from weft.compute.native import resident_bytes
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.model.groups import GroupFormat
from weft.model.open import open_model

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
Q = "model.layers.0.self_attn.q_proj"


def compressed(strategy, size):
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": strategy}
    weights |= {"group_size": size} if size else {}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": [],
    }


def pack_compressed(matrix: Rounded):
    return {
        "weight_packed": words(matrix.numbers, 4),
        "weight_scale": matrix.scales,
        "weight_shape": np.array(matrix.numbers.shape),
    }


def packing(pack, size=16, **how):
    def packed(values):
        matrix = rounded(values, size=size, **how)
        return pack(matrix), matrix.meant

    return packed


CASES = {
    "gptq": (GPTQ, packing(gptq), GroupFormat(4, 16, "zeros", "float16")),
    "awq": (AWQ, packing(awq), GroupFormat(4, 16, "zeros", "float16")),
    "groups": (
        compressed("group", 16),
        packing(pack_compressed, symmetric=True, scale_dtype=np.float32),
        GroupFormat(4, 16, "symmetric", "float32"),
    ),
    "rows": (
        compressed("channel", None),
        packing(pack_compressed, None, symmetric=True),
        GroupFormat(4, None, "symmetric", "float16"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_matrices_are_handed_out_in_their_own_numbers(tmp_path, case):
    """Which mean what the file means, bit for bit."""
    scheme, pack, form = CASES[case]
    stored, meant = packed_tensors(pack)
    checkpoint = open_model(write(tmp_path / "m", scheme, stored))
    assert set(checkpoint.groups.values()) == {form}
    assert checkpoint.card.stored_bits == 4
    matrix = checkpoint.map().tensors["layers.0.q"].grouped()
    assert matrix.format == form
    assert matrix.float32().tobytes() == meant[f"{Q}.weight"].tobytes()


@pytest.mark.parametrize("case", CASES)
def test_they_are_computed_so_unless_something_else_is_wanted(tmp_path, case):
    """Like the reference, which multiplies the same numbers; near the floats that they mean."""
    scheme, pack, _ = CASES[case]
    name = write(tmp_path / "m", scheme, packed_tensors(pack)[0])
    assert_near(name, logits_of(name, compute="native", quantization="none"))
    assert_same(name, name, {"quantization": "int4"}, compute="native")


@pytest.mark.parametrize("compute", ["native", "reference"])
def test_an_engine_whose_load_is_watched_computes_the_same(tmp_path, compute):
    """As every engine's is, to report how far it has come: with the numbers as they are stored."""
    scheme, pack, _ = CASES["gptq"]
    checkpoint = open_model(write(tmp_path / "m", scheme, packed_tensors(pack)[0]))
    reported = []
    got = logits_from(load_runner(checkpoint.watched(reported.append), compute=compute))
    assert got.tobytes() == logits_of(checkpoint.card.name, compute=compute).tobytes()
    assert len(reported) == len(checkpoint.map().tensors)


def test_layers_that_were_left_out_are_int8(tmp_path):
    """A matrix that is multiplied with others in one product takes these with it; memory is counted so."""
    scheme, pack, _ = CASES["gptq"]
    stored, _ = packed_tensors(pack, except_for=["v_proj", "down_proj"])
    checkpoint = open_model(write(tmp_path / "m", scheme, stored))
    assert {name.rpartition(".")[2] for name in checkpoint.groups} == {"q", "k", "o", "gate", "up"}
    spec, card = checkpoint.spec, checkpoint.card
    sizes = {
        how: resident_bytes(spec, card.dtype, how, groups=checkpoint.groups).weights
        for how in ("stored", "int8")
    }
    depth, columns = 32, 64  # of gate and up together, as they are padded
    header = 2 + 2  # a scale and a zero, of each column and group
    saved = columns * (depth + 4) - columns * (depth // 2 + depth // 16 * header)
    assert sizes["int8"] - sizes["stored"] == len(spec.layers) * saved
    assert_near(checkpoint.card.name)


@pytest.mark.parametrize("changes", [{"desc_act": True}, {"group_size": 8}])
def test_what_no_kernel_has_is_widened_as_before(tmp_path, changes):
    """Groups of another size, and columns in an order of their own."""
    pack = packing(gptq, changes.get("group_size", 16))
    stored, _ = packed_tensors(pack)
    name = write(tmp_path / "m", {**GPTQ, **changes}, stored)
    assert not open_model(name).groups
    assert_same(name, name, {"quantization": "none"})


@pytest.mark.parametrize("compute", ["native", "reference"])
def test_an_order_that_the_config_does_not_speak_of_is_refused(tmp_path, compute):
    """The tensor says otherwise; the message says what helps, and it does."""
    stored, _ = packed_tensors(packing(gptq, shuffled=True))
    name = write(tmp_path / "m", GPTQ, stored)
    with pytest.raises(ConfigError, match=r"down_proj\.scales: .* order .* --quantization none"):
        logits_of(name, compute=compute)
    assert np.isfinite(logits_of(name, compute=compute, quantization="none")).all()


@pytest.mark.parametrize("compute", ["native", "reference"])
def test_scales_that_are_no_numbers_are_named(tmp_path, compute):
    """As where they are widened."""
    stored, _ = packed_tensors(packing(gptq))
    stored[f"{Q}.scales"] = np.full_like(stored[f"{Q}.scales"], np.nan)
    with pytest.raises(ConfigError, match=rf"{Q}\.scales holds NaN"):
        logits_of(write(tmp_path / "m", GPTQ, stored), compute=compute)


def test_the_banner_and_the_notice_say_so(tmp_path):
    """What is computed, and how to have it otherwise."""
    card = open_model(write(tmp_path / "m", GPTQ, packed_tensors(packing(gptq))[0])).card
    assert card.notice is not None
    assert "--quantization none" in card.notice
    said = {
        how: describe_rounding(choose(EngineOptions(quantization=how), card))
        for how in (None, "int8", "none")
    }
    assert said == {None: ", weights in the bits they have", "int8": ", int8 weights", "none": ""}
