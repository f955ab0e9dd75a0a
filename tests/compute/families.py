"""Small random models of every family, made by Hugging Face transformers: what runners must agree with."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.compute.dense_families import DENSE_CASES, rope
from tests.compute.gemma_families import GEMMA_CASES
from tests.compute.hybrid_families import STATE_CASES
from tests.compute.router_families import ROUTER_CASES
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.model.families.decoder_families import FAMILIES

SIZES = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": 256,
}


LONGROPE = rope(
    rope_type="longrope",
    short_factor=[1.0 + 0.1 * i for i in range(6)],
    long_factor=[2.0 + 0.5 * i for i in range(6)],
)
QWEN_EXPERTS = {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
GLM_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "head_dim": 16,
}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
ATTENTION_ALONE = ["attention"] * 4
MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 12}
GRANITE = {
    "embedding_multiplier": 7.0,
    "logits_scaling": 0.5,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.2,
    "shared_intermediate_size": 40,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
    "head_dim": 16,
}
# Sequences have up to 150 tokens: windows and trained lengths are shorter wherever they are set.
CASES = {
    "llama": ("llama", {}),
    "llama with biases, tied, wide heads": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 16},
    ),
    "llama, llama3 rope": (
        "llama",
        rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama, linear rope": ("llama", rope(rope_type="linear", factor=4.0)),
    "llama, dynamic rope": ("llama", rope(rope_type="dynamic", factor=4.0)),
    "llama, yarn rope": (
        "llama",
        rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
    ),
    "llama, yarn rope in full": (
        "llama",
        rope(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=128,
            truncate=False,
            mscale=0.7,
            mscale_all_dim=1.2,
            beta_fast=16.0,
            beta_slow=2.0,
        ),
    ),
    "mistral": ("mistral", {"sliding_window": 37}),
    "mistral without window": ("mistral", {"sliding_window": None}),
    "qwen2": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "smollm3": (
        "smollm3",
        {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 30},
    ),
    "phi3": ("phi3", {"sliding_window": 50}),
    "phi3, partial rope": (
        "phi3",
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            **rope(rope_type="default", partial_rotary_factor=0.5),
        },
    ),
    "phi3, longrope, short": ("phi3", {"original_max_position_embeddings": 256, **LONGROPE}),
    "phi3, longrope, long": ("phi3", {"original_max_position_embeddings": 64, **LONGROPE}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 7.0,
            "logits_scaling": 0.5,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
        },
    ),
    "olmo2": ("olmo2", {}),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral, window, one expert a token": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 1, "sliding_window": 37},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        {"num_experts": 6, "num_experts_per_tok": 3, **QWEN_EXPERTS},
    ),
    "qwen2_moe, some layers dense, windows, weights that add up to 1": (
        "qwen2_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            **QWEN_EXPERTS,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 3,
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "head_dim": 16,
        },
    ),
    "qwen3_moe, a dense layer, window, biases": (
        "qwen3_moe",
        {
            "num_experts": 9,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "head_dim": 16,
            "mlp_only_layers": [1],
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 25,
        },
    ),
    "olmoe": ("olmoe", {"num_experts": 16, "num_experts_per_tok": 4}),
    "olmoe, weights that add up to 1": (
        "olmoe",
        {"num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": True},
    ),
    "granitemoe": (
        "granitemoe",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 7.0,
            "logits_scaling": 0.5,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 25},
    ),
    "gpt_oss, plain rope, listed windows, other limits, no biases of attention": (
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 4,
            "head_dim": 16,
            "sliding_window": 40,
            "layer_types": ["full_attention", "sliding_attention"] + ["full_attention"] * 2,
            "swiglu_limit": 1.5,
            "swiglu_alpha": 1.2,
            "attention_bias": False,
            **rope(rope_type="default"),
        },
    ),
    "glm4_moe": (
        "glm4_moe",
        {
            **GLM_EXPERTS,
            "use_qk_norm": True,
            "attention_bias": True,
            "routed_scaling_factor": 2.5,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "glm4_moe, one group, whole sigmoids, two shared experts": (
        "glm4_moe",
        {
            **GLM_EXPERTS,
            "n_shared_experts": 2,
            "first_k_dense_replace": 0,
            "norm_topk_prob": False,
        },
    ),
    "deepseek_v2": ("deepseek_v2", {**DEEPSEEK, "q_lora_rank": None}),
    "deepseek_v2, queries of low rank, groups, biases, yarn": (
        "deepseek_v2",
        {
            **DEEPSEEK,
            "num_experts_per_tok": 3,
            "attention_bias": True,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 3.0,
            "v_head_dim": 24,
            **rope(
                rope_type="yarn",
                factor=4.0,
                original_max_position_embeddings=128,
                mscale=0.7,
                mscale_all_dim=1.2,
            ),
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {**DEEPSEEK, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
    ),
    "deepseek_v3, halves turn, one group, whole sigmoids, no dense layer, yarn": (
        "deepseek_v3",
        {
            **DEEPSEEK,
            "q_lora_rank": None,
            "rope_interleave": False,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "first_k_dense_replace": 0,
            "n_shared_experts": 2,
            "qk_rope_head_dim": 6,
            "attention_bias": True,
            **rope(
                rope_type="yarn",
                factor=4.0,
                original_max_position_embeddings=128,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "glm4_moe_lite": ("glm4_moe_lite", {**DEEPSEEK, "n_group": 2, "topk_group": 1}),
    "glm4_moe_lite, listed layers, one group, whole sigmoids": (
        "glm4_moe_lite",
        {
            **DEEPSEEK,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": None,
            "norm_topk_prob": False,
            "mlp_layer_types": ["sparse", "dense", "dense", "sparse"],
        },
    ),
    "lfm2": ("lfm2", {"full_attn_idxs": [1, 3], "block_multiple_of": 16}),
    "lfm2, wide convolutions with biases, untied, its MLP as wide as it says": (
        "lfm2",
        {
            "layer_types": ["full_attention", "conv", "conv", "full_attention"],
            "conv_L_cache": 6,
            "conv_bias": True,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2, a convolution last, its MLP multiplied": (
        "lfm2",
        {
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "conv_L_cache": 2,
            "block_ffn_dim_multiplier": 1.7,
            "block_multiple_of": 10,
        },
    ),
    "lfm2_moe": (
        "lfm2_moe",
        {
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
        },
    ),
    "lfm2_moe, whole sigmoids, scaled": (
        "lfm2_moe",
        {
            "layer_types": ["full_attention", "conv", "conv", "conv"],
            "num_dense_layers": 0,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.5,
        },
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        {
            **MAMBA,
            **GRANITE,
            "layer_types": ["mamba", "attention", "mamba", "attention"],
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
        },
    ),
    "granitemoehybrid without experts, rope, many groups, biases, limits, Mamba-2 last": (
        "granitemoehybrid",
        {
            **MAMBA,
            "layer_types": ["linear_attention", "full_attention", "mamba", "mamba"],
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "shared_intermediate_size": 40,
            "mamba_n_groups": 3,
            "rms_norm_eps": 0.01,  # a group that is nearly nothing would be brought to 1, errors and all
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "mamba_d_conv": 2,
            "time_step_limit": (0.2, 1.5),
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "granitemoehybrid, attention alone": (
        "granitemoehybrid",
        {**MAMBA, **GRANITE, "layer_types": ATTENTION_ALONE, "num_local_experts": 0},
    ),
    "bamba": ("bamba", {**MAMBA, "attn_layer_indices": [1, 3]}),
    "bamba with biases, wide heads, one group": (
        "bamba",
        {
            **MAMBA,
            "attn_layer_indices": [2],
            "mamba_n_heads": 3,
            "mamba_d_head": "auto",
            "mamba_n_groups": 1,
            "mamba_d_state": 20,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
        },
    ),
    "qwen3_next": (
        "qwen3_next",
        {**DELTA, **QWEN_EXPERTS, "num_experts": 6, "num_experts_per_tok": 3},
    ),
    "qwen3_next, some layers dense, biases, whole rope, wide heads, weights as they are": (
        "qwen3_next",
        {
            **DELTA,
            **QWEN_EXPERTS,
            "layer_types": ["full_attention", "linear_attention"] * 2,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 20,
            "linear_value_head_dim": 36,
            "linear_conv_kernel_dim": 2,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
            "attention_bias": True,
            "tie_word_embeddings": True,
            **rope(rope_type="default", partial_rotary_factor=1.0),
        },
    ),
    "qwen3_next, no experts": ("qwen3_next", {**DELTA, "num_experts": 0}),
    "qwen3_5_text": ("qwen3_5_text", {**DELTA, "linear_conv_kernel_dim": 5}),
    "qwen3_5_moe_text, a delta net last": (
        "qwen3_5_moe_text",
        {
            **DELTA,
            **QWEN_EXPERTS,
            "layer_types": ["linear_attention", "full_attention"] + ["linear_attention"] * 2,
            "num_experts": 6,
            "num_experts_per_tok": 3,
        },
    ),
    **DENSE_CASES,
    "youtu": (
        "youtu",
        {key: DEEPSEEK[key] for key in DEEPSEEK if "expert" not in key and "moe" not in key},
    ),
    "dots1": (
        "dots1",
        {
            **GLM_EXPERTS,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "sliding_window": 30,
            "max_window_layers": 2,
        },
    ),
    **GEMMA_CASES,
    **ROUTER_CASES,
    **STATE_CASES,
}


def is_recurrent(model_type: str, settings: dict) -> bool:
    """Whether it keeps states, with which errors grow."""
    family = FAMILIES[model_type]
    has_mamba = (
        family.recurrence in ("mamba", "mamba1", "beside", "blocks")
        and settings.get("layer_types") != ATTENTION_ALONE
    )
    return has_mamba or family.recurrence == "delta"


def make_model(model_type: str, settings: dict) -> PreTrainedModel:
    """A small model whose weights are all drawn, norms and biases too."""
    config = AutoConfig.for_model(model_type, **{**SIZES, **settings})
    with torch.random.fork_rng(devices=[]):  # sinks are drawn where models are made
        torch.manual_seed(2)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    return draw(model)


def draw(model: PreTrainedModel) -> PreTrainedModel:
    """The model with all of its weights drawn."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        learned = ("correction", "expert_bias", "layer_scalar")
        corrections = [
            (n, b) for n, b in model.named_buffers() if any(part in n for part in learned)
        ]
        for name, weight in [*model.named_parameters(), *corrections]:
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.add_(noise * 0.2)
            else:
                weight.copy_(noise if "embed" in name else noise * 1.3 * weight.shape[-1] ** -0.5)
    return model


def save(model: PreTrainedModel, directory: Path) -> str:
    """Write the model with a tokenizer; the result is the name to open it by."""
    model.save_pretrained(directory)
    for name, data in tokenizer_files(320, "<|endoftext|>").items():
        (directory / name).write_bytes(data)
    return str(directory)
