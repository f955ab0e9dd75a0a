"""Converts config.json to the `ModelSpec` of an encoder: a table with one row per family, read by one function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from weft.core.errors import ConfigError
from weft.core.values.types import PoolingKind
from weft.model.families.names import BERT, DISTILBERT, MODERNBERT, NOMIC, Names
from weft.model.families.rope import RopeRules, read_rope
from weft.model.fields import Fields, shown
from weft.model.pooling import HeadSpec, read_labels, read_scale
from weft.model.spec import LayerSpec, ModelSpec, NormPlacement
from weft.model.switches import Activation, Norm

_MAX_LAYERS = 4096
_MAX_WIDTH = 2**24

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
    "tanh": Activation.TANH,
}

Ropes = Literal["none", "one", "per_layer_type"]

# GPT-2's names of keys, which later families use too, with the usual names.
GPT2_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "layer_norm_eps",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderFamily:
    """Fixed properties of a model type, and the config keys that determine the rest.

    `aliases` maps other names of keys to the usual names. With `head_activation` None, sequences are classified from
    the hidden state itself.
    """

    names: Names
    prefix: str  # prefix of the encoder's tensors if the file has a head
    defaults: Mapping[str, object]
    aliases: Mapping[str, str] = field(default_factory=dict)
    ropes: Ropes = "none"
    is_gated: bool = False
    norm_placement: NormPlacement = NormPlacement.SUM
    has_biases: bool = True
    positions_follow_padding: bool = False  # the first position is the one after the padding id
    head_activation: Activation = Activation.TANH
    refused: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # neutral values by key


_BERT_DEFAULTS: Mapping[str, object] = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
_ROBERTA_DEFAULTS: Mapping[str, object] = {**_BERT_DEFAULTS, "pad_token_id": 1}
_ABSOLUTE: Mapping[str, tuple[object, ...]] = {"position_embedding_type": ("absolute",)}
# Settings of the first releases of nomic-bert, with the only supported values.
_NOMIC_FIXED: Mapping[str, tuple[object, ...]] = {
    "prenorm": (False,),
    "parallel_block": (False,),
    "qkv_proj_bias": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (),
    "rotary_scaling_factor": (),
    "use_rms_norm": (False,),
    "num_experts": (0,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
    "use_xentropy": (True, False),
}

ENCODER_FAMILIES: Mapping[str, EncoderFamily] = MappingProxyType(
    {
        "bert": EncoderFamily(
            names=BERT, prefix="bert.", defaults=_BERT_DEFAULTS, refused=_ABSOLUTE
        ),
        "roberta": EncoderFamily(
            names=BERT,
            prefix="roberta.",
            defaults=_ROBERTA_DEFAULTS,
            positions_follow_padding=True,
            refused=_ABSOLUTE,
        ),
        "xlm-roberta": EncoderFamily(
            names=BERT,
            prefix="roberta.",
            defaults=_ROBERTA_DEFAULTS,
            positions_follow_padding=True,
            refused=_ABSOLUTE,
        ),
        "distilbert": EncoderFamily(
            names=DISTILBERT,
            prefix="distilbert.",
            defaults={**_BERT_DEFAULTS, "type_vocab_size": 0},
            aliases={
                "dim": "hidden_size",
                "n_heads": "num_attention_heads",
                "n_layers": "num_hidden_layers",
                "hidden_dim": "intermediate_size",
                "activation": "hidden_act",
            },
            head_activation=Activation.RELU,
        ),
        "modernbert": EncoderFamily(
            names=MODERNBERT,
            prefix="model.",
            defaults={
                "hidden_act": "gelu",
                "layer_norm_eps": 1e-5,
                "max_position_embeddings": 8192,
                "type_vocab_size": 0,
                "local_attention": 128,
                "global_attn_every_n_layers": 3,
                "rope_theta": 160_000.0,
                "rope_local_base_freq": 10_000.0,
                "classifier_activation": "gelu",
                "classifier_pooling": "cls",
            },
            aliases={
                "hidden_activation": "hidden_act",
                "norm_eps": "layer_norm_eps",
                "global_rope_theta": "rope_theta",
                "local_rope_theta": "rope_local_base_freq",
            },
            ropes="per_layer_type",
            is_gated=True,
            norm_placement=NormPlacement.BEFORE,
            has_biases=False,
        ),
        "nomic_bert": EncoderFamily(
            names=NOMIC,
            prefix="nomic_bert.",
            defaults={
                **_BERT_DEFAULTS,
                "hidden_act": "silu",
                "max_position_embeddings": 2048,
                "rope_theta": 1000.0,
            },
            aliases={**GPT2_KEYS, "rotary_emb_base": "rope_theta"},
            ropes="one",
            is_gated=True,
            has_biases=False,
            refused=_NOMIC_FIXED,
        ),
    }
)


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """config.json of an encoder. `task` is the end of the architecture's name."""

    model_type: str
    architectures: tuple[str, ...]
    task: str
    family: EncoderFamily
    fields: Fields


_TASKS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "quantization_config": ({},),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, []),
    "chunk_size_feed_forward": (0,),
}


def read_encoder_config(values: Mapping[str, object], where: str) -> EncoderConfig:
    """Returns a config whose model_type is in `ENCODER_FAMILIES`."""
    plain = Fields(values, where)
    model_type = plain.text("model_type")
    family = ENCODER_FAMILIES[model_type]
    architectures = plain.texts("architectures")
    task = next((t for t in _TASKS if not architectures or architectures[0].endswith(t)), None)
    if task is None:
        raise ConfigError(
            f"{where}: {shown(architectures[0])} is not a head this runner knows; of {model_type} it "
            f"runs {', '.join(_TASKS)}"
        )
    usual = {family.aliases.get(key, key): value for key, value in values.items()}
    merged = {**family.defaults, **{k: v for k, v in usual.items() if v is not None}}
    for key, neutral in {**_NEUTRAL, **family.refused}.items():
        if merged.get(key) is not None and merged[key] not in neutral:
            raise ConfigError(
                f"{where}: {key} {shown(merged[key])} is not implemented for {model_type}"
            )
    names = architectures or (model_type,)
    return EncoderConfig(model_type, names, task, family, Fields(merged, where))


def read_encoder_spec(config: EncoderConfig) -> ModelSpec:
    """Returns the spec of the encoder that `config` describes."""
    family, fields = config.family, config.fields
    hidden = fields.integer("hidden_size", high=_MAX_WIDTH)
    heads = fields.integer("num_attention_heads", high=2**16)
    if hidden % heads or fields.integer_or("head_dim", hidden // heads) != hidden // heads:
        fields.refuse("num_attention_heads", f"a divisor of hidden_size ({hidden})")
    num_positions = 0 if family.ropes != "none" else fields.integer("max_position_embeddings")
    padding = fields.integer_or("pad_token_id", 0, low=0)
    offset = padding + 1 if family.positions_follow_padding else 0
    length = fields.integer("max_position_embeddings") - offset
    if length < 1:
        fields.refuse("max_position_embeddings", f"more than {offset}, where positions begin")
    is_modern = family.norm_placement is NormPlacement.BEFORE
    return ModelSpec(
        vocab_size=fields.integer("vocab_size", high=_MAX_WIDTH),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", high=_MAX_WIDTH),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        layers=_layers(family, fields, hidden // heads),
        max_position_embeddings=length,
        is_causal=False,
        num_positions=num_positions,
        position_offset=offset,
        num_token_types=fields.integer("type_vocab_size", low=0, high=2**16),
        norm=Norm.LAYER,
        norm_bias=fields.flag_or("norm_bias", False) if is_modern else True,
        norm_eps=fields.number("layer_norm_eps"),
        norm_placement=family.norm_placement,
        has_embed_norm=True,
        qkv_bias=family.has_biases or (is_modern and fields.flag_or("attention_bias", False)),
        o_bias=family.has_biases or (is_modern and fields.flag_or("attention_bias", False)),
        mlp_bias=family.has_biases or (is_modern and fields.flag_or("mlp_bias", False)),
        is_gated=family.is_gated,
        activation=_activation(family, fields),
        attention_scale=float((hidden // heads) ** -0.5),
        has_head=False,
    )


def read_head(config: EncoderConfig, spec: ModelSpec) -> HeadSpec | None:
    """Returns the classifier after the encoder; None if the architecture has none."""
    family, fields = config.family, config.fields
    if config.task in ("Model", "ForMaskedLM"):
        return None
    labels = read_labels(fields)
    is_of_tokens = config.task == "ForTokenClassification"
    kind = PoolingKind.EACH if is_of_tokens else PoolingKind.CLS
    scale = read_scale(fields, len(labels))
    if family.norm_placement is NormPlacement.SUM:
        return HeadSpec(
            kind=kind,
            labels=labels,
            scale=scale,
            has_dense=not is_of_tokens,
            activation=family.head_activation,
        )
    pooling = fields.text("classifier_pooling")
    if pooling not in ("cls", "mean"):
        fields.refuse("classifier_pooling", "cls or mean")
    return HeadSpec(
        kind=PoolingKind.EACH if is_of_tokens else PoolingKind(pooling),
        labels=labels,
        scale=scale,
        has_dense=True,
        dense_bias=fields.flag_or("classifier_bias", False),
        activation=read_activation(fields, "classifier_activation"),
        has_norm=True,
        norm_bias=spec.norm_bias,
        norm_eps=spec.norm_eps,
    )


def _activation(family: EncoderFamily, fields: Fields) -> Activation:
    is_whole_mlp = family.is_gated and fields.values.get("hidden_act") == "swiglu"
    return Activation.SILU if is_whole_mlp else read_activation(fields, "hidden_act")


def read_activation(fields: Fields, key: str) -> Activation:
    """Returns the activation that `key` names; raises `ConfigError` for unknown ones."""
    name = fields.text(key)
    if name not in _ACTIVATIONS:
        fields.refuse(key, "one of " + ", ".join(_ACTIVATIONS))
    return _ACTIVATIONS[name]


def _layers(family: EncoderFamily, fields: Fields, head_dim: int) -> tuple[LayerSpec, ...]:
    count = fields.integer("num_hidden_layers", high=_MAX_LAYERS)
    if family.ropes == "none":
        return (LayerSpec(),) * count
    rules = RopeRules(per_layer_type=family.ropes == "per_layer_type")
    if family.ropes == "one":
        return (LayerSpec(rope=read_rope(fields, rules, head_dim, "full_attention")),) * count
    kinds = _layer_types(fields, count)
    ropes = {kind: read_rope(fields, rules, head_dim, kind) for kind in sorted(set(kinds))}
    # Number of keys on either side, including the row's own.
    window = fields.integer("local_attention") // 2 + 1
    return tuple(
        LayerSpec(
            rope=ropes[kind],
            window=window if kind == "sliding_attention" else None,
            has_attention_norm=index > 0,  # the embeddings are already normalised
        )
        for index, kind in enumerate(kinds)
    )


def _layer_types(fields: Fields, count: int) -> list[str]:
    if not fields.has("layer_types"):
        every = fields.integer("global_attn_every_n_layers")
        return ["sliding_attention" if i % every else "full_attention" for i in range(count)]
    kinds = list(fields.texts("layer_types"))
    if len(kinds) != count or set(kinds) - {"full_attention", "sliding_attention"}:
        fields.refuse("layer_types", f"{count} names, each full_attention or sliding_attention")
    return kinds
