"""Family rows of DeepSeek, and of GLM 4 models whose experts have DeepSeek's form."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import COMMON, GROUP_KEYS, ExpertsRule, Family
from weft.model.families.latent import DEEPSEEK_V2, DEEPSEEK_V3
from weft.model.families.names import DEEPSEEK, GLM_EXPERTS
from weft.model.families.rope import RopeRules
from weft.model.spec import QkNorm

_GLM_MOE = {
    **COMMON,
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

# DeepSeek-V3's router: experts in groups, weighted by sigmoids.
_SIGMOID_EXPERTS = ExpertsRule(
    count="n_routed_experts",
    inner_size="moe_intermediate_size",
    has_groups=True,
    is_sigmoid=True,
    has_correction=True,
)
_OF_EXPERTS = {"n_routed_experts", "moe_intermediate_size", "num_experts_per_tok", *GROUP_KEYS}

DEEPSEEK_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
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
            experts=_SIGMOID_EXPERTS,
        ),
        "glm4_moe_lite": Family(
            architecture="Glm4MoeLiteForCausalLM",
            defaults={
                **DEEPSEEK_V3,
                "hidden_size": 2048,
                "intermediate_size": 10240,
                "moe_intermediate_size": 1536,
                "max_position_embeddings": 202752,
                "rms_norm_eps": 1e-5,
                "n_routed_experts": 64,
                "num_experts_per_tok": 4,
                "routed_scaling_factor": 1.8,
                "n_group": 1,
                "topk_group": 1,
                "first_k_dense_replace": 1,
                "kv_lora_rank": 512,
                "q_lora_rank": 768,
                "qk_nope_head_dim": 192,
                "qk_rope_head_dim": 64,
                "v_head_dim": 256,
            },
            has_latent=True,
            reads=frozenset({"rope_interleave"}),
            names=DEEPSEEK,
            experts=replace(_SIGMOID_EXPERTS, kinds="mlp_layer_types"),
        ),
        "youtu": Family(
            architecture="YoutuForCausalLM",
            defaults={
                **{key: DEEPSEEK_V3[key] for key in DEEPSEEK_V3.keys() - _OF_EXPERTS},
                "tie_word_embeddings": True,
            },
            has_latent=True,
            reads=frozenset({"rope_interleave"}),
            names=DEEPSEEK,
        ),
        "dots1": Family(
            architecture="Dots1ForCausalLM",
            defaults={
                **COMMON,
                "num_experts_per_tok": 6,
                "moe_intermediate_size": 1408,
                "norm_topk_prob": False,
                "sliding_window": 4096,
                "max_window_layers": 62,
            },
            qk_norm=QkNorm.HEAD,
            windows="layer_types",
            names=replace(GLM_EXPERTS, mtp=None),
            experts=_SIGMOID_EXPERTS,
        ),
        "glm4_moe": Family(
            architecture="Glm4MoeForCausalLM",
            defaults=_GLM_MOE,
            o_bias="never",
            qk_norm=QkNorm.HEAD,
            rope=RopeRules(partial=True),
            reads=frozenset({"use_qk_norm"}),
            names=GLM_EXPERTS,
            experts=_SIGMOID_EXPERTS,
        ),
    }
)
