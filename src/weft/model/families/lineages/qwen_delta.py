"""Family rows of Qwen3-Next and Qwen3.5: gated attention in some layers, gated delta nets in the others."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import ExpertsRule, Family
from weft.model.families.lineages.qwen_vl import QWEN3_5_TOWER
from weft.model.families.names import QWEN_DELTA, QWEN_NEXT
from weft.model.families.recurrent.delta import DELTA, DELTA_KEYS
from weft.model.families.rope import RopeRules
from weft.model.spec import QkNorm

_DEFAULTS: Mapping[str, object] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "intermediate_size": 5632,
    **DELTA,
}
_EXPERTS = {
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_QWEN3_NEXT = Family(
    architecture="Qwen3NextForCausalLM",
    defaults={**_DEFAULTS, **_EXPERTS, "decoder_sparse_step": 1, "norm_topk_prob": True},
    names=QWEN_NEXT,
    qk_norm=QkNorm.HEAD,
    norm_offset=1.0,
    recurrence="delta",
    is_by_key_head=True,
    rope=RopeRules(partial=True),
    experts=ExpertsRule(
        count="num_experts",
        inner_size="moe_intermediate_size",
        has_steps=True,
        shared_size="shared_expert_intermediate_size",
    ),
    reads=frozenset(DELTA_KEYS),
    ignored_tensors=("mtp.",),
)
_QWEN35 = replace(
    _QWEN3_NEXT,
    architecture="Qwen3_5ForCausalLM",
    defaults={**_DEFAULTS, "intermediate_size": 12288},
    names=QWEN_DELTA,
    is_by_key_head=False,
    rope=RopeRules(partial=True, has_sections=True),
    experts=None,
)
_QWEN35_MOE = replace(
    _QWEN35,
    architecture="Qwen3_5MoeForCausalLM",
    defaults={**_DEFAULTS, **_EXPERTS, "num_experts": 256, "num_experts_per_tok": 8},
    experts=ExpertsRule(
        count="num_experts",
        inner_size="moe_intermediate_size",
        is_normalized=True,
        shared_size="shared_expert_intermediate_size",
    ),
)


def _with_vision(row: Family) -> Family:
    """Returns the row of the family's variant with a vision tower."""
    return replace(
        row,
        architecture=row.architecture.replace("ForCausalLM", "ForConditionalGeneration"),
        prefixes=("model.language_model.",),
        rope=replace(row.rope, sections=(11, 11, 10), has_interleaved_sections=True),
        tower=QWEN3_5_TOWER,
    )


QWEN_DELTA_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "qwen3_next": _QWEN3_NEXT,
        "qwen3_5_text": _QWEN35,
        "qwen3_5_moe_text": _QWEN35_MOE,
        "qwen3_5": _with_vision(_QWEN35),
        "qwen3_5_moe": _with_vision(_QWEN35_MOE),
    }
)
