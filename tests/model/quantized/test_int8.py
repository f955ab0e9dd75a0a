"""Checkpoints whose weights were rounded beforehand: read as what they mean, or refused by name."""

import copy

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
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


def rounded_tensors():
    """The tensors of a W8A8 checkpoint, and the same as the float32 that they mean."""
    rounded, meant = {}, {}
    for name, values in tensors_of().items():
        if "_proj" not in name:
            rounded[name] = meant[name] = values
            continue
        scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
        whole = np.rint(values / scales).astype(np.int8)
        whole[0, 0] = -128  # such a number can come with scales that were searched for
        rounded[name], rounded[name + "_scale"] = whole, scales
        meant[name] = whole.astype(np.float32) * scales
    return rounded, meant


def write(directory, scheme=SCHEME, tensors=None):
    config = {**CONFIG, "quantization_config": scheme}
    return str(write_checkpoint(directory, config, tensors or rounded_tensors()[0]))


def logits_of(name, purpose="auto", **how):
    runner = load_runner(open_model(name, runner=purpose), **how)
    runner.allocate_kv(num_blocks=2, block_size=16)
    ids = [5, 99, 7, 250, 3, 3, 8, 120]
    return runner.forward(step([Part(ids, 8, [1], 0, 8)], 16))


@pytest.mark.parametrize("compute", ["reference", "native"])
def test_int8_weights_are_read_as_what_they_mean(tmp_path, compute):
    """Bit for bit the model whose weights are the products of whole numbers and scales."""
    rounded, meant = rounded_tensors()
    expected = logits_of(str(write_checkpoint(tmp_path / "meant", tensors=meant)), compute=compute)
    got = logits_of(write(tmp_path / "int8", tensors=rounded), compute=compute)
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("compute", ["reference", "native"])
@pytest.mark.parametrize("scale", [np.nan, np.inf, 3e37])
def test_a_scale_that_gives_no_numbers_is_refused(tmp_path, compute, scale):
    """Also one that is a number itself, and times 127 is none."""
    tensors, _ = rounded_tensors()
    tensors[Q + "_scale"][3] = scale
    checkpoint = open_model(write(tmp_path / "m", tensors=tensors))
    with pytest.raises(ConfigError, match=r"q_proj.weight.* holds NaN or infinity"):
        load_runner(checkpoint, compute=compute)


@pytest.mark.parametrize("compute", ["reference", "native"])
def test_hidden_states_of_int8_weights_are_read_alike(tmp_path, compute):
    """A model that pools may be stored so too."""
    rounded, meant = rounded_tensors()
    whole = str(write_checkpoint(tmp_path / "meant", tensors=meant))
    expected = logits_of(whole, "pooling", compute=compute)
    got = logits_of(write(tmp_path / "int8", tensors=rounded), "pooling", compute=compute)
    assert got.shape == (8, CONFIG["hidden_size"])
    assert got.tobytes() == expected.tobytes()


def test_the_whole_numbers_are_multiplied_as_they_are(tmp_path):
    """With int8 products nothing is rounded again: both runners agree, and are near float32."""
    name = write(tmp_path / "int8")
    native = logits_of(name, compute="native", quantization="int8")
    reference = logits_of(name, compute="reference", quantization="int8")
    whole = logits_of(name, compute="reference")
    assert np.linalg.norm(native - reference) < 0.002 * np.linalg.norm(reference)
    assert 0 < np.linalg.norm(native - whole) < 0.03 * np.linalg.norm(whole)


def test_the_card_says_what_was_read(tmp_path):
    """The type is that of what was not rounded; the ready block tells of the rest."""
    card = open_model(write(tmp_path / "int8")).card
    assert card.dtype == "float32"
    assert "int8" in (card.notice or "")


def changed(*path, value):
    scheme = copy.deepcopy(SCHEME)
    at = scheme
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return scheme


GROUP = ("config_groups", "group_0")


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ({"bits": 4, "quant_method": "hqq"}, "quant_method is 'hqq'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method is 'bitsandbytes'"),
        ({"load_in_4bit": True}, "quant_method is None"),
        (changed("format", value="marlin-24"), "format is 'marlin-24'"),
        (changed("kv_cache_scheme", value={"num_bits": 8}), "kv_cache_scheme"),
        (changed("sparsity_config", value={"format": "sparse-24"}), "sparsity_config"),
        (changed("config_groups", value={}), "config_groups"),
        (changed(*GROUP, "weights", value=None), "weights is missing"),
        (changed(*GROUP, "weights", "num_bits", value=4), "num_bits is 4"),
        (changed(*GROUP, "weights", "strategy", value="group"), "strategy is 'group'"),
        (changed(*GROUP, "weights", "symmetric", value=False), "symmetric is False"),
        (changed(*GROUP, "weights", "symmetric", value=1), "symmetric is 1"),
        (changed(*GROUP, "weights", "type", value="float"), "type is 'float'"),
        (changed(*GROUP, "input_activations", "dynamic", value=False), "dynamic is False"),
        (changed(*GROUP, "input_activations", "strategy", value="tensor"), "strategy is 'tensor'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, scheme, words):
    """The message says which key, and what would be read."""
    with pytest.raises(ConfigError) as error:
        open_model(write(tmp_path / "m", scheme))
    assert words in str(error.value)
    assert "quantization_config" in str(error.value)


def test_scales_that_are_missing_misshapen_or_no_numbers_are_named(tmp_path):
    """int8 alone means nothing."""
    rounded, _ = rounded_tensors()
    scales = rounded.pop(Q + "_scale")
    with pytest.raises(ConfigError, match=f"{Q}_scale is missing"):
        open_model(write(tmp_path / "a", tensors=rounded))
    rounded[Q + "_scale"] = scales[:, 0]
    with pytest.raises(ConfigError, match=f"{Q}_scale has shape"):
        open_model(write(tmp_path / "b", tensors=rounded))
    rounded[Q + "_scale"] = np.full_like(scales, np.nan)
    checkpoint = open_model(write(tmp_path / "c", tensors=rounded))
    with pytest.raises(ConfigError, match=f"{Q}_scale holds NaN"):
        load_runner(checkpoint, compute="native")
    with pytest.raises(ConfigError, match=f"{Q}_scale holds NaN"):
        load_runner(checkpoint, compute="reference")


def test_int8_that_nothing_explains_is_refused(tmp_path):
    """Without a scheme, or where no scheme puts it, int8 is not guessed at."""
    rounded, _ = rounded_tensors()
    name = "model.embed_tokens.weight"
    with pytest.raises(ConfigError, match=r"q_proj\.weight is int8"):
        open_model(str(write_checkpoint(tmp_path / "a", tensors=rounded)))
    rounded[name] = np.zeros_like(rounded[name], np.int8)
    with pytest.raises(ConfigError, match=f"{name} is int8"):
        open_model(write(tmp_path / "b", tensors=rounded))
