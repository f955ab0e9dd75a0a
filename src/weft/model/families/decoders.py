"""Converts config.json to the `ModelSpec` of a decoder, by the row of its family; refuses keys that no row reads."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from weft.core.errors import ConfigError
from weft.model.families.decoder_families import FAMILIES
from weft.model.families.encoder_families import ENCODER_FAMILIES, read_activation
from weft.model.families.experts import with_experts
from weft.model.families.family import GROUP_KEYS, Bias, Family
from weft.model.families.latent import attention_scale, read_latent
from weft.model.families.layer_sizes import with_layer_sizes
from weft.model.families.layers import FULL, SLIDING, read_layers, windows_in_use
from weft.model.families.recurrent.mamba import BESIDE_KEYS, MAMBA_KEYS, with_multipliers
from weft.model.families.rope import context_length, read_sections
from weft.model.fields import Fields, shown
from weft.model.spec import ModelSpec, NormPlacement, QkNorm
from weft.model.switches import Activation, Norm

_MAX_WIDTH = 2**24

# Keys that change the computation, each with the values that have no effect. A family that reads a key may have other
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
        "attn_temperature_tuning": (False, 0),
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
        "num_kv_shared_layers": (0,),
        "attention_k_eq_v": (False,),
        "hidden_size_per_layer_input": (0,),
        "enable_moe_block": (False,),
        "use_double_wide_mlp": (False,),
        "use_expert_bias": (True,),
        "conv_L_cache": (),
        **dict.fromkeys(MAMBA_KEYS | BESIDE_KEYS, ()),
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
        "scale_emb": (1,),
        "scale_embedding": (False,),
        "scale_depth": (),
        "dim_model_base": (),
        "sparse_config": (),
        "qk_layernorm": (False,),
        "use_parallel_residual": (False,),
        "use_post_norm": (False,),
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
    """A decoder's config.json: the row of its family, and the fields of its text part with defaults.

    `task` is the end of the architecture's name: the task for which the checkpoint was saved.
    """

    model_type: str
    architectures: tuple[str, ...]
    task: str
    family: Family
    fields: Fields  # of the decoder
    top: Fields  # of the whole file; equal to `fields` unless the decoder is nested


def read_config(values: Mapping[str, object], where: str) -> ModelConfigFile:
    """Returns a config with the row of its family; the error for an unknown family says what to do."""
    top = Fields(values, where)
    architectures = top.texts("architectures")
    model_type = top.text("model_type")
    family = FAMILIES.get(model_type)
    task = None if family is None else _task(family, architectures)
    if family is None or task is None:
        name = architectures[0] if architectures and family is not None else model_type
        raise ConfigError(
            f"{where}: {shown(name)} is not a model this runner knows; it runs Llama, Qwen, Gemma and others "
            f"(docs/reference/models.md); encoders: {', '.join(ENCODER_FAMILIES)}. "
            "vLLM may run it: `weft serve MODEL --engine vllm` (docs/engines.md)"
        )
    family = family.variant(top)
    inner = top.object("text_config") if family.is_nested or family.tower else None
    if inner is not None and family.text_types:
        _check_text_type(inner, family.text_types)
    source = top.values if inner is None else {**_top_level(top), **inner.values, **_tie(top)}
    aliases = {**family.aliases, **_count_alias(family, source, where)}
    aliased = {aliases[key]: source[key] for key in aliases.keys() & source.keys()}
    fields = Fields({**family.defaults, **source, **aliased}, where)
    names = architectures or (family.architecture,)
    return ModelConfigFile(model_type, names, task, family, fields, top)


def _count_alias(family: Family, source: Mapping[str, object], where: str) -> Mapping[str, str]:
    """Returns the alias of the key for the number of experts, if the file uses the alias.

    Raises `ConfigError` if the two keys contradict each other.
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
    """Returns the task for which a decoder of that family was saved; None if the file is not such a decoder."""
    names = (family.architecture, *family.also_saved_as)
    if not architectures or any(name in architectures for name in names):
        return "ForCausalLM"
    stem = family.architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    tasks = ("Model", "ForSequenceClassification")
    return next((task for task in tasks if stem + task in architectures), None)


def _top_level(top: Fields) -> dict[str, object]:
    """Returns the top-level keys of a nested config that also apply to its text part."""
    keys = ("tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id")
    return {key: top.values[key] for key in (*keys, "quantization_config") if key in top.values}


def _check_text_type(inner: Fields, text_types: tuple[str, ...]) -> None:
    if inner.values.get("model_type", text_types[0]) not in text_types:
        inner.refuse("model_type", f"{' or '.join(text_types)} for a family with this tower")


def _tie(top: Fields) -> dict[str, object]:
    """Returns whether the head is tied, if the top level of a nested config says so: it overrides the text part."""
    key = "tie_word_embeddings"
    return {key: top.values[key]} if top.has(key) else {}


def read_spec(config: ModelConfigFile) -> ModelSpec:
    """Returns the spec of the decoder that `config` describes; every key that changes the result is used or refused."""
    family, fields = config.family, config.fields
    _refuse_unimplemented(family, fields)
    hidden, heads, kv_heads, head_dim = _sizes(fields)
    latent = read_latent(fields) if family.has_latent else None
    if latent is not None:
        kv_heads, head_dim = 1, latent.rank + latent.rope_size
    layers = read_layers(family, fields, latent.rope_size if latent else head_dim)
    scale = _attention_scale(family, fields, head_dim)
    if latent is not None and layers[0].rope is not None:
        scale = attention_scale(fields, latent, layers[0].rope)
    reads = family.reads
    length = _context_length(family, fields)
    offset, embed_size = family.position_offset, _embed_size(family, fields, hidden)
    inner = _intermediate_size(family, fields, hidden)
    spec = ModelSpec(
        vocab_size=fields.integer("vocab_size", high=_MAX_WIDTH),
        hidden_size=hidden,
        embed_size=embed_size,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layers=with_experts(family, fields, layers),
        max_position_embeddings=length,
        num_positions=0 if offset is None else length + offset,
        position_offset=offset or 0,
        norm=family.norm,
        norm_bias=family.norm is Norm.LAYER and family.norm_bias,
        norm_eps=fields.number("rms_norm_eps" if family.norm is Norm.RMS else "layer_norm_eps"),
        norm_offset=family.norm_offset,
        norm_placement=_norm_placement(family, fields),
        qk_norm=_qk_norm(family, fields),
        has_qk_weights=family.has_qk_weights,
        has_sinks=family.has_sinks,
        has_output_gate="attn_output_gate" in reads and fields.flag_or("attn_output_gate", True),
        conv_bias="conv_bias" in reads and fields.flag_or("conv_bias", False),
        qkv_bias=_bias(family.qkv_bias, fields),
        has_key_bias=family.has_key_bias,
        o_bias=_bias(family.o_bias, fields),
        mlp_bias=_bias(family.mlp_bias, fields),
        is_gated=family.is_gated,
        activation=_activation(config, fields),
        swiglu_limit=_cap("swiglu_limit", reads, fields),
        swiglu_alpha=_multiplier("swiglu_alpha", reads, fields),
        attention_scale=scale,
        attention_soft_cap=_cap("attn_logit_softcapping", reads, fields),
        latent=latent,
        final_soft_cap=_cap("final_logit_softcapping", reads, fields),
        embedding_multiplier=_multiplier("embedding_multiplier", reads, fields)
        * (hidden**0.5 if family.scales_embeddings else 1.0),
        residual_multiplier=_residual_multiplier(reads, fields),
        logits_divisor=_logits_divisor(reads, fields, hidden),
        head_bias=family.head_bias,
        tied_head=embed_size is None and fields.flag_or("tie_word_embeddings", False),
    )
    if family.recurrence == "beside":
        return with_multipliers(fields, spec)
    return with_layer_sizes(family, fields, spec)


def with_tower(config: ModelConfigFile, spec: ModelSpec) -> ModelSpec:
    """Returns the spec with the tower that the file describes, and with what its pictures change in the decoder."""
    family, top = config.family, config.top
    if family.tower is None:
        return spec
    section = family.tower.section
    vision = top if section is None else top.object(section)
    if vision is None:
        return spec
    tower = family.tower.read(config.top, vision, spec.hidden_size)
    if tower.output_size != spec.hidden_size:
        vision.refuse("out_hidden_size", f"hidden_size of the text model ({spec.hidden_size})")
    num_layers = len(spec.layers)
    if len(tower.deepstack_layers) >= num_layers:
        vision.refuse(
            "deepstack_visual_indexes", f"fewer than the text model's layers ({num_layers})"
        )
    rope = next((layer.rope for layer in spec.layers if layer.rope is not None), None)
    sections = None
    if family.rope.sections is not None and rope is not None:
        sections = read_sections(config.fields, family.rope, rope)
    return replace(
        spec,
        tower=tower,
        sees_items_whole=family.sees_items_whole,
        num_cross_keys=tower.num_positions if tower.num_cross_layers else 0,
        rope_sections=sections,
        has_interleaved_sections=family.rope.has_interleaved_sections,
    )


def _refuse_unimplemented(family: Family, fields: Fields) -> None:
    reads = {*family.reads, family.mlp_bias, *(family.experts.keys if family.experts else ())}
    for key, neutral in _NEUTRAL.items():
        if key not in reads and fields.has(key) and fields.values[key] not in neutral:
            raise ConfigError(
                f"{fields.where}: {key} {shown(fields.values[key])} is not implemented for "
                f"{family.architecture}"
            )
    if family.windows in ("none", "every_layer") and family.recurrence == "none":
        _refuse_mixed_layers(family, fields)


def _refuse_mixed_layers(family: Family, fields: Fields) -> None:
    every = family.windows == "every_layer" and windows_in_use(family, fields)
    wanted = SLIDING if every else FULL
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
    if "shared_intermediate_size" in family.reads:  # size of the MLP, or of the shared expert
        return fields.integer("shared_intermediate_size", high=_MAX_WIDTH)
    if not family.is_gated and not fields.has("intermediate_size"):
        return 4 * hidden
    dense = "intermediate_size_mlp"  # of Llama 4, whose intermediate_size is that of experts
    size = fields.integer(dense if dense in family.reads else "intermediate_size", high=_MAX_WIDTH)
    key = "block_auto_adjust_ff_dim"
    return _adjusted(fields, size) if key in family.reads and fields.flag_or(key, True) else size


def _adjusted(fields: Fields, size: int) -> int:
    """Returns the size of an LFM2 MLP, computed from the given size; without a multiplier it is not rounded up
    either.
    """
    size = int(2 * size / 3)
    if fields.has("block_ffn_dim_multiplier"):
        step = fields.integer("block_multiple_of", high=_MAX_WIDTH)
        size = int(fields.factor("block_ffn_dim_multiplier") * size)
        size = -(-size // step) * step
    if not 1 <= size <= _MAX_WIDTH:
        fields.refuse("intermediate_size", f"a size that gives an MLP of 1 to {_MAX_WIDTH}")
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
    if "use_parallel_residual" in family.reads and fields.flag_or("use_parallel_residual", False):
        return NormPlacement.PARALLEL
    return family.norm_placement


def _embed_size(family: Family, fields: Fields, hidden: int) -> int | None:
    """Returns the embeddings' width if it differs from the hidden size, which is possible only for tied embeddings."""
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


def _residual_multiplier(reads: frozenset[str], fields: Fields) -> float:
    if "scale_depth" in reads:
        return float(
            fields.factor_or("scale_depth", 1.0) / fields.integer("num_hidden_layers") ** 0.5
        )
    return _multiplier("residual_multiplier", reads, fields)


def _logits_divisor(reads: frozenset[str], fields: Fields, hidden: int) -> float:
    if "dim_model_base" in reads:
        return hidden / fields.integer_or("dim_model_base", hidden)
    if "logit_scale" in reads:
        return 1 / fields.factor("logit_scale")
    if "lm_head_multiplier" in reads:
        return 1 / fields.factor_or("lm_head_multiplier", 1.0)
    return _multiplier("logits_scaling", reads, fields)


def _activation(config: ModelConfigFile, fields: Fields) -> Activation:
    key = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    name = fields.text(key)
    if name == "xielu" and config.family.may_be_xielu:
        return Activation.XIELU
    if name == "gelu" and config.model_type.startswith("gemma"):
        return Activation.GELU_TANH  # early Gemma configs say gelu but mean its tanh form
    return read_activation(fields, key)
