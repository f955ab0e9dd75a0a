"""Family rows of OLMo."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.families.family import COMMON, ExpertsRule, Family
from weft.model.families.names import QWEN_EXPERTS
from weft.model.families.rope import RopeRules
from weft.model.spec import NormPlacement, QkNorm

OLMO_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "olmo2": Family(
            architecture="Olmo2ForCausalLM",
            defaults={**COMMON, "rms_norm_eps": 1e-5},
            qk_norm=QkNorm.FULL,
            norm_placement=NormPlacement.AFTER,
        ),
        "olmo3": Family(
            architecture="Olmo3ForCausalLM",
            defaults={
                **COMMON,
                "rms_norm_eps": 1e-5,
                "rope_theta": 500000.0,
                "sliding_window": 4096,
                "sliding_window_pattern": 4,
            },
            qk_norm=QkNorm.FULL,
            norm_placement=NormPlacement.AFTER,
            windows="layer_types",
            rope=RopeRules(per_layer_type=True),
        ),
        "olmoe": Family(
            architecture="OlmoeForCausalLM",
            defaults={
                **COMMON,
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
    }
)
