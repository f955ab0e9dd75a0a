"""DeepSeek V2 and V3: how their configs are read, their tensors named, and what is refused by name."""

import numpy as np
import pytest

from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from weft.core.errors import ConfigError
from weft.model.lora import AdapterTargets
from weft.model.open import find_model

V3 = {
    **CONFIG,
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "head_dim": 64,  # written by some, of nothing that is here
    "kv_lora_rank": 32,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "num_nextn_predict_layers": 1,
}
V2 = {
    **V3,
    "model_type": "deepseek_v2",
    "architectures": ["DeepseekV2ForCausalLM"],
    "q_lora_rank": None,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "num_nextn_predict_layers": 0,
}
YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 64,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}


def spec_of(tmp_path, config):
    """What a checkpoint with that config is."""
    return find_model(str(write_checkpoint(tmp_path / "a", config))).spec


def test_sizes_are_those_of_what_is_kept(tmp_path):
    """One KV head, whose width is the vector's; the pool has one part instead of keys and values."""
    checkpoint = find_model(str(write_checkpoint(tmp_path / "a", V3)))
    spec, latent = checkpoint.spec, checkpoint.spec.latent
    assert (spec.num_kv_heads, spec.head_dim, spec.kv_parts, spec.output_size) == (1, 40, 1, 20)
    assert (latent.query_rank, latent.query_size, latent.is_interleaved) == (12, 24, True)
    assert checkpoint.card.kv_bytes_per_token == 3 * 40 * 4
    assert checkpoint.card.keeps_latents
    assert {layer.rope.dim for layer in spec.layers} == {8}
    assert spec.attention_scale == 24**-0.5


def test_layers_that_guess_later_tokens_are_passed_over(tmp_path):
    """They are behind the last, as the config counts them."""
    tensors = tensors_of(V3)
    tensors["model.layers.3.eh_proj.weight"] = np.zeros((16, 32), np.float32)
    tensors["model.layers.3.self_attn.kv_b_proj.weight"] = np.zeros((52, 32), np.float32)
    spec = find_model(str(write_checkpoint(tmp_path / "a", V3, tensors))).spec
    assert [layer.experts is None for layer in spec.layers] == [True, False, False]


def test_yarn_scales_attention_as_well(tmp_path):
    """By mscale_all_dim, twice; angles are not scaled where mscale is the same."""
    spec = spec_of(tmp_path, {**V2, "rope_scaling": YARN, "max_position_embeddings": 2560})
    assert spec.layers[0].rope.attention_factor == 1.0
    assert spec.attention_scale == pytest.approx(24**-0.5 * (0.0707 * np.log(40) + 1) ** 2)
    assert spec.max_position_embeddings == 2560


@pytest.mark.parametrize(
    ("method", "groups"), [("greedy", (1, 1)), ("group_limited_greedy", (4, 2))]
)
def test_v2_chooses_by_groups_only_where_it_says_so(tmp_path, method, groups):
    """Its softmax is over all experts."""
    experts = spec_of(tmp_path, {**V2, "topk_method": method}).layers[1].experts
    assert (experts.num_groups, experts.groups_per_token) == groups
    assert not experts.is_sigmoid
    assert not experts.is_normalized


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (V3, {"kv_lora_rank": 40}, "kv_lora_rank is 40; it must be a multiple of 16"),
        (V3, {"qk_nope_head_dim": 12}, "qk_nope_head_dim is 12; it must be a multiple of 16"),
        (V3, {"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7; it must be an even number"),
        (V3, {"num_key_value_heads": 1}, "num_key_value_heads is 1; it must be num_attention"),
        (V3, {"topk_method": "greedy"}, "topk_method is 'greedy'; it must be noaux_tc"),
        (V3, {"scoring_func": "softmax"}, "scoring_func is 'softmax'; it must be sigmoid"),
        (V2, {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'; it must be softmax"),
        (V2, {"norm_topk_prob": True}, "norm_topk_prob is True; it must be false"),
        (V2, {"moe_layer_freq": 2}, "moe_layer_freq is 2; it must be 1"),
        (V3, {"n_group": 3}, "n_group is 3; it must be a divisor of 8"),
        (V3, {"v_head_dim": 0}, "v_head_dim is 0; it must be a whole number"),
        (CONFIG, {"rope_interleave": True}, "rope_interleave True is not implemented"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, base, changes, message):
    """With what is allowed."""
    path = write_checkpoint(tmp_path / "a", {**base, **changes}, tensors_of(base))
    with pytest.raises(ConfigError) as refused:
        find_model(str(path))
    assert message in str(refused.value)


def test_adapters_know_all_products_but_those_of_heads(tmp_path):
    """What heads make of a vector is multiplied into queries and results, where nothing could be added."""
    targets = AdapterTargets.of(spec_of(tmp_path, V3), "deepseek_v3")
    attention = {name.rpartition(".")[2] for name in targets.plans if "self_attn" in name}
    assert attention == {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"}
    assert "mlp.shared_experts.up_proj" in {
        n.partition(".")[2].partition(".")[2] for n in targets.plans
    }
