"""Models of attention and Mamba-2 from disk: which layer is which, their tensors, and what is refused."""

import math

import numpy as np
import pytest

from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from weft.compute.backends import choose
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.model.families.decoders import read_config, read_spec
from weft.model.lora import AdapterTargets
from weft.model.open import find_model
from weft.model.recurrence import Mamba1Spec, Mamba2Spec

GRANITE = {
    **CONFIG,
    "model_type": "granitemoehybrid",
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "position_embedding_type": "nope",
    "normalization_function": "rmsnorm",
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 6,
    "mamba_n_groups": 2,
    "num_local_experts": 0,
    "shared_intermediate_size": 40,
}
BAMBA = {
    **CONFIG,
    "model_type": "bamba",
    "architectures": ["BambaForCausalLM"],
    "num_hidden_layers": 3,
    "attn_layer_indices": [1],
    "attn_rotary_emb": 4,
    "mamba_n_heads": 4,
    "mamba_d_state": 6,
}
LAYER = Mamba2Spec(num_heads=4, head_dim=8, state_dim=6, num_groups=2, conv_width=4)


def spec_of(config, **changes):
    return read_spec(read_config({**config, **changes}, "config.json"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        {"layer_types": None, "layers_block_type": ["mamba", "attention", "mamba"]},
    ],
)
def test_types_say_which_layers_have_attention(changes):
    """Under the names that files had first, and those that transformers writes now."""
    spec = spec_of(GRANITE, **changes)
    assert [layer.recurrence for layer in spec.layers] == [LAYER, None, LAYER]
    assert spec.num_attention_layers == 1
    assert spec.slot_size == 2 * (3 * (32 + 2 * 2 * 6) + 4 * 8 * 6)


def test_bamba_counts_the_layers_that_have_attention():
    """In place of a type for each; half of a head carries the rope."""
    spec = spec_of(BAMBA)
    assert [layer.recurrence is None for layer in spec.layers] == [False, True, False]
    assert spec.layers[1].rope.dim == 4


@pytest.mark.parametrize(("kind", "has_rope"), [("nope", False), (None, False), ("rope", True)])
def test_rope_is_there_only_where_the_file_names_it(kind, has_rope):
    """Attention of Granite 4 has no positions of its own."""
    spec = spec_of(GRANITE, position_embedding_type=kind)
    assert (spec.layers[1].rope is not None) == has_rope


@pytest.mark.parametrize(("count", "inner"), [(0, None), (4, 24)])
def test_the_shared_expert_is_an_mlp_where_there_are_no_others(count, inner):
    """Its size has a key of its own; that of MLPs is the experts'."""
    spec = spec_of(GRANITE, num_local_experts=count, num_experts_per_tok=2)
    layer = spec.layers[0]
    assert (layer.experts and layer.experts.inner_size) == inner
    assert spec.mlp_size(layer) == 40
    assert not (layer.experts and layer.experts.weighs_shared)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, (0.0, math.inf)),
        ([0.0, {"__float__": "Infinity"}], (0.0, math.inf)),
        ([0.001, 0.1], (0.001, 0.1)),
    ],
)
def test_time_steps_may_have_limits(limit, expected):
    """JSON has no infinity; transformers writes an object for it."""
    layer = spec_of(GRANITE, time_step_limit=limit).layers[0].recurrence
    assert (layer.min_step, layer.max_step) == expected


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (GRANITE, {"layer_types": ["mamba"] * 3}, "layer_types.*a list with attention"),
        (GRANITE, {"layer_types": ["mamba", "attention"]}, "layer_types.*3 names"),
        (GRANITE, {"layer_types": ["mamba", "attention", "conv"]}, "layer_types"),
        (GRANITE, {"layer_types": None}, "layer_types is missing"),
        (BAMBA, {"attn_layer_indices": [7]}, "attn_layer_indices"),
        (BAMBA, {"attn_layer_indices": [1, 7]}, "attn_layer_indices"),
        (BAMBA, {"attn_layer_indices": []}, "attn_layer_indices"),
        (BAMBA, {"attn_layer_indices": 1}, "attn_layer_indices"),
        (BAMBA, {"attn_rotary_emb": 8}, "attn_rotary_emb is 8; it must be 4"),
        (GRANITE, {"mamba_n_heads": 5}, "mamba_n_heads"),
        (GRANITE, {"mamba_d_head": 16}, "mamba_d_head is 16; it must be auto.*8"),
        (GRANITE, {"mamba_n_groups": 3}, "mamba_n_groups"),
        (
            GRANITE,
            {"mamba_d_state": 2**16, "mamba_d_head": "auto", "mamba_expand": 2**9},
            "mamba_d_state",
        ),
        (GRANITE, {"mamba_d_conv": 1}, "mamba_d_conv"),
        (GRANITE, {"mamba_conv_bias": 1}, "mamba_conv_bias"),
        (GRANITE, {"time_step_limit": [0.1, 0.1]}, "time_step_limit"),
        (GRANITE, {"time_step_limit": [{"__float__": "Infinity"}, 1]}, "time_step_limit"),
        (GRANITE, {"time_step_limit": 3}, "time_step_limit"),
        (GRANITE, {"hidden_act": "gelu"}, "hidden_act"),
        (GRANITE, {"position_embedding_type": "alibi"}, "position_embedding_type"),
        (GRANITE, {"normalization_function": "layernorm"}, "normalization_function"),
        (GRANITE, {"shared_intermediate_size": 0}, "shared_intermediate_size"),
        (CONFIG, {"mamba_n_heads": 4}, "mamba_n_heads 4 is not implemented for LlamaForCausalLM"),
        (CONFIG, {"attn_layer_indices": [1]}, "attn_layer_indices"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config, changes, message):
    """Every key that decides about layers."""
    with pytest.raises(ConfigError, match=message):
        spec_of(config, **changes)


def test_experts_and_the_shared_one_lie_in_the_file_gate_before_up(tmp_path):
    """All experts in one tensor, the shared one in another."""
    config = {**GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2}
    tensors = tensors_of(config)
    weights = find_model(str(write_checkpoint(tmp_path / "a", config, tensors))).load()
    shared = tensors["model.layers.0.shared_mlp.input_linear.weight"]
    assert np.array_equal(weights["layers.0.gate"].data, shared[:40])
    assert np.array_equal(weights["layers.0.up"].data, shared[40:])
    expert = tensors["model.layers.2.block_sparse_moe.input_linear.weight"][3]
    assert np.array_equal(weights["layers.2.experts.3.up"].data, expert[24:])


def test_the_card_counts_what_layers_keep(tmp_path):
    """For each sequence, beside keys and values for each token; and every tensor's numbers."""
    tensors = tensors_of(GRANITE)
    name = "model.layers.2.mamba.conv1d.weight"
    assert tensors[name].shape == (56, 1, 4)
    checkpoint = find_model(str(write_checkpoint(tmp_path / "a", GRANITE, tensors)))
    assert np.array_equal(checkpoint.load()["layers.2.conv"].data, tensors[name][:, 0])
    card = checkpoint.card
    assert (card.kv_bytes_per_token, card.state_bytes_per_slot) == (2 * 8 * 4, 2 * 360 * 4)
    assert card.num_parameters == sum(tensor.size for tensor in tensors.values())


def test_both_backends_compute_them(tmp_path):
    """As they do what has attention alone, which keeps no states."""
    card = find_model(str(write_checkpoint(tmp_path / "a", GRANITE))).card
    for name in ("native", "reference"):
        assert choose(EngineOptions(model="a", compute=name), card).compute == name
    config = {**GRANITE, "layer_types": ["attention"] * 3}
    card = find_model(str(write_checkpoint(tmp_path / "b", config))).card
    assert (card.state_bytes_per_slot, card.keeps_states) == (0, False)
    assert choose(EngineOptions(model="b", compute="native"), card).compute == "native"


def test_adapters_may_be_on_what_leads_into_such_a_layer_and_out_of_it():
    """Not on the weights of its channels, which are no linear layer."""
    targets = AdapterTargets.of(spec_of(GRANITE), "granitemoehybrid")
    assert targets.find("model.layers.0.mamba.in_proj") is not None
    assert targets.find("model.layers.0.mamba.out_proj") is not None
    assert targets.find("model.layers.0.shared_mlp.output_linear") is not None
    assert targets.find("model.layers.0.mamba.conv1d") is None


FIRST = {"vocab_size": 300, "hidden_size": 40, "num_hidden_layers": 2}


def first_spec(model_type, **changes):
    name = "Mamba" if model_type == "mamba" else "FalconMamba"
    config = {"model_type": model_type, "architectures": [f"{name}ForCausalLM"], **FIRST}
    return read_spec(read_config({**config, **changes}, "config.json"))


def test_falcon_s_mamba_norms_time_steps():
    """Sizes that a config leaves out follow from the width; Falcon's says how wide it is in spite of `expand`."""
    plain = Mamba1Spec(inner_size=80, state_dim=16, step_rank=3, conv_width=4)
    assert first_spec("mamba").layers[1].recurrence == plain
    falcon = first_spec("falcon_mamba", expand=16, intermediate_size=64, time_step_rank=7)
    assert falcon.layers[0].recurrence == Mamba1Spec(
        inner_size=64, state_dim=16, step_rank=7, conv_width=4, has_norms=True, step_eps=1e-6
    )
    assert falcon.num_attention_layers == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"time_step_rank": 0}, "time_step_rank is 0; it must be a whole number from 1"),
        ({"time_step_rank": 2**24}, "time_step_rank is .*; it must be one with at most"),
        ({"state_size": 2**16, "expand": 2**10}, "mamba_d_state is .*; it must be one with which"),
        ({"conv_kernel": 1}, "mamba_d_conv is 1; it must be a whole number from 2"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; it must be silu"),
    ],
)
def test_sizes_of_the_first_mamba_are_refused_by_name(changes, words):
    """With what is allowed, before any memory is taken."""
    with pytest.raises(ConfigError, match=words):
        first_spec("mamba", **changes)
