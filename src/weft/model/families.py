"""config.json to the `ModelSpec` of a decoder: one table row for each family of decoders, read by one function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from weft.core.errors import ConfigError
from weft.model.encoder_families import ENCODER_FAMILIES
from weft.model.fields import Fields, shown
from weft.model.rope import RopeRules, context_length, read_rope
from weft.model.spec import Activation, LayerSpec, ModelSpec, NormPlacement, QkNorm

Bias = Literal["never", "always", "attention_bias"]
Windows = Literal["none", "every_layer", "layer_types"]

_MAX_LAYERS = 4096
_MAX_WIDTH = 2**24
_FULL, _SLIDING = "full_attention", "sliding_attention"

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "relu": Activation.RELU,
}

_COMMON: Mapping[str, object] = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_GEMMA = {
    **_COMMON,
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
# Gemma 3 configs on the Hub leave out every size that equals the family's default.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is fixed for a model type, and which keys of its config decide the rest.

    `reads` names keys that change the maths in this family and are refused, unless neutral, elsewhere.
    `defaults` says what a missing key means; an explicit null overrides it.
    """

    architecture: str
    defaults: Mapping[str, object]
    qkv_bias: Bias = "attention_bias"
    o_bias: Bias = "attention_bias"
    qk_norm: QkNorm = QkNorm.NONE
    norm_placement: NormPlacement = NormPlacement.BEFORE
    norm_offset: float = 0.0
    windows: Windows = "none"
    window_switch: bool = False  # windows count only under use_sliding_window
    rope: RopeRules = field(default_factory=RopeRules)
    scales_embeddings: bool = False  # by the square root of the hidden size
    fused_projections: bool = False  # qkv_proj and gate_up_proj in one tensor each
    reads: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ("model.",)
    ignored_tensors: tuple[str, ...] = ()  # prefixes of tensors that serve no text
    ignored_tokens: frozenset[str] = frozenset()  # added tokens that may lie beyond the vocabulary


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
    # The text-only releases carry the image placeholder in the tokenizer, one past the embedding.
    ignored_tokens=frozenset({"<image_soft_token>"}),
)
_GEMMA3_WITH_VISION = Family(
    architecture="Gemma3ForConditionalGeneration",
    defaults=_GEMMA3,
    qk_norm=QkNorm.HEAD,
    norm_placement=NormPlacement.BOTH,
    norm_offset=1.0,
    windows="layer_types",
    rope=RopeRules(per_layer_type=True),
    scales_embeddings=True,
    reads=_GEMMA3_ROW.reads,
    prefixes=("language_model.model.", "model.language_model."),
    ignored_tensors=(
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ),
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(
            architecture="LlamaForCausalLM", defaults=_COMMON, reads=frozenset({"mlp_bias"})
        ),
        "mistral": Family(
            architecture="MistralForCausalLM",
            defaults={**_COMMON, "max_position_embeddings": 131072, "sliding_window": 4096},
            qkv_bias="never",
            o_bias="never",
            windows="every_layer",
        ),
        "qwen2": Family(
            architecture="Qwen2ForCausalLM",
            defaults={**_COMMON, "max_position_embeddings": 32768, "sliding_window": 4096},
            qkv_bias="always",
            o_bias="never",
            windows="layer_types",
            window_switch=True,
        ),
        "qwen3": Family(
            architecture="Qwen3ForCausalLM",
            defaults={
                **_COMMON,
                "max_position_embeddings": 32768,
                "sliding_window": 4096,
                "head_dim": 128,
            },
            qk_norm=QkNorm.HEAD,
            windows="layer_types",
            window_switch=True,
        ),
        "smollm3": Family(
            architecture="SmolLM3ForCausalLM",
            defaults={
                **_COMMON,
                "max_position_embeddings": 32768,
                "rope_theta": 2_000_000.0,
                "no_rope_layer_interval": 4,
                "tie_word_embeddings": True,
            },
            windows="layer_types",
            window_switch=True,
            reads=frozenset({"mlp_bias", "no_rope_layers", "no_rope_layer_interval"}),
        ),
        "phi3": Family(
            architecture="Phi3ForCausalLM",
            defaults={
                **_COMMON,
                "max_position_embeddings": 4096,
                "original_max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
            },
            qkv_bias="never",
            o_bias="never",
            windows="every_layer",
            rope=RopeRules(partial=True, aliases=(("su", "longrope"), ("yarn", "longrope"))),
            fused_projections=True,
        ),
        "granite": Family(
            architecture="GraniteForCausalLM",
            defaults=_COMMON,
            reads=frozenset(
                "mlp_bias embedding_multiplier residual_multiplier attention_multiplier"
                " logits_scaling".split()
            ),
        ),
        "olmo2": Family(
            architecture="Olmo2ForCausalLM",
            defaults={**_COMMON, "rms_norm_eps": 1e-5},
            qk_norm=QkNorm.FULL,
            norm_placement=NormPlacement.AFTER,
        ),
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

# Keys that change the maths, with the values that change nothing. A family that reads one is exempt.
_NEUTRAL: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "compression_config": ({},),
        "num_experts": (0, 1),
        "num_local_experts": (0, 1),
        "n_routed_experts": (0,),
        "attention_chunk_size": (0,),
        "attn_output_gate": (False,),
        "block_configs": ([],),
        "clip_qkv": (),
        "use_bidirectional_attention": (False,),
        "is_encoder_decoder": (False,),
        "add_cross_attention": (False,),
        "pruned_heads": ({}, []),
        "use_mrope": (False,),
        "per_layer_config": ({},),
        "mlp_bias": (False,),
        "no_rope_layers": ([],),
        "attn_logit_softcapping": (),
        "final_logit_softcapping": (),
        "embedding_multiplier": (1,),
        "residual_multiplier": (1,),
        "attention_multiplier": (),
        "logits_scaling": (1,),
        "logit_scale": (1,),
        "query_pre_attn_scalar": (),
    }
)


@dataclass(frozen=True, slots=True)
class ModelConfigFile:
    """config.json, understood: the family's row, and the fields of its text part with defaults.

    `task` is the end of the architecture's name: what the checkpoint was saved for.
    """

    model_type: str
    architectures: tuple[str, ...]
    task: str
    family: Family
    fields: Fields  # of the decoder
    top: Fields  # of the file as a whole; the same unless the decoder is nested


def read_config(values: Mapping[str, object], where: str) -> ModelConfigFile:
    """Find the family of a config, or refuse it by name with the list of what runs."""
    top = Fields(values, where)
    architectures = top.texts("architectures")
    model_type = top.text("model_type")
    family = FAMILIES.get(model_type)
    task = None if family is None else _task(family, architectures)
    if family is None or task is None:
        name = architectures[0] if architectures and family is not None else model_type
        raise ConfigError(
            f"{where}: {shown(name)} is not a model this runner knows; it runs "
            + ", ".join(row.architecture for row in FAMILIES.values())
            + "; encoders: "
            + ", ".join(ENCODER_FAMILIES)
        )
    inner = top.object("text_config") if model_type == "gemma3" else None
    source = top.values if inner is None else {**_top_level(top), **inner.values}
    fields = Fields({**family.defaults, **source}, where)
    names = architectures or (family.architecture,)
    return ModelConfigFile(model_type, names, task, family, fields, top)


def _task(family: Family, architectures: tuple[str, ...]) -> str | None:
    """What a decoder of that family was saved for; None if it is not one."""
    if not architectures or family.architecture in architectures:
        return "ForCausalLM"
    stem = family.architecture.removesuffix("ForCausalLM")
    tasks = ("Model", "ForSequenceClassification")
    return next((task for task in tasks if stem + task in architectures), None)


def _top_level(top: Fields) -> dict[str, object]:
    """Keys of a nested config that hold for its text part as well."""
    keys = ("tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id")
    return {key: top.values[key] for key in (*keys, "quantization_config") if key in top.values}


def read_spec(config: ModelConfigFile) -> ModelSpec:
    """The decoder that `config` describes; every key that matters is used or refused."""
    family, fields = config.family, config.fields
    _refuse_unimplemented(family, fields)
    hidden, heads, kv_heads, head_dim = _sizes(fields)
    scale = _attention_scale(family, fields, head_dim)
    reads = family.reads
    return ModelSpec(
        vocab_size=fields.integer("vocab_size", high=_MAX_WIDTH),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", high=_MAX_WIDTH),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layers=_layers(family, fields, head_dim),
        max_position_embeddings=context_length(fields, family.rope),
        norm_eps=fields.number("rms_norm_eps"),
        norm_offset=family.norm_offset,
        norm_placement=family.norm_placement,
        qk_norm=family.qk_norm,
        qkv_bias=_bias(family.qkv_bias, fields),
        o_bias=_bias(family.o_bias, fields),
        mlp_bias="mlp_bias" in reads and fields.flag_or("mlp_bias", False),
        activation=_activation(config.model_type, fields),
        attention_scale=scale,
        attention_soft_cap=_cap("attn_logit_softcapping", reads, fields),
        final_soft_cap=_cap("final_logit_softcapping", reads, fields),
        embedding_multiplier=_multiplier("embedding_multiplier", reads, fields)
        * (hidden**0.5 if family.scales_embeddings else 1.0),
        residual_multiplier=_multiplier("residual_multiplier", reads, fields),
        logits_divisor=_multiplier("logits_scaling", reads, fields),
        tied_head=fields.flag_or("tie_word_embeddings", False),
    )


def _refuse_unimplemented(family: Family, fields: Fields) -> None:
    for key, neutral in _NEUTRAL.items():
        if key not in family.reads and fields.has(key) and fields.values[key] not in neutral:
            raise ConfigError(
                f"{fields.where}: {key} {shown(fields.values[key])} is not implemented for "
                f"{family.architecture}"
            )
    if family.windows != "layer_types":
        _refuse_mixed_layers(family, fields)


def _refuse_mixed_layers(family: Family, fields: Fields) -> None:
    every = family.windows == "every_layer" and fields.has("sliding_window")
    wanted = _SLIDING if every else _FULL
    if any(kind != wanted for kind in fields.texts("layer_types")):
        raise ConfigError(
            f"{fields.where}: layer_types other than {wanted} are not implemented for "
            f"{family.architecture}"
        )


def _sizes(fields: Fields) -> tuple[int, int, int, int]:
    hidden = fields.integer("hidden_size", high=_MAX_WIDTH)
    heads = fields.integer("num_attention_heads", high=2**16)
    kv_heads = fields.integer_or("num_key_value_heads", heads, high=2**16)
    if not fields.has("head_dim") and hidden % heads:
        fields.refuse("num_attention_heads", f"a divisor of hidden_size ({hidden})")
    if heads % kv_heads:
        fields.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    return hidden, heads, kv_heads, fields.integer_or("head_dim", hidden // heads, high=2**16)


def _attention_scale(family: Family, fields: Fields, head_dim: int) -> float:
    if "query_pre_attn_scalar" in family.reads:
        return float(fields.factor("query_pre_attn_scalar") ** -0.5)
    if "attention_multiplier" in family.reads:
        return fields.factor_or("attention_multiplier", 1.0)
    return float(head_dim**-0.5)


def _bias(bias: Bias, fields: Fields) -> bool:
    return bias == "always" or (
        bias == "attention_bias" and fields.flag_or("attention_bias", False)
    )


def _cap(key: str, reads: frozenset[str], fields: Fields) -> float | None:
    return fields.factor(key) if key in reads and fields.has(key) else None


def _multiplier(key: str, reads: frozenset[str], fields: Fields) -> float:
    return fields.factor_or(key, 1.0) if key in reads else 1.0


def _activation(model_type: str, fields: Fields) -> Activation:
    key = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    name = fields.text(key)
    if name == "gelu" and model_type.startswith("gemma"):
        name = "gelu_pytorch_tanh"  # early Gemma configs say gelu and mean its tanh form
    if name not in _ACTIVATIONS:
        fields.refuse(key, "one of " + ", ".join(_ACTIVATIONS))
    return _ACTIVATIONS[name]


def _layers(family: Family, fields: Fields, head_dim: int) -> tuple[LayerSpec, ...]:
    num_layers = fields.integer("num_hidden_layers", high=_MAX_LAYERS)
    has_rope = _rope_layers(family, fields, num_layers)
    kinds = _layer_types(family, fields, num_layers, has_rope)
    ropes = {kind: read_rope(fields, family.rope, head_dim, kind) for kind in sorted(set(kinds))}
    window = fields.integer("sliding_window") if _SLIDING in kinds else None
    return tuple(
        LayerSpec(rope=ropes[kind] if roped else None, window=window if kind == _SLIDING else None)
        for kind, roped in zip(kinds, has_rope, strict=True)
    )


def _rope_layers(family: Family, fields: Fields, num_layers: int) -> list[bool]:
    if "no_rope_layers" not in family.reads:
        return [True] * num_layers
    listed = fields.values.get("no_rope_layers")
    if listed is None:
        interval = fields.integer("no_rope_layer_interval")
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if (
        not isinstance(listed, list)
        or len(listed) < num_layers
        or any(i not in (0, 1) for i in listed)
    ):
        fields.refuse(
            "no_rope_layers", f"a list of {num_layers} numbers, each 0 (no rope) or 1 (rope)"
        )
    return [bool(item) for item in listed[:num_layers]]


def _layer_types(
    family: Family, fields: Fields, num_layers: int, has_rope: list[bool]
) -> list[str]:
    if family.windows == "none" or not _windows_in_use(family, fields):
        return [_FULL] * num_layers
    if family.windows == "every_layer":
        return [_SLIDING] * num_layers
    if fields.has("layer_types"):
        return _listed_layer_types(fields, num_layers)
    if fields.has("sliding_window_pattern"):
        pattern = fields.integer("sliding_window_pattern")
        return [_SLIDING if (layer + 1) % pattern else _FULL for layer in range(num_layers)]
    if "no_rope_layers" in family.reads:
        return [_FULL if roped else _SLIDING for roped in has_rope]
    first = fields.integer_or("max_window_layers", 28, low=0)
    return [_FULL if layer < first else _SLIDING for layer in range(num_layers)]


def _windows_in_use(family: Family, fields: Fields) -> bool:
    """Some families carry a window that counts only when a second key switches it on."""
    switched_on = not family.window_switch or fields.flag_or("use_sliding_window", False)
    return switched_on and fields.has("sliding_window")


def _listed_layer_types(fields: Fields, num_layers: int) -> list[str]:
    kinds = list(fields.texts("layer_types"))
    if len(kinds) != num_layers or any(kind not in (_FULL, _SLIDING) for kind in kinds):
        fields.refuse("layer_types", f"a list of {num_layers} names, each {_FULL} or {_SLIDING}")
    return kinds
