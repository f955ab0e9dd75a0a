"""MXFP4 experts of gpt-oss: what transformers makes of the same bytes, and products in their own four bits."""

import numpy as np
import pytest
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.compute.runners import load_runner
from tests.compute.steps import check_any_schedule
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from tests.model.quantized import packers
from weft.core.errors import ConfigError
from weft.model.groups import GroupFormat
from weft.model.open import open_model

GPT_OSS = {
    **CONFIG,
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 32,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "sliding_window": 20,
}
MXFP4 = {**GPT_OSS, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}
GATE_UP = "model.layers.1.mlp.experts.gate_up_proj"


def packed_tensors():
    """As the files have them, and with experts as transformers widens them."""
    rng = np.random.default_rng(2)
    stored, meant = {}, {}
    for name, values in tensors_of(GPT_OSS).items():
        stored[name] = meant[name] = values
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        count, depth, rows = values.shape
        blocks = rng.integers(0, 256, (count, rows, depth // 32, 16), dtype=np.uint8)
        scales = rng.integers(120, 125, (count, rows, depth // 32), dtype=np.uint8)
        del stored[name]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        wide = convert_moe_packed_tensors(
            torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32
        )
        meant[name] = np.ascontiguousarray(wide.numpy())
    return stored, meant


def logits_of(name, **flags):
    ids = np.random.default_rng(3).integers(0, 256, 60).tolist()
    return packers.logits_of(name, ids=ids, max_model_len=100, **{"dtype": "float32", **flags})


def test_experts_mean_what_transformers_says(tmp_path):
    """Each expert's gate and up by turns."""
    stored, meant = packed_tensors()
    checkpoint = open_model(str(write_checkpoint(tmp_path / "m", MXFP4, stored)))
    expected = open_model(str(write_checkpoint(tmp_path / "f", GPT_OSS, meant))).load()
    assert set(checkpoint.groups.values()) == {GroupFormat(4, 32, "e2m1", "bfloat16")}
    assert len(checkpoint.groups) == 2 * 3 * 3
    weights = checkpoint.map().tensors
    for name in checkpoint.groups:
        np.testing.assert_array_equal(weights[name].grouped().float32(), expected[name].data)
        np.testing.assert_array_equal(weights[name].unpacked().float32(), expected[name].data)


def test_they_are_computed_in_four_bits_or_widened(tmp_path):
    """Like the reference, which multiplies the same numbers; widened to the bits of a checkpoint of floats."""
    stored, meant = packed_tensors()
    name = str(write_checkpoint(tmp_path / "m", MXFP4, stored))
    whole = logits_of(name, quantization="none")
    floats = logits_of(str(write_checkpoint(tmp_path / "f", GPT_OSS, meant)))
    assert whole.tobytes() == floats.tobytes()
    packers.assert_near(name, whole, logits_of=logits_of)
    assert "4 bits (MXFP4)" in open_model(name).card.notice


def test_any_schedule_gives_the_same_bits(tmp_path):
    """Random mixes and chunks equal one token at a time, on experts in four bits."""
    checkpoint = open_model(str(write_checkpoint(tmp_path / "m", MXFP4, packed_tensors()[0])))
    assert checkpoint.card.stored_bits == 4
    runner = load_runner(checkpoint, compute="native", num_threads=2)
    check_any_schedule(runner, 5, (90, 7, 66, 1), (5, 40))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({f"{GATE_UP}_scales": None}, f"tensor {GATE_UP}_scales is missing"),
        (
            {f"{GATE_UP}_blocks": np.zeros((3, 192, 1, 16), np.uint8)},
            f"tensor {GATE_UP}_blocks has shape [3, 192, 1, 16]; config.json asks for [3, 192, 2, 16]",
        ),
        (
            {f"{GATE_UP}_scales": np.zeros((3, 192, 2), np.int8)},
            f"tensor {GATE_UP}_scales is int8; config.json asks for uint8",
        ),
    ],
)
def test_damaged_experts_are_named(tmp_path, change, words):
    """Before anything is loaded."""
    tensors = {name: v for name, v in (packed_tensors()[0] | change).items() if v is not None}
    with pytest.raises(ConfigError) as refused:
        open_model(str(write_checkpoint(tmp_path / "m", MXFP4, tensors)))
    assert words in str(refused.value)


def test_a_scale_that_is_no_number_is_named(tmp_path):
    """The byte of all ones."""
    stored, _ = packed_tensors()
    stored[f"{GATE_UP}_scales"][1, 5, 0] = 255
    name = str(write_checkpoint(tmp_path / "m", MXFP4, stored))
    with pytest.raises(ConfigError, match=rf"{GATE_UP}_scales holds NaN"):
        logits_of(name)
