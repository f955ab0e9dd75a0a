"""Turns config.json into the `ModelSpec` of a decoder, by the row of its family; keys that no row reads are
refused.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from weft.core.errors import ConfigError
from weft.model.families.decoder_families import FAMILIES, NESTED
from weft.model.families.delta import delta_layers
from weft.model.families.encoder_families import ENCODER_FAMILIES, read_activation
from weft.model.families.family import GROUP_KEYS, Bias, ExpertsRule, Family
from weft.model.families.latent import attention_scale, has_expert_groups, read_latent
from weft.model.families.mamba import MAMBA_KEYS, mamba_layers
from weft.model.families.rope import context_length, read_rope
from weft.model.fields import Fields, shown
from weft.model.spec import (
    MAX_CONV_WIDTH,
    Activation,
    ExpertsSpec,
    LayerSpec,
    ModelSpec,
    Norm,
    NormPlacement,
    QkNorm,
)

_MAX_LAYERS = 4096
_MAX_WIDTH = 2**24
_HEADS = re.compile("ForCausalLM|ForConditionalGeneration|LMHeadModel")
_MAX_EXPERTS = 4096
_FULL, _SLIDING, _CONV = "full_attention", "sliding_attention", "conv"

# Keys that change the computation, with the values that change nothing. A family that reads a key may have other
# values.
_NEUTRAL: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "num_experts": (0, 1),
        "num_local_experts": (0, 1),
        "n_routed_experts": (0,),
        "mlp_only_layers": ([],),
        **dict.fromkeys(GROUP_KEYS, (0, 1)),
        "rope_interleave": (False,),
        "swiglu_alpha": (),
        "swiglu_limit": (),
        "attention_chunk_size": (0,),
        "attn_output_gate": (False,),
        "full_attention_interval": (),
        "linear_num_value_heads": (),
        "block_configs": ([],),
        "clip_qkv": (),
        "use_bidirectional_attention": (False,),
        "is_encoder_decoder": (False,),
        "add_cross_attention": (False,),
        "pruned_heads": ({}, []),
        "use_mrope": (False,),
        "per_layer_config": ({},),
        "use_expert_bias": (True,),
        "conv_L_cache": (),
        **dict.fromkeys(MAMBA_KEYS, ()),
        "attn_layer_indices": (),
        "shared_intermediate_size": (),
        "normalization_function": ("rmsnorm",),
        "attn_rotary_emb": (),
        "conv_bias": (False,),
        "full_attn_idxs": (),
        "block_auto_adjust_ff_dim": (False,),
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
        "do_layer_norm_before": (True,),
        "word_embed_proj_dim": (),
        "_remove_final_layer_norm": (False,),
        "layer_norm_elementwise_affine": (True,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
    }
)


@dataclass(frozen=True, slots=True)
class ModelConfigFile:
    """config.json of a decoder: the row of its family, and the fields of its text part with defaults.

    `task` is the end of the architecture's name: the task that the checkpoint was saved for.
    """

    model_type: str
    architectures: tuple[str, ...]
    task: str
    family: Family
    fields: Fields  # of the decoder
    top: Fields  # of the whole file; equal to `fields` unless the decoder is nested


def read_config(values: Mapping[str, object], where: str) -> ModelConfigFile:
    """Finds the family of a config; refuses an unknown one with the list of supported architectures."""
    top = Fields(values, where)
    architectures = top.texts("architectures")
    model_type = top.text("model_type")
    family = FAMILIES.get(model_type)
    task = None if family is None else _task(family, architectures)
    if family is None or task is None:
        name = architectures[0] if architectures and family is not None else model_type
        raise ConfigError(
            f"{where}: {shown(name)} is not a model this runner knows; it runs "
            + ", ".join(dict.fromkeys(_HEADS.sub("", f.architecture) for f in FAMILIES.values()))
            + "; encoders: "
            + ", ".join(ENCODER_FAMILIES)
        )
    inner = top.object("text_config") if model_type in NESTED else None
    source = top.values if inner is None else {**_top_level(top), **inner.values}
    aliases = {**family.aliases, **_count_alias(family, source, where)}
    aliased = {aliases[key]: source[key] for key in aliases.keys() & source.keys()}
    fields = Fields({**family.defaults, **source, **aliased}, where)
    names = architectures or (family.architecture,)
    return ModelConfigFile(model_type, names, task, family, fields, top)


def _count_alias(family: Family, source: Mapping[str, object], where: str) -> Mapping[str, str]:
    """Returns the alias of the number of experts, if the file uses it; the two keys must not contradict each
    other.
    """
    if family.experts is None:
        return {}
    other, count = family.experts.other_count, family.experts.count
    if other is None or source.get(other) is None:
        return {}
    if source.get(count) not in (None, source[other]):
        Fields(source, where).refuse(other, f"{count} ({shown(source[count])}), or left out")
    return {other: count}


def _task(family: Family, architectures: tuple[str, ...]) -> str | None:
    """Returns the task that a decoder of that family was saved for; None if the file is not such a decoder."""
    if not architectures or family.architecture in architectures:
        return "ForCausalLM"
    stem = family.architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    tasks = ("Model", "ForSequenceClassification")
    return next((task for task in tasks if stem + task in architectures), None)


def _top_level(top: Fields) -> dict[str, object]:
    """Returns keys of a nested config that apply to its text part as well."""
    keys = ("tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id")
    return {key: top.values[key] for key in (*keys, "quantization_config") if key in top.values}


def read_spec(config: ModelConfigFile) -> ModelSpec:
    """Returns the decoder that `config` describes; every key that changes the result is used or refused."""
    family, fields = config.family, config.fields
    _refuse_unimplemented(family, fields)
    hidden, heads, kv_heads, head_dim = _sizes(fields)
    latent = read_latent(fields) if family.has_latent else None
    if latent is not None:
        kv_heads, head_dim = 1, latent.rank + latent.rope_size
    layers = _layers(family, fields, latent.rope_size if latent else head_dim)
    scale = _attention_scale(family, fields, head_dim)
    if latent is not None and layers[0].rope is not None:
        scale = attention_scale(fields, latent, layers[0].rope)
    reads = family.reads
    length = _context_length(family, fields)
    offset, embed_size = family.position_offset, _embed_size(family, fields, hidden)
    inner = _intermediate_size(family, fields, hidden)
    return ModelSpec(
        vocab_size=fields.integer("vocab_size", high=_MAX_WIDTH),
        hidden_size=hidden,
        embed_size=embed_size,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layers=_with_experts(family, fields, layers),
        max_position_embeddings=length,
        num_positions=0 if offset is None else length + offset,
        position_offset=offset or 0,
        norm=family.norm,
        norm_bias=family.norm is Norm.LAYER,
        norm_eps=fields.number("rms_norm_eps" if family.norm is Norm.RMS else "layer_norm_eps"),
        norm_offset=family.norm_offset,
        norm_placement=_norm_placement(family, fields),
        qk_norm=_qk_norm(family, fields),
        has_sinks=family.has_sinks,
        has_output_gate="attn_output_gate" in reads and fields.flag_or("attn_output_gate", True),
        conv_bias="conv_bias" in reads and fields.flag_or("conv_bias", False),
        qkv_bias=_bias(family.qkv_bias, fields),
        o_bias=_bias(family.o_bias, fields),
        mlp_bias=_bias(family.mlp_bias, fields),
        is_gated=family.is_gated,
        activation=_activation(config.model_type, fields),
        swiglu_limit=_cap("swiglu_limit", reads, fields),
        swiglu_alpha=_multiplier("swiglu_alpha", reads, fields),
        attention_scale=scale,
        attention_soft_cap=_cap("attn_logit_softcapping", reads, fields),
        latent=latent,
        final_soft_cap=_cap("final_logit_softcapping", reads, fields),
        embedding_multiplier=_multiplier("embedding_multiplier", reads, fields)
        * (hidden**0.5 if family.scales_embeddings else 1.0),
        residual_multiplier=_multiplier("residual_multiplier", reads, fields),
        logits_divisor=_multiplier("logits_scaling", reads, fields),
        tied_head=embed_size is None and fields.flag_or("tie_word_embeddings", False),
    )


def _refuse_unimplemented(family: Family, fields: Fields) -> None:
    reads = {*family.reads, family.mlp_bias, *(family.experts.keys if family.experts else ())}
    for key, neutral in _NEUTRAL.items():
        if key not in reads and fields.has(key) and fields.values[key] not in neutral:
            raise ConfigError(
                f"{fields.where}: {key} {shown(fields.values[key])} is not implemented for "
                f"{family.architecture}"
            )
    if family.windows != "layer_types" and family.recurrence == "none":
        _refuse_mixed_layers(family, fields)


def _refuse_mixed_layers(family: Family, fields: Fields) -> None:
    every = family.windows == "every_layer" and _windows_in_use(family, fields)
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


def _intermediate_size(family: Family, fields: Fields, hidden: int) -> int:
    if "shared_intermediate_size" in family.reads:  # of the MLP, or of the shared expert
        return fields.integer("shared_intermediate_size", high=_MAX_WIDTH)
    if not family.is_gated and not fields.has("intermediate_size"):
        return 4 * hidden
    size = fields.integer("intermediate_size", high=_MAX_WIDTH)
    key = "block_auto_adjust_ff_dim"
    return _adjusted(fields, size) if key in family.reads and fields.flag_or(key, True) else size


def _adjusted(fields: Fields, size: int) -> int:
    """Returns the size that LFM2 computes from a given one; without a multiplier it is not rounded up either."""
    size = int(2 * size / 3)
    if fields.has("block_ffn_dim_multiplier"):
        step = fields.integer("block_multiple_of", high=_MAX_WIDTH)
        size = int(fields.factor("block_ffn_dim_multiplier") * size)
        size = -(-size // step) * step
    if not 1 <= size <= _MAX_WIDTH:
        fields.refuse("intermediate_size", f"one of which an MLP of 1 to {_MAX_WIDTH} is made")
    return size


def _context_length(family: Family, fields: Fields) -> int:
    if family.position_offset is None:
        return context_length(fields, family.rope)
    return fields.integer("max_position_embeddings", high=_MAX_WIDTH - family.position_offset)


def _qk_norm(family: Family, fields: Fields) -> QkNorm:
    if "use_qk_norm" in family.reads and not fields.flag_or("use_qk_norm", False):
        return QkNorm.NONE
    return family.qk_norm


def _norm_placement(family: Family, fields: Fields) -> NormPlacement:
    if "do_layer_norm_before" in family.reads and not fields.flag_or("do_layer_norm_before", True):
        return NormPlacement.SUM
    return family.norm_placement


def _embed_size(family: Family, fields: Fields, hidden: int) -> int | None:
    """Returns the width of embeddings that differs from the hidden size, which only tied embeddings may have."""
    if "word_embed_proj_dim" not in family.reads:
        return None
    size = fields.integer_or("word_embed_proj_dim", hidden, high=_MAX_WIDTH)
    if size != hidden and not fields.flag_or("tie_word_embeddings", False):
        fields.refuse("tie_word_embeddings", f"true where word_embed_proj_dim is not {hidden}")
    return None if size == hidden else size


def _attention_scale(family: Family, fields: Fields, head_dim: int) -> float:
    if "query_pre_attn_scalar" in family.reads:
        return float(fields.factor("query_pre_attn_scalar") ** -0.5)
    if "attention_multiplier" in family.reads:
        return fields.factor_or("attention_multiplier", 1.0)
    return float(head_dim**-0.5)


def _bias(bias: Bias, fields: Fields) -> bool:
    return bias == "always" or (bias != "never" and fields.flag_or(bias, False))


def _cap(key: str, reads: frozenset[str], fields: Fields) -> float | None:
    return fields.factor(key) if key in reads and fields.has(key) else None


def _multiplier(key: str, reads: frozenset[str], fields: Fields) -> float:
    return fields.factor_or(key, 1.0) if key in reads else 1.0


def _activation(model_type: str, fields: Fields) -> Activation:
    key = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    name = fields.text(key)
    if name == "gelu" and model_type.startswith("gemma"):
        return Activation.GELU_TANH  # early Gemma configs say gelu and mean its tanh form
    return read_activation(fields, key)


def _layers(family: Family, fields: Fields, head_dim: int) -> tuple[LayerSpec, ...]:
    num_layers = fields.integer("num_hidden_layers", high=_MAX_LAYERS)
    if family.position_offset is not None:
        return (LayerSpec(),) * num_layers
    if family.recurrence == "delta":
        rope = read_rope(fields, family.rope, head_dim, _FULL)
        return delta_layers(fields, num_layers, rope, is_by_key_head=family.is_by_key_head)
    if family.recurrence == "mamba":
        rope = read_rope(fields, family.rope, head_dim, _FULL)
        may_lack_rope = "position_embedding_type" in family.reads
        return mamba_layers(fields, num_layers, rope, may_lack_rope=may_lack_rope)
    has_rope = _rope_layers(family, fields, num_layers)
    kinds = _layer_types(family, fields, num_layers, has_rope)
    ropes = {
        kind: read_rope(fields, family.rope, head_dim, kind)
        for kind in sorted(set(kinds) - {_CONV})
    }
    window = fields.integer("sliding_window") if _SLIDING in kinds else None
    width = fields.integer("conv_L_cache", low=2, high=MAX_CONV_WIDTH) if _CONV in kinds else 0
    return tuple(
        LayerSpec(conv_width=width)
        if kind == _CONV
        else LayerSpec(
            rope=ropes[kind] if roped else None, window=window if kind == _SLIDING else None
        )
        for kind, roped in zip(kinds, has_rope, strict=True)
    )


def _with_experts(
    family: Family, fields: Fields, layers: tuple[LayerSpec, ...]
) -> tuple[LayerSpec, ...]:
    """Returns the layers, with experts in those that have some."""
    rule = family.experts
    if rule is None:
        return layers
    count = fields.integer_or(rule.count, 0, low=0, high=_MAX_EXPERTS)
    if count == 0 and not (rule.has_steps or rule.is_optional):
        fields.refuse(rule.count, f"a whole number from 1 to {_MAX_EXPERTS}")
    if count == 0:
        return layers
    is_normalized = rule.is_normalized
    experts = ExpertsSpec(
        count,
        fields.integer("num_experts_per_tok", high=count),
        fields.integer(rule.inner_size, high=_MAX_WIDTH),
        0 if rule.shared_size is None else fields.integer(rule.shared_size, high=_MAX_WIDTH),
        has_shared_gate=rule.has_shared_gate,
        is_normalized=fields.flag_or("norm_topk_prob", False)
        if is_normalized is None
        else is_normalized,
        has_bias=rule.has_bias,
    )
    if rule.has_groups:
        experts = _with_groups(rule, fields, replace(experts, is_sigmoid=rule.is_sigmoid))
    sparse = _sparse_layers(rule, fields, len(layers))
    return tuple(
        replace(layer, experts=experts) if index in sparse else layer
        for index, layer in enumerate(layers)
    )


def _with_groups(rule: ExpertsRule, fields: Fields, experts: ExpertsSpec) -> ExpertsSpec:
    """Returns the experts with a router and a shared expert in DeepSeek's form."""
    count, num_groups, num_chosen = experts.count, 1, 1
    if has_expert_groups(fields, is_sigmoid=experts.is_sigmoid):
        num_groups = fields.integer_or("n_group", 1, high=count)
        num_chosen = fields.integer_or("topk_group", 1, high=num_groups)
    size = count // num_groups
    if count % num_groups or (num_groups > 1 and size < 2):
        fields.refuse("n_group", f"a divisor of {count}, with two experts or more in a group")
    if num_chosen * size < experts.per_token:
        fields.refuse("topk_group", f"groups enough for {experts.per_token} experts")
    num_shared = fields.integer_or("n_shared_experts", 0, low=0, high=_MAX_EXPERTS)
    return replace(
        experts,
        shared_size=num_shared * experts.inner_size,
        has_shared_gate=False,
        num_groups=num_groups,
        groups_per_token=num_chosen,
        epsilon=rule.epsilon,
        scale=fields.factor_or("routed_scaling_factor", 1.0),
    )


def _sparse_layers(rule: ExpertsRule, fields: Fields, num_layers: int) -> Collection[int]:
    """Returns the numbers of layers that have experts."""
    if rule.has_groups:
        return range(fields.integer_or("first_k_dense_replace", 0, low=0), num_layers)
    if not rule.has_steps:
        return range(num_layers)
    step = fields.integer("decoder_sparse_step")
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(index) is not int for index in dense):
        fields.refuse("mlp_only_layers", "a list of the numbers of layers")
    return frozenset(i for i in range(num_layers) if (i + 1) % step == 0 and i not in dense)


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
    if family.recurrence == "convolution":
        return _mixed_layer_types(fields, num_layers)
    if family.windows == "none" or not _windows_in_use(family, fields):
        return [_FULL] * num_layers
    if family.windows == "every_layer":
        return [_SLIDING] * num_layers
    if fields.has("layer_types"):
        return _listed_layer_types(fields, num_layers, (_FULL, _SLIDING))
    if fields.has("sliding_window_pattern"):
        pattern = fields.integer("sliding_window_pattern")
        return [_SLIDING if (layer + 1) % pattern else _FULL for layer in range(num_layers)]
    if "no_rope_layers" in family.reads:
        return [_FULL if roped else _SLIDING for roped in has_rope]
    first = fields.integer_or("max_window_layers", 28, low=0)
    if family.window_alternates:
        return [_FULL if i % 2 or i >= first else _SLIDING for i in range(num_layers)]
    return [_FULL if layer < first else _SLIDING for layer in range(num_layers)]


def _windows_in_use(family: Family, fields: Fields) -> bool:
    """True if windows apply; some families have a window that a second key must switch on."""
    switched_on = not family.window_switch or fields.flag_or("use_sliding_window", False)
    return switched_on and fields.has("sliding_window")


def _listed_layer_types(fields: Fields, num_layers: int, allowed: tuple[str, str]) -> list[str]:
    kinds = list(fields.texts("layer_types"))
    if len(kinds) != num_layers or any(kind not in allowed for kind in kinds):
        fields.refuse(
            "layer_types", f"a list of {num_layers} names, each {allowed[0]} or {allowed[1]}"
        )
    return kinds


def _mixed_layer_types(fields: Fields, num_layers: int) -> list[str]:
    """Returns the kinds of layers, attention or convolution; without keys all layers have attention."""
    if fields.has("layer_types"):
        kinds = _listed_layer_types(fields, num_layers, (_FULL, _CONV))
        return kinds if _FULL in kinds else fields.refuse("layer_types", f"one with {_FULL} in it")
    key = "full_attn_idxs"
    listed = fields.values.get(key)
    if listed is None:
        return [_FULL] * num_layers
    if not isinstance(listed, list) or not any(
        type(index) is int and 0 <= index < num_layers for index in listed
    ):
        fields.refuse(key, f"a list of numbers of layers, from 0 to {num_layers - 1}")
    return [_FULL if index in listed else _CONV for index in range(num_layers)]
