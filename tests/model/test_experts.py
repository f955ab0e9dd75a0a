"""Mixtures of experts from disk: which layers have experts, their tensors, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.model.adapters import ATTENTION, write_adapter
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint, write_json
from weft.compute.arithmetic.grouped import describe_rounded_again
from weft.core.errors import ConfigError
from weft.model.groups import ROUNDED
from weft.model.lora import AdapterTargets, read_adapter
from weft.model.open import find_model

QWEN = {
    **CONFIG,
    "model_type": "qwen2_moe",
    "architectures": ["Qwen2MoeForCausalLM"],
    "num_hidden_layers": 4,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 12,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [3],
}
MIXTRAL = {
    **CONFIG,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
}
GRANITE = {
    **MIXTRAL,
    "model_type": "granitemoe",
    "architectures": ["GraniteMoeForCausalLM"],
}


def test_keys_say_which_layers_have_experts(tmp_path):
    """Every second one, but for those that are listed as dense."""
    spec = find_model(str(write_checkpoint(tmp_path / "a", QWEN))).spec
    assert [layer.experts is not None for layer in spec.layers] == [False, True, False, False]
    experts = spec.layers[1].experts
    assert (experts.count, experts.per_token, experts.inner_size) == (3, 2, 8)
    assert (experts.shared_size, experts.is_normalized) == (12, False)


def test_the_card_knows_what_a_token_does_not_go_through(tmp_path):
    """One expert of three, in the one layer that has them: gate, up and down."""
    card = find_model(str(write_checkpoint(tmp_path / "a", QWEN))).card
    assert card.num_idle_parameters == 3 * 16 * 8
    assert card.num_parameters == sum(tensor.size for tensor in tensors_of(QWEN).values())


def test_experts_of_two_formats_are_said_to_be_rounded_again(tmp_path):
    """All of a layer are one product, as q, k and v are."""
    spec = find_model(str(write_checkpoint(tmp_path / "a", QWEN))).spec
    stored = {f"layers.1.experts.{number}.down": ROUNDED for number in range(3)}
    assert describe_rounded_again(spec, stored) is None
    stored["layers.1.experts.0.down"] = replace(ROUNDED, bits=8)
    said = describe_rounded_again(spec, stored)
    assert said.startswith("3 of these 3 matrices")
    assert "or experts of a layer, if their types differ" in said


def test_stacked_experts_lie_gate_before_up(tmp_path):
    """Granite has all experts of a layer in one tensor of three dimensions."""
    tensors = tensors_of(GRANITE)
    weights = find_model(str(write_checkpoint(tmp_path / "a", GRANITE, tensors))).load()
    stacked = tensors["model.layers.1.block_sparse_moe.input_linear.weight"]
    down = tensors["model.layers.1.block_sparse_moe.output_linear.weight"]
    assert stacked.shape == (3, 48, 16)
    np.testing.assert_array_equal(weights["layers.1.experts.2.gate"].float32(), stacked[2, :24])
    np.testing.assert_array_equal(weights["layers.1.experts.2.up"].float32(), stacked[2, 24:])
    np.testing.assert_array_equal(weights["layers.1.experts.1.down"].float32(), down[1])


GPT_OSS = {
    **MIXTRAL,
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 8,
}
GLM = {
    **CONFIG,
    "model_type": "glm4_moe",
    "architectures": ["Glm4MoeForCausalLM"],
    "num_hidden_layers": 3,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "n_group": 4,
    "topk_group": 2,
    "num_nextn_predict_layers": 1,
}


def test_gpt_oss_is_what_its_file_leaves_out(tmp_path):
    """Every second layer has a window; frequencies are stretched; the MLP is clamped."""
    spec = find_model(str(write_checkpoint(tmp_path / "a", GPT_OSS))).spec
    assert [layer.window for layer in spec.layers] == [128, None]
    assert {layer.rope.factor for layer in spec.layers} == {32.0}
    assert (spec.has_sinks, spec.swiglu_limit, spec.swiglu_alpha) == (True, 7.0, 1.702)
    assert spec.layers[0].experts.has_bias


def test_experts_of_gpt_oss_lie_by_turns(tmp_path):
    """Rows of gate and up, as [experts, in, out]; biases beside them."""
    tensors = tensors_of(GPT_OSS)
    weights = find_model(str(write_checkpoint(tmp_path / "a", GPT_OSS, tensors))).load()
    lead = "model.layers.1.mlp.experts."
    whole, bias = tensors[f"{lead}gate_up_proj"], tensors[f"{lead}gate_up_proj_bias"]
    assert (whole.shape, bias.shape) == ((3, 16, 48), (3, 48))
    np.testing.assert_array_equal(weights["layers.1.experts.2.gate"].float32(), whole[2].T[::2])
    np.testing.assert_array_equal(weights["layers.1.experts.2.up"].float32(), whole[2].T[1::2])
    np.testing.assert_array_equal(weights["layers.1.experts.2.up.bias"].float32(), bias[2, 1::2])
    down = tensors[f"{lead}down_proj"]
    np.testing.assert_array_equal(weights["layers.1.experts.0.down"].float32(), down[0].T)


def test_glm_has_the_router_of_deepseek_v3(tmp_path):
    """Dense layers first; layers behind the last, which guess later tokens, are passed over."""
    tensors = tensors_of(GLM)
    tensors["model.layers.3.eh_proj.weight"] = np.zeros((16, 32), np.float32)
    spec = find_model(str(write_checkpoint(tmp_path / "a", GLM, tensors))).spec
    assert [layer.experts is None for layer in spec.layers] == [True, False, False]
    experts = spec.layers[1].experts
    assert (experts.num_groups, experts.groups_per_token, experts.scale) == (4, 2, 2.5)
    assert (experts.shared_size, experts.weighs_shared, experts.is_sigmoid) == (16, False, True)
    del tensors["model.layers.3.eh_proj.weight"]
    tensors["model.layers.4.eh_proj.weight"] = np.zeros((16, 32), np.float32)
    with pytest.raises(ConfigError, match=r"model\.layers\.4\.eh_proj\.weight' has no place"):
        find_model(str(write_checkpoint(tmp_path / "b", GLM, tensors)))


W1 = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
ROUTER = "model.layers.0.block_sparse_moe.gate.weight"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (W1, None, f"tensor {W1} is missing; config.json asks for it"),
        (W1, np.zeros((24, 15), np.float32), "has shape [24, 15]; config.json asks for [24, 16]"),
        (ROUTER, None, f"tensor {ROUTER} is missing"),
        (ROUTER, np.zeros((4, 16), np.float32), "has shape [4, 16]; config.json asks for [3, 16]"),
        (W1.replace(".2.", ".3."), np.zeros((24, 16), np.float32), "has no place in the model"),
    ],
)
def test_damaged_experts_are_named(tmp_path, name, value, message):
    """A missing expert, one too many, and wrong shapes."""
    tensors = tensors_of(MIXTRAL)
    tensors.pop(name, None)
    if value is not None:
        tensors[name] = value
    with pytest.raises(ConfigError) as refused:
        find_model(str(write_checkpoint(tmp_path / "a", MIXTRAL, tensors)))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (
            MIXTRAL,
            {"num_experts_per_tok": 4},
            "num_experts_per_tok is 4; it must be a whole number",
        ),
        (MIXTRAL, {"num_local_experts": 0}, "num_local_experts is 0; it must be a whole number"),
        (MIXTRAL, {"num_experts": 4}, "num_experts is 4; it must be num_local_experts (3)"),
        (MIXTRAL, {"n_routed_experts": 4}, "n_routed_experts 4 is not implemented"),
        (QWEN, {"mlp_only_layers": 3}, "mlp_only_layers is 3; it must be a list"),
        (QWEN, {"mlp_only_layers": [True]}, "mlp_only_layers is [True]; it must be a list"),
        (QWEN, {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        (QWEN, {"norm_topk_prob": 1}, "norm_topk_prob is 1; it must be true or false"),
        (QWEN, {"model_type": "deepseek_v32"}, "'deepseek_v32' is not a model this runner knows"),
        (QWEN, {"swiglu_limit": 7.0}, "swiglu_limit 7.0 is not implemented for Qwen2Moe"),
        (QWEN, {"n_shared_experts": 2}, "n_shared_experts 2 is not implemented for Qwen2Moe"),
        (GPT_OSS, {"swiglu_limit": 0}, "swiglu_limit is 0; it must be a number"),
        (GLM, {"num_experts": 8}, "num_experts 8 is not implemented for Glm4Moe"),
        (GLM, {"n_group": 3}, "n_group is 3; it must be a divisor of 8"),
        (GLM, {"n_group": 8}, "n_group is 8; it must be a divisor of 8, with two experts or more"),
        (GLM, {"topk_group": 1}, "topk_group is 1; it must be enough groups for 3 experts"),
        (GLM, {"topk_group": 5}, "topk_group is 5; it must be a whole number from 1 to 4"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, base, changes, message):
    """By name, with what is allowed."""
    path = write_checkpoint(tmp_path / "a", base)
    write_json(path / "config.json", {**base, **changes})
    with pytest.raises(ConfigError) as refused:
        find_model(str(path))
    assert message in str(refused.value)


def test_the_other_name_of_the_count_is_read(tmp_path):
    """As some releases of transformers write it."""
    config = {key: value for key, value in MIXTRAL.items() if key != "num_local_experts"}
    path = write_checkpoint(tmp_path / "a", {**config, "num_experts": 3})
    assert find_model(str(path)).spec.layers[0].experts.count == 3


def targets_of(config, tmp_path):
    """What adapters of such a model may name, and its spec."""
    spec = find_model(str(write_checkpoint(tmp_path / "model", config))).spec
    return AdapterTargets.of(spec, config["model_type"]), spec


def test_adapters_on_attention_are_read(tmp_path):
    """Experts are no obstacle."""
    targets, spec = targets_of(MIXTRAL, tmp_path)
    path = write_adapter(tmp_path / "a", spec, targets=ATTENTION)
    adapter = read_adapter(path, targets, max_rank=16)
    assert "layers.1.q" in adapter.low_rank


def test_adapters_that_name_experts_without_tensors_of_them_are_read(tmp_path):
    """Lists of target modules often name all linear layers; the tensors say which were trained."""
    targets, spec = targets_of(MIXTRAL, tmp_path)
    path = write_adapter(tmp_path / "a", spec, targets=("q_proj",), target_modules=["q_proj", "w1"])
    assert set(read_adapter(path, targets, max_rank=16).low_rank) == {"layers.0.q", "layers.1.q"}


def test_tensors_of_experts_in_an_adapter_are_refused_by_name(tmp_path):
    """Where the target is a shared expert's too: they would be passed over otherwise."""
    targets, spec = targets_of(replace_steps(QWEN), tmp_path)
    path = write_adapter(tmp_path / "a", replace(spec, layers=spec.layers[:1]), targets=("q_proj",))
    lead = "base_model.model.model.layers.0.mlp.experts.1.gate_proj"
    tensors = {f"{lead}.lora_A.weight": np.zeros((4, 16), np.float32)}
    save_file(tensors, path / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match="is a module of the experts"):
        read_adapter(path, targets, max_rank=16)


def replace_steps(config):
    """The same with experts in every layer."""
    return {**config, "decoder_sparse_step": 1, "mlp_only_layers": []}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("experts=2&experts_per_token=3", "experts_per_token (3) must be at most experts (2)"),
        ("shared=8", "shared needs experts"),
        ("experts=4&shared=8&qk_norm=true", "shared and qk_norm exclude each other"),
    ],
)
def test_random_models_refuse_what_no_family_has(query, message):
    """By name."""
    with pytest.raises(ConfigError) as refused:
        find_model(f"embedded:random?{query}")
    assert message in str(refused.value)
