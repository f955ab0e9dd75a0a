"""Family rows of dense GLM 4 and ERNIE 4.5.

Elements of a head that are rotated together are adjacent in their files.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import COMMON, Family
from weft.model.families.names import DECODER_NORMS, LLAMA, joined
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
        "ernie4_5": Family(
            architecture="Ernie4_5ForCausalLM",
            defaults={
                **COMMON,
                "head_dim": 128,
                "max_position_embeddings": 131072,
                "rms_norm_eps": 1e-5,
                "rope_theta": 500000.0,
                "tie_word_embeddings": True,
            },
            qkv_bias="use_bias",
            o_bias="use_bias",
            mlp_bias="use_bias",
            names=replace(LLAMA, has_neighbours=True),
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
