"""Family rows of Gemma 1 to 4."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import COMMON, ExpertsRule, Family
from weft.model.families.layer_sizes import LAYER_SIZE_KEYS
from weft.model.families.lineages.siglip import GEMMA3_TOWER
from weft.model.families.names import DECODER, DECODER_NORMS, DecoderNames, joined
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
_GEMMA4_NAMES = DecoderNames(
    {
        **DECODER,
        "inputs.embed": "embed_tokens_per_layer",
        "inputs.join": "per_layer_model_projection",
        "inputs.norm": "per_layer_projection_norm",
        "input.gate": "per_layer_input_gate",
        "input.down": "per_layer_projection",
        "input.norm": "post_per_layer_input_norm",
        "scale": "layer_scalar",
        "router": "router.proj",
        "router_norm": "router.scale",
        "router_scales": "router.per_expert_scale",
        "shared.gate": "mlp.gate_proj",
        "shared.up": "mlp.up_proj",
        "shared.down": "mlp.down_proj",
        "shared_norm": "post_feedforward_layernorm_1",
        "expert_norm_before": "pre_feedforward_layernorm_2",
        "expert_norm_after": "post_feedforward_layernorm_2",
        **joined("experts.gate_up_proj", "expert_gate", "expert_up"),
        "expert_down": "experts.down_proj",
    },
    DECODER_NORMS,
    has_short_experts=True,
)
_GEMMA4 = {
    **_GEMMA,
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "hidden_size_per_layer_input": 256,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
    },
}
_GEMMA4_ROW = Family(
    architecture="Gemma4ForCausalLM",
    defaults=_GEMMA4,
    aliases={"top_k_experts": "num_experts_per_tok"},
    names=_GEMMA4_NAMES,
    qk_norm=QkNorm.HEAD,
    norm_placement=NormPlacement.BOTH,
    windows="layer_types",
    rope=RopeRules(per_layer_type=True, partial=True),
    scales_embeddings=True,
    has_layer_sizes=True,
    experts=ExpertsRule(
        count="num_experts",
        switch="enable_moe_block",
        inner_size="moe_intermediate_size",
        shared_size="intermediate_size",
        has_shared_gate=False,
        is_normalized=True,
        is_optional=True,
        has_norms=True,
    ),
    reads=frozenset({"final_logit_softcapping", *LAYER_SIZE_KEYS}),
)
_GEMMA4_WITH_TOWERS = replace(
    _GEMMA4_ROW,
    architecture="Gemma4ForConditionalGeneration",
    prefixes=("model.language_model.", "language_model.model."),
    is_nested=True,
    text_types=("gemma4_text",),
    ignored_tensors=tuple(
        f"model.{part}." for part in ("vision_tower", "embed_vision", "audio_tower", "embed_audio")
    ),
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
        "gemma4_text": _GEMMA4_ROW,
        "gemma4": _GEMMA4_WITH_TOWERS,
    }
)
