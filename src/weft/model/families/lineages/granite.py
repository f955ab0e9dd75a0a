"""Family rows of Granite, of Bamba, Falcon-H1 and Mamba-2, whose layers some Granite models have, and of Mamba."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import COMMON, ExpertsRule, Family
from weft.model.families.names import (
    BAMBA,
    GRANITE_EXPERTS,
    GRANITE_HYBRID,
    MAMBA1,
    MAMBA2,
    NEMOTRON_H,
)
from weft.model.families.recurrent.first_mamba import FIRST_MAMBA_KEYS
from weft.model.families.recurrent.mamba import BESIDE_KEYS, MAMBA_DEFAULTS, MAMBA_KEYS
from weft.model.families.recurrent.nemotron_blocks import BLOCK_KEYS
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
_MAMBA2 = {
    **COMMON,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 2**20,  # as many as a program may wish: states do not grow
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_n_groups": 8,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
_ALONE = {
    "state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "expand": "mamba_expand",
    "use_bias": "mamba_proj_bias",
    "use_conv_bias": "mamba_conv_bias",
    "layer_norm_epsilon": "rms_norm_eps",
}
_FIRST_MAMBA = Family(
    architecture="MambaForCausalLM",
    defaults={
        **COMMON,
        "rms_norm_eps": 1e-5,
        "num_attention_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": 2**20,
        "tie_word_embeddings": True,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "time_step_rank": "auto",
    },
    aliases=_ALONE,
    has_attention=False,
    is_gated=False,
    recurrence="mamba1",
    reads=MAMBA_KEYS | FIRST_MAMBA_KEYS,
    names=MAMBA1,
    prefixes=("backbone.",),
)

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
        "mamba2": Family(
            architecture="Mamba2ForCausalLM",
            defaults=_MAMBA2,
            aliases={
                **_ALONE,
                "num_heads": "mamba_n_heads",
                "head_dim": "mamba_d_head",
                "n_groups": "mamba_n_groups",
            },
            has_attention=False,
            is_gated=False,
            recurrence="mamba",
            reads=MAMBA_KEYS,
            names=MAMBA2,
            prefixes=("backbone.",),
        ),
        "mamba": _FIRST_MAMBA,
        "falcon_mamba": replace(
            _FIRST_MAMBA,
            architecture="FalconMambaForCausalLM",
            defaults={**_FIRST_MAMBA.defaults, "mixer_rms_eps": 1e-6},
        ),
        "falcon_h1": Family(
            architecture="FalconH1ForCausalLM",
            defaults={
                **COMMON,
                **MAMBA_DEFAULTS,
                "mamba_d_ssm": 1024,
                "max_position_embeddings": 8192,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-5,
            },
            recurrence="beside",
            mlp_bias="mlp_bias",
            reads=MAMBA_KEYS | BESIDE_KEYS | {"embedding_multiplier"},
            names=BAMBA,
        ),
        "nemotron_h": Family(
            architecture="NemotronHForCausalLM",
            defaults={
                **COMMON,
                "num_hidden_layers": 1,  # the blocks say how many there are
                "head_dim": 128,
                "num_key_value_heads": 8,
                "max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
                "hidden_act": "relu2",
                "mamba_hidden_act": "silu",
                "mamba_n_heads": 128,
                "mamba_d_head": 64,
                "mamba_n_groups": 8,
                "mamba_d_state": 128,
                "mamba_d_conv": 4,
                "mamba_expand": 2,
                "mamba_conv_bias": True,
                "mamba_proj_bias": False,
                "time_step_min": 0.001,
                "n_routed_experts": 8,
                "moe_intermediate_size": 7688,
                "moe_shared_expert_intermediate_size": 7688,
                "num_experts_per_tok": 2,
                "norm_topk_prob": True,
            },
            aliases={
                "mamba_num_heads": "mamba_n_heads",
                "mamba_head_dim": "mamba_d_head",
                "ssm_state_size": "mamba_d_state",
                "n_groups": "mamba_n_groups",
                "conv_kernel": "mamba_d_conv",
                "expand": "mamba_expand",
                "use_bias": "mamba_proj_bias",
                "use_conv_bias": "mamba_conv_bias",
                "layer_norm_epsilon": "rms_norm_eps",
                "mlp_hidden_act": "hidden_act",
            },
            qkv_bias="never",
            o_bias="never",
            mlp_bias="mlp_bias",
            is_gated=False,
            recurrence="blocks",
            reads=MAMBA_KEYS | BLOCK_KEYS,
            names=NEMOTRON_H,
            prefixes=("backbone.", "model."),
            experts=ExpertsRule(
                count="n_routed_experts",
                inner_size="moe_intermediate_size",
                shared_size="moe_shared_expert_intermediate_size",
                has_shared_gate=False,
                has_groups=True,
                is_sigmoid=True,
                has_correction=True,
                has_blocks=True,
            ),
            ignored_tensors=("mtp.",),
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
