"""Family rows of Granite, and of Bamba, whose Mamba-2 layers some Granite models have."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.families.family import COMMON, ExpertsRule, Family
from weft.model.families.mamba import MAMBA_DEFAULTS, MAMBA_KEYS
from weft.model.families.names import BAMBA, GRANITE_EXPERTS, GRANITE_HYBRID
from weft.model.families.rope import RopeRules

_GRANITE_HYBRID = {
    **COMMON,
    **MAMBA_DEFAULTS,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024,
}
_BAMBA = {
    **COMMON,
    **MAMBA_DEFAULTS,
    "max_position_embeddings": 262144,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
}

GRANITE_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "granite": Family(
            architecture="GraniteForCausalLM",
            defaults=COMMON,
            mlp_bias="mlp_bias",
            reads=frozenset(
                "embedding_multiplier residual_multiplier attention_multiplier logits_scaling".split()
            ),
        ),
        "granitemoe": Family(
            architecture="GraniteMoeForCausalLM",
            defaults={**COMMON, "num_local_experts": 8, "num_experts_per_tok": 2},
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
    }
)
