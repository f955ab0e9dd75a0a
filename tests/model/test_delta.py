"""Models with gated delta nets from disk: which layer is which, their tensors, and what is refused."""

import numpy as np
import pytest

from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from weft.core.errors import ConfigError
from weft.model.families.decoders import read_config, read_spec
from weft.model.lora import AdapterTargets
from weft.model.open import find_model

NEXT = {
    **CONFIG,
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "partial_rotary_factor": 1.0,
    "num_experts": 0,
}
QWEN35 = {**NEXT, "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"]}
del QWEN35["num_experts"]


def spec_of(**changes):
    return read_spec(read_config({**NEXT, **changes}, "config.json"))


@pytest.mark.parametrize(
    "changes",
    [
        {"full_attention_interval": 2},
        {"layer_types": ["linear_attention", "full_attention"] * 2, "full_attention_interval": 4},
    ],
)
def test_keys_say_which_layers_have_attention(changes):
    """A list counts before the interval."""
    spec = spec_of(**changes)
    assert [layer.recurrence is None for layer in spec.layers] == [False, True] * 2
    assert [layer.rope is None for layer in spec.layers] == [True, False] * 2
    assert (spec.num_attention_layers, spec.state_size) == (2, 0)
    channels, matrices = 2 * 2 * 6 + 4 * 10, 4 * 6 * 10
    assert spec.slot_size == 2 * (3 * channels + matrices)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["linear_attention"] * 4}, "layer_types"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention", "mamba"] * 2}, "layer_types"),
        ({"full_attention_interval": 5}, "full_attention_interval"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"mrope_section": [1, 1, 1]}}, "mrope_section"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes, message):
    """Every key that decides about these layers."""
    with pytest.raises(ConfigError, match=message):
        spec_of(**changes)


def test_other_families_refuse_gated_delta_nets():
    """They would be read as attention."""
    with pytest.raises(ConfigError, match="linear_num_value_heads 4 is not implemented for Llama"):
        read_spec(read_config({**CONFIG, "linear_num_value_heads": 4}, "config.json"))


def test_attention_without_gates_is_read_as_the_file_says():
    """Then its first product has queries alone."""
    assert spec_of().has_output_gate
    assert not spec_of(attn_output_gate=False).has_output_gate


def test_the_text_model_of_one_that_sees_is_read(tmp_path):
    """Sections of its rope are of pictures; what sees, and what guesses later tokens, is passed over."""
    rope = {"rope_theta": 1e6, "mrope_section": [1, 1, 0], "mrope_interleaved": True}
    text = {**QWEN35, "rope_parameters": {**rope, "partial_rotary_factor": 0.5}}
    plain = tensors_of(text)
    seeing = {
        name.replace("model.", "model.language_model.", 1): tensor for name, tensor in plain.items()
    }
    seeing |= {"model.visual.a": np.zeros(3, np.float32), "mtp.a": np.zeros(3, np.float32)}
    config = {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "vocab_size": text["vocab_size"],
        "text_config": text,
    }
    found = find_model(str(write_checkpoint(tmp_path / "a", config, seeing)))
    assert found.spec == find_model(str(write_checkpoint(tmp_path / "b", text, plain))).spec
    assert found.load()["layers.0.a_log"].shape == (4,)


def test_weights_and_memory_are_counted(tmp_path):
    """The card has every parameter of the file, and what a sequence keeps."""
    tensors = tensors_of(NEXT)
    assert tensors["model.layers.2.linear_attn.conv1d.weight"].shape == (64, 1, 4)
    assert tensors["model.layers.2.linear_attn.in_proj_qkvz.weight"].shape == (104, 16)
    card = find_model(str(write_checkpoint(tmp_path / "a", NEXT, tensors))).card
    assert card.num_parameters == sum(tensor.size for tensor in tensors.values())
    assert card.state_bytes_per_slot == 3 * (3 * 64 + 240) * 4
    assert card.keeps_states


def test_adapters_may_be_on_what_leads_into_a_net_and_out_of_it():
    """Not on the weights of its channels, which are no linear layer."""
    targets = AdapterTargets.of(spec_of(), "qwen3_next")
    for name in ("in_proj_qkvz", "in_proj_ba", "out_proj"):
        assert targets.find(f"model.layers.0.linear_attn.{name}") is not None
    assert targets.find("model.layers.0.linear_attn.conv1d") is None
