"""Models of attention and short convolutions from disk: which layer is which, their tensors, and what is refused."""

import numpy as np
import pytest

from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from weft.core.errors import ConfigError
from weft.model.families.decoders import read_config, read_spec
from weft.model.lora import AdapterTargets
from weft.model.open import find_model

LFM2 = {
    **CONFIG,
    "model_type": "lfm2",
    "architectures": ["Lfm2ForCausalLM"],
    "num_hidden_layers": 4,
    "full_attn_idxs": [1],
    "conv_L_cache": 3,
    "block_multiple_of": 8,
}


MOE = {
    **LFM2,
    "model_type": "lfm2_moe",
    "architectures": ["Lfm2MoeForCausalLM"],
    "full_attn_idxs": None,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "num_dense_layers": 3,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}


def spec_of(**changes):
    return read_spec(read_config({**LFM2, **changes}, "config.json"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_types": ["conv", "full_attention", "conv", "conv"], "full_attn_idxs": [0, 3]},
    ],
)
def test_keys_say_which_layers_have_attention(changes):
    """Newer files list types, which count; older ones the numbers of layers."""
    spec = spec_of(**changes)
    assert [layer.conv_width for layer in spec.layers] == [3, 0, 3, 3]
    assert [layer.rope is not None for layer in spec.layers] == [False, True, False, False]
    assert (spec.num_attention_layers, spec.state_size) == (1, 3 * 2 * 16)


def test_where_nothing_is_said_all_layers_have_attention():
    """As transformers reads it."""
    assert spec_of(full_attn_idxs=None).num_attention_layers == 4


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 16),  # two thirds of 24, in steps of 8
        ({"block_ffn_dim_multiplier": 1.1}, 24),
        ({"block_ffn_dim_multiplier": None, "intermediate_size": 25}, 16),
        ({"block_auto_adjust_ff_dim": False}, 24),
        ({"block_ff_dim": 48}, 32),  # what older files call it
    ],
)
def test_the_width_of_the_mlp_is_adjusted_as_the_file_says(changes, size):
    """The number in the file is not the one that is computed with."""
    assert spec_of(**changes).intermediate_size == size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["conv"] * 4}, "layer_types"),
        ({"layer_types": ["conv", "full_attention"]}, "layer_types"),
        ({"layer_types": ["conv", "full_attention", "mamba", "conv"]}, "mamba|layer_types"),
        ({"full_attn_idxs": [7]}, "full_attn_idxs"),
        ({"full_attn_idxs": "1"}, "full_attn_idxs"),
        ({"conv_L_cache": 1}, "conv_L_cache"),
        ({"conv_L_cache": 65}, "conv_L_cache"),
        ({"block_ffn_dim_multiplier": 1e6, "intermediate_size": 2**23}, "intermediate_size"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes, message):
    """Every key that decides about layers."""
    with pytest.raises(ConfigError, match=message):
        spec_of(**changes)


def test_experts_begin_behind_the_dense_layers(tmp_path):
    """As the file counts them; the MLP before is as wide as the file says."""
    checkpoint = find_model(str(write_checkpoint(tmp_path / "a", MOE)))
    assert [layer.experts is not None for layer in checkpoint.spec.layers] == [False] * 3 + [True]
    assert checkpoint.spec.intermediate_size == 24
    experts = checkpoint.spec.layers[3].experts
    assert (experts.count, experts.per_token, experts.inner_size) == (4, 2, 8)
    assert (experts.is_sigmoid, experts.is_normalized, experts.epsilon) == (True, True, 1e-6)
    assert checkpoint.load()["layers.3.router_correction"].shape == (4,)


def test_a_router_without_its_correction_is_refused():
    """Its scores would be chosen by another rule."""
    with pytest.raises(ConfigError, match="use_expert_bias False is not implemented"):
        read_spec(read_config({**MOE, "use_expert_bias": False}, "config.json"))


def test_other_families_refuse_convolutions():
    """They would be read as attention."""
    with pytest.raises(ConfigError, match="conv_L_cache 3 is not implemented for LlamaForCausalLM"):
        read_spec(read_config({**CONFIG, "conv_L_cache": 3}, "config.json"))


def test_weights_of_a_channel_lie_in_the_file_as_a_matrix_of_one_row(tmp_path):
    """[channels, 1, rows that it looks at]; and the card counts what the layers keep."""
    tensors = tensors_of(LFM2)
    name = "model.layers.2.conv.conv.weight"
    assert tensors[name].shape == (16, 1, 3)
    checkpoint = find_model(str(write_checkpoint(tmp_path / "a", LFM2, tensors)))
    assert np.array_equal(checkpoint.load()["layers.2.conv"].data, tensors[name][:, 0])
    card = checkpoint.card
    assert (card.kv_bytes_per_token, card.state_bytes_per_block) == (2 * 8 * 4, 3 * 2 * 16 * 4)
    assert card.num_parameters == sum(tensor.size for tensor in tensors.values())


def test_adapters_may_be_on_what_leads_into_a_convolution_and_out_of_it():
    """Not on the weights of its channels, which are no linear layer."""
    targets = AdapterTargets.of(spec_of(), "lfm2")
    assert targets.find("model.layers.0.conv.in_proj") is not None
    assert targets.find("model.layers.0.conv.out_proj") is not None
    assert targets.find("model.layers.0.conv.conv") is None
