"""Family rows of Llama and of families with its form: Mistral, Mixtral, SmolLM 3, Phi-3, gpt-oss and others.

Llama 4 has experts that read inputs times their weights, and attention in chunks; its towers are not loaded.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import COMMON, ExpertsRule, Family
from weft.model.families.names import (
    DECODER,
    DECODER_NORMS,
    GPT_OSS,
    LLAMA,
    LLAMA_FUSED,
    MIXTRAL,
    DecoderNames,
    joined,
)
from weft.model.families.rope import RopeRules
from weft.model.spec import NormPlacement, QkNorm

_GPT_OSS = {
    **COMMON,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 32.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "attention_bias": True,
    "sliding_window": 128,
    "sliding_window_pattern": 2,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}

_LLAMA4_NAMES = DecoderNames(
    {
        **DECODER,
        **{part: f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        "router": "feed_forward.router",
        **{
            f"shared.{part}": f"feed_forward.shared_expert.{part}_proj"
            for part in ("gate", "up", "down")
        },
        **joined("feed_forward.experts.gate_up_proj", "expert_gate", "expert_up"),
        "expert_down": "feed_forward.experts.down_proj",
    },
    DECODER_NORMS,
    has_short_experts=True,
    has_turned_experts=True,
    has_neighbours=True,
)
_APERTUS_NAMES = DecoderNames(
    {
        **DECODER,
        "xielu_positive": "mlp.act_fn.alpha_p",
        "xielu_negative": "mlp.act_fn.alpha_n",
        "xielu_linear": "mlp.act_fn.beta",
    },
    {
        NormPlacement.BEFORE: {
            "attention_norm_before": "attention_layernorm",
            "mlp_norm_before": "feedforward_layernorm",
        }
    },
)
_LLAMA4_ROW = Family(
    architecture="Llama4ForCausalLM",
    defaults={
        **COMMON,
        "head_dim": 128,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "use_qk_norm": True,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    },
    names=_LLAMA4_NAMES,
    qk_norm=QkNorm.HEAD_AFTER_ROPE,
    has_qk_weights=False,
    windows="chunks",
    reads=frozenset(
        "attention_chunk_size attn_temperature_tuning intermediate_size_mlp no_rope_layers use_qk_norm".split()
    ),
    experts=ExpertsRule(
        count="num_local_experts",
        shared_size="intermediate_size",
        has_shared_gate=False,
        is_normalized=False,
        is_sigmoid=True,
        weighs_inputs=True,
        listed="moe_layers",
        steps="interleave_moe_layer_step",
    ),
)

LLAMA_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(architecture="LlamaForCausalLM", defaults=COMMON, mlp_bias="mlp_bias"),
        "llama4_text": _LLAMA4_ROW,
        "llama4": replace(
            _LLAMA4_ROW,
            architecture="Llama4ForConditionalGeneration",
            prefixes=("language_model.model.",),
            is_nested=True,
            text_types=("llama4_text",),
            ignored_tensors=("vision_model.", "multi_modal_projector."),
        ),
        "mistral": Family(
            architecture="MistralForCausalLM",
            defaults={**COMMON, "max_position_embeddings": 131072, "sliding_window": 4096},
            qkv_bias="never",
            o_bias="never",
            windows="every_layer",
        ),
        "mixtral": Family(
            architecture="MixtralForCausalLM",
            defaults={
                **COMMON,
                "max_position_embeddings": 131072,
                "rms_norm_eps": 1e-5,
                "rope_theta": 1_000_000.0,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
            },
            qkv_bias="never",
            o_bias="never",
            windows="every_layer",
            names=MIXTRAL,
            experts=ExpertsRule(count="num_local_experts", is_normalized=True),
        ),
        "smollm3": Family(
            architecture="SmolLM3ForCausalLM",
            defaults={
                **COMMON,
                "max_position_embeddings": 32768,
                "rope_theta": 2_000_000.0,
                "no_rope_layer_interval": 4,
                "tie_word_embeddings": True,
            },
            windows="layer_types",
            window_switch=True,
            mlp_bias="mlp_bias",
            reads=frozenset({"no_rope_layers", "no_rope_layer_interval"}),
        ),
        "phi3": Family(
            architecture="Phi3ForCausalLM",
            defaults={
                **COMMON,
                "max_position_embeddings": 4096,
                "original_max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
            },
            qkv_bias="never",
            o_bias="never",
            windows="every_layer",
            rope=RopeRules(partial=True, aliases=(("su", "longrope"), ("yarn", "longrope"))),
            names=LLAMA_FUSED,
        ),
        "gpt_oss": Family(
            architecture="GptOssForCausalLM",
            defaults=_GPT_OSS,
            has_sinks=True,
            windows="layer_types",
            reads=frozenset({"swiglu_alpha", "swiglu_limit"}),
            names=GPT_OSS,
            experts=ExpertsRule(count="num_local_experts", is_normalized=True, has_bias=True),
        ),
        "seed_oss": Family(
            architecture="SeedOssForCausalLM",
            defaults={
                **COMMON,
                "head_dim": 128,
                "max_position_embeddings": 524288,
                "attention_bias": True,
            },
            o_bias="attention_out_bias",
            mlp_bias="mlp_bias",
        ),
        "internlm3": Family(
            architecture="InternLM3ForCausalLM",
            also_saved_as=("LlamaForCausalLM",),
            defaults={
                **COMMON,
                "head_dim": 128,
                "max_position_embeddings": 32768,
                "rms_norm_eps": 1e-5,
            },
            aliases={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
            o_bias="mlp_bias",
            mlp_bias="mlp_bias",
        ),
        "arcee": Family(
            architecture="ArceeForCausalLM",
            defaults={
                **COMMON,
                "hidden_act": "relu2",
                "max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
            },
            mlp_bias="mlp_bias",
            is_gated=False,
        ),
        "apertus": Family(
            architecture="ApertusForCausalLM",
            defaults={
                **COMMON,
                "hidden_act": "xielu",
                "max_position_embeddings": 65536,
                "rms_norm_eps": 1e-5,
                "rope_theta": 12_000_000.0,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "original_max_position_embeddings": 8192,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                },
            },
            is_gated=False,
            may_be_xielu=True,
            qk_norm=QkNorm.HEAD,
            names=_APERTUS_NAMES,
        ),
        "hunyuan_v1_dense": Family(
            architecture="HunYuanDenseV1ForCausalLM",
            defaults={**COMMON, "rms_norm_eps": 1e-5},
            qk_norm=QkNorm.HEAD_AFTER_ROPE,
            rope=RopeRules(has_alpha=True),
            names=replace(
                LLAMA,
                names={
                    **LLAMA.names,
                    "q_norm": "self_attn.query_layernorm",
                    "k_norm": "self_attn.key_layernorm",
                },
            ),
        ),
        "minicpm": Family(
            architecture="MiniCPMForCausalLM",
            defaults={**COMMON, "tie_word_embeddings": True},
            aliases={"scale_emb": "embedding_multiplier"},
            reads=frozenset({"embedding_multiplier", "scale_emb", "scale_depth", "dim_model_base"}),
        ),
    }
)
