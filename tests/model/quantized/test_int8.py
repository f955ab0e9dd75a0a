"""Checkpoints whose weights were rounded beforehand: read as what they mean, or refused by name."""

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.model.checkpoints import CONFIG, write_checkpoint
from tests.model.quantized.packers import assert_same, logits_of, packed_tensors, write
from weft.core.errors import ConfigError
from weft.model.open import open_model

INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**INT8, "strategy": "channel", "dynamic": False, "observer": "minmax"},
            "input_activations": {**INT8, "strategy": "token", "dynamic": True},
            "output_activations": None,
        }
    },
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
}
Q = "model.layers.1.self_attn.q_proj.weight"


def pack(values):
    """One scale a row, for `packed_tensors`."""
    scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    whole = np.rint(values / scales).astype(np.int8)
    whole[0, 0] = -128  # such a number can come with scales that were searched for
    return {"weight": whole, "weight_scale": scales}, whole.astype(np.float32) * scales


@pytest.mark.parametrize("compute", ["reference", "native"])
def test_int8_weights_are_read_as_what_they_mean(tmp_path, compute):
    """Bit for bit the model whose weights are the products of whole numbers and scales."""
    rounded, meant = packed_tensors(pack)
    whole = write_checkpoint(tmp_path / "meant", tensors=meant)
    assert_same(write(tmp_path / "int8", SCHEME, rounded), whole, compute=compute)


@pytest.mark.parametrize("compute", ["reference", "native"])
@pytest.mark.parametrize("scale", [np.nan, np.inf, 3e37])
def test_a_scale_that_gives_no_numbers_is_refused(tmp_path, compute, scale):
    """Also one that is a number itself, and times 127 is none."""
    tensors, _ = packed_tensors(pack)
    tensors[Q + "_scale"][3] = scale
    checkpoint = open_model(write(tmp_path / "m", SCHEME, tensors))
    with pytest.raises(ConfigError, match=r"q_proj.weight.* holds NaN or infinity"):
        load_runner(checkpoint, compute=compute)


@pytest.mark.parametrize("compute", ["reference", "native"])
def test_hidden_states_of_int8_weights_are_read_alike(tmp_path, compute):
    """A model that pools may be stored so too."""
    rounded, meant = packed_tensors(pack)
    whole = str(write_checkpoint(tmp_path / "meant", tensors=meant))
    expected = logits_of(whole, "pooling", compute=compute)
    got = logits_of(write(tmp_path / "int8", SCHEME, rounded), "pooling", compute=compute)
    assert got.shape == (8, CONFIG["hidden_size"])
    assert got.tobytes() == expected.tobytes()


def test_the_whole_numbers_are_multiplied_as_they_are(tmp_path):
    """With int8 products nothing is rounded again: both runners agree, and are near float32."""
    name = write(tmp_path / "int8", SCHEME, packed_tensors(pack)[0])
    native = logits_of(name, compute="native", quantization="int8")
    reference = logits_of(name, compute="reference", quantization="int8")
    whole = logits_of(name, compute="reference")
    assert np.linalg.norm(native - reference) < 0.002 * np.linalg.norm(reference)
    assert 0 < np.linalg.norm(native - whole) < 0.03 * np.linalg.norm(whole)


def test_the_card_says_what_was_read(tmp_path):
    """The type is that of what was not rounded; the ready block tells of the rest."""
    card = open_model(write(tmp_path / "int8", SCHEME, packed_tensors(pack)[0])).card
    assert card.dtype == "float32"
    assert "int8" in (card.notice or "")


def test_scales_that_are_missing_misshapen_or_no_numbers_are_named(tmp_path):
    """int8 alone means nothing."""
    rounded, _ = packed_tensors(pack)
    scales = rounded.pop(Q + "_scale")
    with pytest.raises(ConfigError, match=f"{Q}_scale is missing"):
        open_model(write(tmp_path / "a", SCHEME, rounded))
    rounded[Q + "_scale"] = scales[:, 0]
    with pytest.raises(ConfigError, match=f"{Q}_scale has shape"):
        open_model(write(tmp_path / "b", SCHEME, rounded))
    rounded[Q + "_scale"] = np.full_like(scales, np.nan)
    checkpoint = open_model(write(tmp_path / "c", SCHEME, rounded))
    with pytest.raises(ConfigError, match=f"{Q}_scale holds NaN"):
        load_runner(checkpoint, compute="native")
    with pytest.raises(ConfigError, match=f"{Q}_scale holds NaN"):
        load_runner(checkpoint, compute="reference")


def test_int8_that_nothing_explains_is_refused(tmp_path):
    """Without a scheme, or where no scheme puts it, int8 is not guessed at."""
    rounded, _ = packed_tensors(pack)
    name = "model.embed_tokens.weight"
    with pytest.raises(ConfigError, match=r"q_proj\.weight is int8"):
        open_model(str(write_checkpoint(tmp_path / "a", tensors=rounded)))
    rounded[name] = np.zeros_like(rounded[name], np.int8)
    with pytest.raises(ConfigError, match=f"{name} is int8"):
        open_model(write(tmp_path / "b", SCHEME, rounded))
