"""Family rows of Qwen 2 and 3; the rows with delta nets are in `weft.model.families.lineages.qwen_delta`."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.families.family import COMMON, ExpertsRule, Family
from weft.model.families.names import QWEN_EXPERTS
from weft.model.spec import QkNorm

_QWEN_MOE = {
    **COMMON,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
}

QWEN_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "qwen2": Family(
            architecture="Qwen2ForCausalLM",
            defaults={**COMMON, "max_position_embeddings": 32768, "sliding_window": 4096},
            qkv_bias="always",
            o_bias="never",
            windows="layer_types",
            window_switch=True,
        ),
        "qwen3": Family(
            architecture="Qwen3ForCausalLM",
            defaults={
                **COMMON,
                "max_position_embeddings": 32768,
                "sliding_window": 4096,
                "head_dim": 128,
            },
            qk_norm=QkNorm.HEAD,
            windows="layer_types",
            window_switch=True,
        ),
        "mimo": Family(  # its layers for multi-token prediction are skipped
            architecture="MiMoForCausalLM",
            defaults={**COMMON, "max_position_embeddings": 32768},
            qkv_bias="always",
            o_bias="never",
            windows="layer_types",
            window_switch=True,
            ignored_tensors=("model.mtp_layers.",),
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
    }
)
