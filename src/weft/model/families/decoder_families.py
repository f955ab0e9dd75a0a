"""Families of decoders: one row per family, by which `weft.model.families.decoders` reads configs."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.encoder_families import GPT2_KEYS
from weft.model.families.family import ExpertsRule, Family
from weft.model.families.latent import DEEPSEEK_V2, DEEPSEEK_V3
from weft.model.families.mamba import MAMBA_DEFAULTS, MAMBA_KEYS
from weft.model.families.names import (
    BAMBA,
    DEEPSEEK,
    GLM_EXPERTS,
    GPT2,
    GPT_OSS,
    GRANITE_EXPERTS,
    GRANITE_HYBRID,
    LFM2,
    LFM2_EXPERTS,
    LLAMA_FUSED,
    MIXTRAL,
    OPT,
    QWEN_EXPERTS,
)
from weft.model.families.qwen_delta import QWEN_DELTA_FAMILIES
from weft.model.families.rope import RopeRules
from weft.model.spec import Norm, NormPlacement, QkNorm

_COMMON: Mapping[str, object] = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_GEMMA = {
    **_COMMON,
    "hidden_act": "gelu_pytorch_tanh",
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_GEMMA2 = {
    **_GEMMA,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
# Gemma 3 configs on the Hub leave out every size that equals the family's default.
_GEMMA3 = {
    **_GEMMA,
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_QWEN_MOE = {
    **_COMMON,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
}
_GPT_OSS = {
    **_COMMON,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 32.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "attention_bias": True,
    "sliding_window": 128,
    "sliding_window_pattern": 2,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}
_GLM_MOE = {
    **_COMMON,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "use_qk_norm": False,
}
_LFM2 = {
    **_COMMON,
    "max_position_embeddings": 128000,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "conv_L_cache": 3,
}
_LFM2_ADJUSTED = {
    **_LFM2,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
}
_LFM2_KEYS = {"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings"}
_GRANITE_HYBRID = {
    **_COMMON,
    **MAMBA_DEFAULTS,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024,
}
_BAMBA = {
    **_COMMON,
    **MAMBA_DEFAULTS,
    "max_position_embeddings": 262144,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
}
_OPT = {
    "hidden_act": "relu",
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "enable_bias": True,
    "tie_word_embeddings": True,
}
_GPT2 = {
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


_GEMMA3_ROW = Family(
    architecture="Gemma3ForCausalLM",
    defaults=_GEMMA3,
    qk_norm=QkNorm.HEAD,
    norm_placement=NormPlacement.BOTH,
    norm_offset=1.0,
    windows="layer_types",
    rope=RopeRules(per_layer_type=True),
    scales_embeddings=True,
    reads=frozenset({"final_logit_softcapping", "query_pre_attn_scalar"}),
)
_GEMMA3_WITH_VISION = replace(
    _GEMMA3_ROW,
    architecture="Gemma3ForConditionalGeneration",
    prefixes=("language_model.model.", "model.language_model."),
    ignored_tensors=(
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ),
)

# Families whose config contains the config of their text model.
NESTED = frozenset({"gemma3", "qwen3_5", "qwen3_5_moe"})

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(architecture="LlamaForCausalLM", defaults=_COMMON, mlp_bias="mlp_bias"),
        "mistral": Family(
            architecture="MistralForCausalLM",
            defaults={**_COMMON, "max_position_embeddings": 131072, "sliding_window": 4096},
            qkv_bias="never",
            o_bias="never",
            windows="every_layer",
        ),
        "qwen2": Family(
            architecture="Qwen2ForCausalLM",
            defaults={**_COMMON, "max_position_embeddings": 32768, "sliding_window": 4096},
            qkv_bias="always",
            o_bias="never",
            windows="layer_types",
            window_switch=True,
        ),
        "qwen3": Family(
            architecture="Qwen3ForCausalLM",
            defaults={
                **_COMMON,
                "max_position_embeddings": 32768,
                "sliding_window": 4096,
                "head_dim": 128,
            },
            qk_norm=QkNorm.HEAD,
            windows="layer_types",
            window_switch=True,
        ),
        "mixtral": Family(
            architecture="MixtralForCausalLM",
            defaults={
                **_COMMON,
                "max_position_embeddings": 131072,
                "rms_norm_eps": 1e-5,
                "rope_theta": 1_000_000.0,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
            },
            qkv_bias="never",
            o_bias="never",
            windows="every_layer",
            names=MIXTRAL,
            experts=ExpertsRule(count="num_local_experts", is_normalized=True),
        ),
        "qwen2_moe": Family(
            architecture="Qwen2MoeForCausalLM",
            defaults={
                **_QWEN_MOE,
                "qkv_bias": True,
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632,
            },
            qkv_bias="qkv_bias",
            o_bias="never",
            windows="layer_types",
            window_switch=True,
            window_alternates=True,
            names=QWEN_EXPERTS,
            experts=ExpertsRule(
                count="num_experts",
                inner_size="moe_intermediate_size",
                has_steps=True,
                shared_size="shared_expert_intermediate_size",
            ),
        ),
        "qwen3_moe": Family(
            architecture="Qwen3MoeForCausalLM",
            defaults={
                **_QWEN_MOE,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
            },
            qk_norm=QkNorm.HEAD,
            windows="every_layer",
            window_switch=True,
            names=QWEN_EXPERTS,
            experts=ExpertsRule(
                count="num_experts", inner_size="moe_intermediate_size", has_steps=True
            ),
        ),
        "olmoe": Family(
            architecture="OlmoeForCausalLM",
            defaults={
                **_COMMON,
                "max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
                "num_experts": 64,
                "num_experts_per_tok": 8,
                "norm_topk_prob": False,
            },
            qk_norm=QkNorm.FULL,
            names=QWEN_EXPERTS,
            experts=ExpertsRule(count="num_experts"),
        ),
        "granitemoe": Family(
            architecture="GraniteMoeForCausalLM",
            defaults={**_COMMON, "num_local_experts": 8, "num_experts_per_tok": 2},
            reads=frozenset(
                "embedding_multiplier residual_multiplier attention_multiplier logits_scaling".split()
            ),
            names=GRANITE_EXPERTS,
            experts=ExpertsRule(count="num_local_experts", is_normalized=True),
        ),
        "granitemoehybrid": Family(
            architecture="GraniteMoeHybridForCausalLM",
            defaults=_GRANITE_HYBRID,
            aliases={"layers_block_type": "layer_types"},
            recurrence="mamba",
            reads=MAMBA_KEYS
            | frozenset(
                "embedding_multiplier residual_multiplier attention_multiplier logits_scaling"
                " shared_intermediate_size position_embedding_type".split()
            ),
            names=GRANITE_HYBRID,
            experts=ExpertsRule(
                count="num_local_experts",
                is_normalized=True,
                shared_size="shared_intermediate_size",
                has_shared_gate=False,
                is_optional=True,
            ),
        ),
        "bamba": Family(
            architecture="BambaForCausalLM",
            defaults=_BAMBA,
            recurrence="mamba",
            mlp_bias="mlp_bias",
            rope=RopeRules(partial=True),
            reads=MAMBA_KEYS | frozenset({"attn_layer_indices", "attn_rotary_emb"}),
            names=BAMBA,
        ),
        "gpt_oss": Family(
            architecture="GptOssForCausalLM",
            defaults=_GPT_OSS,
            has_sinks=True,
            windows="layer_types",
            reads=frozenset({"swiglu_alpha", "swiglu_limit"}),
            names=GPT_OSS,
            experts=ExpertsRule(count="num_local_experts", is_normalized=True, has_bias=True),
        ),
        "glm4_moe": Family(
            architecture="Glm4MoeForCausalLM",
            defaults=_GLM_MOE,
            o_bias="never",
            qk_norm=QkNorm.HEAD,
            rope=RopeRules(partial=True),
            reads=frozenset({"use_qk_norm"}),
            names=GLM_EXPERTS,
            experts=ExpertsRule(
                count="n_routed_experts",
                inner_size="moe_intermediate_size",
                has_groups=True,
                is_sigmoid=True,
            ),
        ),
        "deepseek_v2": Family(
            architecture="DeepseekV2ForCausalLM",
            defaults=DEEPSEEK_V2,
            has_latent=True,
            names=DEEPSEEK,
            experts=ExpertsRule(
                count="n_routed_experts",
                inner_size="moe_intermediate_size",
                is_normalized=False,
                has_groups=True,
            ),
        ),
        "deepseek_v3": Family(
            architecture="DeepseekV3ForCausalLM",
            defaults=DEEPSEEK_V3,
            has_latent=True,
            reads=frozenset({"rope_interleave"}),
            names=DEEPSEEK,
            experts=ExpertsRule(
                count="n_routed_experts",
                inner_size="moe_intermediate_size",
                has_groups=True,
                is_sigmoid=True,
            ),
        ),
        "lfm2": Family(
            architecture="Lfm2ForCausalLM",
            defaults=_LFM2_ADJUSTED,
            aliases={**_LFM2_KEYS, "block_ff_dim": "intermediate_size"},
            names=LFM2,
            qkv_bias="never",
            o_bias="never",
            qk_norm=QkNorm.HEAD,
            recurrence="convolution",
            reads=frozenset(
                "conv_L_cache conv_bias full_attn_idxs block_auto_adjust_ff_dim".split()
            ),
        ),
        "lfm2_moe": Family(
            architecture="Lfm2MoeForCausalLM",
            defaults={
                **_LFM2,
                "intermediate_size": 7168,
                "moe_intermediate_size": 1792,
                "first_k_dense_replace": 2,
                "num_experts": 32,
                "num_experts_per_tok": 4,
                "norm_topk_prob": True,
            },
            aliases={**_LFM2_KEYS, "num_dense_layers": "first_k_dense_replace"},
            names=LFM2_EXPERTS,
            qkv_bias="never",
            o_bias="never",
            qk_norm=QkNorm.HEAD,
            recurrence="convolution",
            reads=frozenset({"conv_L_cache", "conv_bias"}),
            experts=ExpertsRule(
                count="num_experts",
                inner_size="moe_intermediate_size",
                has_groups=True,
                is_sigmoid=True,
                epsilon=1e-6,
            ),
        ),
        "smollm3": Family(
            architecture="SmolLM3ForCausalLM",
            defaults={
                **_COMMON,
                "max_position_embeddings": 32768,
                "rope_theta": 2_000_000.0,
                "no_rope_layer_interval": 4,
                "tie_word_embeddings": True,
            },
            windows="layer_types",
            window_switch=True,
            mlp_bias="mlp_bias",
            reads=frozenset({"no_rope_layers", "no_rope_layer_interval"}),
        ),
        "phi3": Family(
            architecture="Phi3ForCausalLM",
            defaults={
                **_COMMON,
                "max_position_embeddings": 4096,
                "original_max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
            },
            qkv_bias="never",
            o_bias="never",
            windows="every_layer",
            rope=RopeRules(partial=True, aliases=(("su", "longrope"), ("yarn", "longrope"))),
            names=LLAMA_FUSED,
        ),
        "granite": Family(
            architecture="GraniteForCausalLM",
            defaults=_COMMON,
            mlp_bias="mlp_bias",
            reads=frozenset(
                "embedding_multiplier residual_multiplier attention_multiplier logits_scaling".split()
            ),
        ),
        "olmo2": Family(
            architecture="Olmo2ForCausalLM",
            defaults={**_COMMON, "rms_norm_eps": 1e-5},
            qk_norm=QkNorm.FULL,
            norm_placement=NormPlacement.AFTER,
        ),
        "gemma": Family(
            architecture="GemmaForCausalLM",
            defaults=_GEMMA,
            norm_offset=1.0,
            scales_embeddings=True,
        ),
        "gemma2": Family(
            architecture="Gemma2ForCausalLM",
            defaults=_GEMMA2,
            norm_placement=NormPlacement.BOTH,
            norm_offset=1.0,
            windows="layer_types",
            scales_embeddings=True,
            reads=frozenset(
                "attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar".split()
            ),
        ),
        "gemma3_text": _GEMMA3_ROW,
        "gemma3": _GEMMA3_WITH_VISION,
        **QWEN_DELTA_FAMILIES,
        "opt": Family(
            architecture="OPTForCausalLM",
            defaults=_OPT,
            aliases={"ffn_dim": "intermediate_size", "activation_function": "hidden_act"},
            names=OPT,
            qkv_bias="enable_bias",
            o_bias="enable_bias",
            mlp_bias="enable_bias",
            is_gated=False,
            norm=Norm.LAYER,
            position_offset=2,
            reads=frozenset({"do_layer_norm_before", "word_embed_proj_dim"}),
            prefixes=("model.decoder.", "decoder."),
        ),
        "gpt2": Family(
            architecture="GPT2LMHeadModel",
            defaults=_GPT2,
            aliases=GPT2_KEYS,
            names=GPT2,
            qkv_bias="always",
            o_bias="always",
            mlp_bias="always",
            is_gated=False,
            norm=Norm.LAYER,
            position_offset=0,
            prefixes=("transformer.", ""),
        ),
    }
)
