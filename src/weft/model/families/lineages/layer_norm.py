"""Family rows of GPT-NeoX's and Llama's descendants with layer norms; some compute attention and MLP in parallel."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import COMMON, Family
from weft.model.families.names import DECODER, DECODER_NORMS, LLAMA, DecoderNames, joined
from weft.model.families.rope import RopeRules
from weft.model.spec import NormPlacement, QkNorm
from weft.model.switches import Norm

_COMMON = {**COMMON, "layer_norm_eps": 1e-5}
_STARCODER = DecoderNames(
    {**DECODER, "up": "mlp.c_fc", "down": "mlp.c_proj"},
    DECODER_NORMS,
)
_PHI = DecoderNames(
    {
        **DECODER,
        "o": "self_attn.dense",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
        "norm": "final_layernorm",
    },
    DECODER_NORMS,
)
_NEOX = DecoderNames(
    {
        "embed": "embed_in",
        "layer": "layers.{}.",
        **joined("attention.query_key_value", "q", "k", "v"),
        "o": "attention.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
        "norm": "final_layer_norm",
    },
    dict.fromkeys(
        (NormPlacement.BEFORE, NormPlacement.PARALLEL), DECODER_NORMS[NormPlacement.BEFORE]
    ),
    has_mixed_heads=True,
    head="embed_out",
)
_COHERE = Family(
    architecture="CohereForCausalLM",
    defaults={
        **_COMMON,
        "max_position_embeddings": 8192,
        "logit_scale": 0.0625,
        "tie_word_embeddings": True,
    },
    norm=Norm.LAYER,
    norm_bias=False,
    norm_placement=NormPlacement.PARALLEL,
    qk_norm=QkNorm.HEAD_LAYER,
    reads=frozenset({"logit_scale", "use_qk_norm"}),
    names=replace(LLAMA, has_neighbours=True),
)

LAYER_NORM_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "starcoder2": Family(
            architecture="Starcoder2ForCausalLM",
            defaults={
                **_COMMON,
                "hidden_act": "gelu_pytorch_tanh",
                "max_position_embeddings": 4096,
                "use_bias": True,
                "tie_word_embeddings": True,
            },
            aliases={"norm_epsilon": "layer_norm_eps"},
            qkv_bias="use_bias",
            o_bias="use_bias",
            mlp_bias="use_bias",
            is_gated=False,
            norm=Norm.LAYER,
            windows="every_layer",
            names=_STARCODER,
        ),
        "stablelm": Family(
            architecture="StableLmForCausalLM",
            defaults={
                **_COMMON,
                "max_position_embeddings": 4096,
                "partial_rotary_factor": 0.25,
            },
            qkv_bias="use_qkv_bias",
            o_bias="never",
            norm=Norm.LAYER,
            rope=RopeRules(partial=True),
            reads=frozenset({"use_parallel_residual"}),
        ),
        "nemotron": Family(
            architecture="NemotronForCausalLM",
            defaults={
                **_COMMON,
                "hidden_act": "relu2",
                "max_position_embeddings": 4096,
                "partial_rotary_factor": 0.5,
            },
            aliases={"norm_eps": "layer_norm_eps", "rope_percent": "partial_rotary_factor"},
            mlp_bias="mlp_bias",
            is_gated=False,
            norm=Norm.LAYER,
            norm_offset=1.0,
            rope=RopeRules(partial=True),
        ),
        "cohere": _COHERE,
        "cohere2": replace(
            _COHERE,
            architecture="Cohere2ForCausalLM",
            defaults={**_COHERE.defaults, "sliding_window": 4096, "sliding_window_pattern": 4},
            windows="layer_types",
            rope_needs_window="always",
            qk_norm=QkNorm.NONE,
            reads=frozenset({"logit_scale"}),
        ),
        "phi": Family(
            architecture="PhiForCausalLM",
            defaults={**_COMMON, "hidden_act": "gelu_new", "partial_rotary_factor": 0.5},
            qkv_bias="always",
            o_bias="always",
            mlp_bias="always",
            is_gated=False,
            norm=Norm.LAYER,
            norm_placement=NormPlacement.PARALLEL,
            head_bias=True,
            rope=RopeRules(partial=True),
            names=_PHI,
        ),
        "gpt_neox": Family(
            architecture="GPTNeoXForCausalLM",
            defaults={
                **_COMMON,
                "hidden_act": "gelu",
                "intermediate_size": 24576,
                "partial_rotary_factor": 0.25,
                "use_parallel_residual": True,
                "attention_bias": True,
            },
            aliases={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
            mlp_bias="always",
            is_gated=False,
            norm=Norm.LAYER,
            rope=RopeRules(partial=True),
            reads=frozenset({"use_parallel_residual"}),
            names=_NEOX,
            prefixes=("gpt_neox.",),
        ),
    }
)
