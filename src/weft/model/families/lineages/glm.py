"""Family rows of dense GLM 4, and of ERNIE 4.5 with and without experts.

Elements of a head that are rotated together are adjacent in their files.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import COMMON, ExpertsRule, Family
from weft.model.families.names import DECODER_NORMS, GLM_EXPERTS, LLAMA, joined
from weft.model.families.rope import RopeRules
from weft.model.spec import NormPlacement

_GLM = replace(
    LLAMA, names={**LLAMA.names, **joined("mlp.gate_up_proj", "gate", "up")}, has_neighbours=True
)
_GLM4 = replace(
    _GLM,
    norms={
        NormPlacement.BOTH: {
            **DECODER_NORMS[NormPlacement.BEFORE],
            "attention_norm_after": "post_self_attn_layernorm",
            "mlp_norm_after": "post_mlp_layernorm",
        }
    },
)
_ERNIE_ROW = Family(
    architecture="Ernie4_5ForCausalLM",
    defaults={
        **COMMON,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
    },
    qkv_bias="use_bias",
    o_bias="use_bias",
    mlp_bias="use_bias",
    names=replace(LLAMA, has_neighbours=True),
)
_ERNIE_EXPERTS = replace(
    GLM_EXPERTS,
    names={**GLM_EXPERTS.names, "router_correction": "mlp.moe_statics.e_score_correction_bias"},
    has_neighbours=True,
    has_correction_row=True,
    mtp=None,
)
_GLM_ROW = Family(
    architecture="GlmForCausalLM",
    defaults={
        **COMMON,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-7,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
    },
    o_bias="never",
    rope=RopeRules(partial=True),
    names=_GLM,
)

GLM_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "glm": _GLM_ROW,
        "glm4": replace(
            _GLM_ROW,
            architecture="Glm4ForCausalLM",
            names=_GLM4,
            norm_placement=NormPlacement.BOTH,
        ),
        "ernie4_5": replace(_ERNIE_ROW, defaults={**_ERNIE_ROW.defaults, "head_dim": 128}),
        "ernie4_5_moe": replace(
            _ERNIE_ROW,
            architecture="Ernie4_5_MoeForCausalLM",
            defaults={
                **_ERNIE_ROW.defaults,
                "moe_num_experts": 64,
                "num_experts_per_tok": 6,
                "moe_intermediate_size": 1536,
                "moe_num_shared_experts": 2,
                "moe_layer_interval": 1,
                "moe_layer_start_index": 1,
                "moe_layer_end_index": -1,
            },
            aliases={"moe_k": "num_experts_per_tok"},
            names=_ERNIE_EXPERTS,
            experts=ExpertsRule(
                count="moe_num_experts",
                inner_size="moe_intermediate_size",
                num_shared="moe_num_shared_experts",
                has_shared_gate=False,
                is_normalized=True,
                has_correction=True,
                epsilon=1e-12,
                span=("moe_layer_interval", "moe_layer_start_index", "moe_layer_end_index"),
            ),
            ignored_tensors=("model.mtp_",),
        ),
        "helium": Family(
            architecture="HeliumForCausalLM",
            defaults={
                **COMMON,
                "head_dim": 128,
                "max_position_embeddings": 4096,
                "rms_norm_eps": 1e-8,
                "rope_theta": 100000.0,
            },
            o_bias="never",
            mlp_bias="mlp_bias",
            names=replace(LLAMA, has_neighbours=True),
        ),
    }
)
