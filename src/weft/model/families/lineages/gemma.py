"""Family rows of Gemma 1 to 3."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import COMMON, Family
from weft.model.families.lineages.siglip import GEMMA3_TOWER
from weft.model.families.rope import RopeRules
from weft.model.spec import NormPlacement, QkNorm

_GEMMA = {
    **COMMON,
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
    sees_items_whole=True,
    tower=GEMMA3_TOWER,
)

GEMMA_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
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
    }
)
