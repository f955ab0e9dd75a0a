"""Family rows of LFM 2, and of LFM2-VL, which has a vision tower."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import COMMON, ExpertsRule, Family
from weft.model.families.lineages.siglip import LFM2_TOWER
from weft.model.families.names import LFM2, LFM2_EXPERTS
from weft.model.spec import QkNorm

_LFM2 = {
    **COMMON,
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

_LFM2_ROW = Family(
    architecture="Lfm2ForCausalLM",
    defaults=_LFM2_ADJUSTED,
    aliases={**_LFM2_KEYS, "block_ff_dim": "intermediate_size"},
    names=LFM2,
    qkv_bias="never",
    o_bias="never",
    qk_norm=QkNorm.HEAD,
    recurrence="convolution",
    reads=frozenset("conv_L_cache conv_bias full_attn_idxs block_auto_adjust_ff_dim".split()),
)

LFM_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "lfm2": _LFM2_ROW,
        "lfm2_vl": replace(
            _LFM2_ROW,
            architecture="Lfm2VlForConditionalGeneration",
            prefixes=("model.language_model.", "language_model.model."),
            text_types=("lfm2",),
            tower=LFM2_TOWER,
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
                has_correction=True,
                epsilon=1e-6,
            ),
        ),
    }
)
