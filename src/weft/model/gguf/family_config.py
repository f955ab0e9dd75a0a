"""Config of a model's family, from the metadata of a GGUF file; refuses settings that no row reads.

An unknown setting is refused by name, because it could change the result.
"""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.families.decoder_families import FAMILIES
from weft.model.families.family import Bias, Family
from weft.model.fields import shown
from weft.model.gguf.architecture import (
    SOFTMAX,
    SOFTMAX_OF_CHOSEN,
    Architecture,
    Metadata,
    need,
    read_windows,
)
from weft.model.gguf.names import EMBED, HEAD, JOINED_HEADS
from weft.model.gguf.own_layers import rope_of_layers
from weft.model.switches import Norm

# Tensors that divide the rotary frequencies: those of all lengths, of short and of long contexts.
ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"

_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
_EPSILONS = {
    Norm.RMS: ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    Norm.LAYER: ("attention.layer_norm_epsilon", "layer_norm_eps"),
}
# Tensors of a layer whose biases say whether the key of the config is true.
_BIASES: Mapping[Bias, tuple[str, ...]] = {
    "attention_bias": ("attn_q", JOINED_HEADS),
    "attention_out_bias": ("attn_output",),
    "mlp_bias": ("ffn_up",),
    "qkv_bias": ("attn_q", JOINED_HEADS),
    "use_bias": ("ffn_up",),
    "use_qkv_bias": ("attn_q", JOINED_HEADS),
}
_TURNED = "rope.dimension_count"
_EXPERT_KEYS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_MLP_SIZE = "feed_forward_length"
_NEEDED = (
    *("context_length", "embedding_length", "block_count", _MLP_SIZE),
    "attention.head_count",
)
# Settings that follow from the tensors, or that describe how the file was made.
_UNUSED = frozenset(("vocab_size", "tensor_data_layout", "rope.scaling.finetuned"))
# Values with which an unread setting has no effect. Unlisted settings have no effect if they are 0, like a number of
# experts.
_NOTHING = (0, False)
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "rope.scaling.attn_factor": (1.0,),
    **dict.fromkeys(
        ("rope.scaling.factor", "embedding_scale", "residual_scale", "logit_scale"),
        (*_NOTHING, 1.0),
    ),
}
_ROPE_SCALING = {
    "factor": "factor",
    "attn_factor": "attn_factor",
    "yarn_attn_factor": "attention_factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


def make_config(
    name: str,
    architecture: Architecture,
    metadata: Mapping[str, object],
    where: str,
    *,
    tensors: Mapping[str, tuple[int, ...]],
    rope_factors: Mapping[str, NDArray[np.float32]],
) -> dict[str, object]:
    """Returns the config of the model's family. `tensors` are shapes by name.

    `rope_factors` are the tensors of the file that divide the rotary frequencies.
    """
    prefix = f"{name}."
    said = {
        key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)
    }
    where = f"{where}: {prefix}"
    family = FAMILIES[architecture.model_type]
    config = _named_settings(architecture, family, said, where)
    config["vocab_size"] = tensors.get(f"{EMBED}.weight", (0,))[0]
    config["tie_word_embeddings"] = f"{HEAD}.weight" not in tensors
    by_heads = _quotient(config["hidden_size"], config["num_attention_heads"])
    width = config.setdefault("head_dim", by_heads)
    if family.windows == "layer_types" and not architecture.has_own_layers:
        read_windows(config, said)
    if architecture.has_optional_windows and not config.get("sliding_window"):
        config["sliding_window"] = None
    rope: dict[str, object] = {}
    file = Metadata(config, said, rope, tensors, where)
    if architecture.read_own is not None:
        architecture.read_own(file)
    family = FAMILIES[str(config["model_type"])]
    for key, is_biased in _biases(family, tensors).items():
        config.setdefault(key, is_biased)
    if family.rope.partial and not family.rope.per_layer_type:
        config["partial_rotary_factor"] = _turned_part(said, width)
    for key in ("attention.value_length", _TURNED):
        need(said, key, width, where)
    if architecture.layers_of_largest is not None:
        is_largest = config["num_hidden_layers"] == architecture.layers_of_largest
        config["query_pre_attn_scalar"] = by_heads if is_largest else width
    config |= _rope(architecture, file, rope_factors)
    _refuse_others(name, said, where)
    return config


def _named_settings(
    architecture: Architecture, family: Family, said: dict[str, object], where: str
) -> dict[str, object]:
    """Returns the part of the config that the file has under other names, removed from `said`."""
    epsilon, their_epsilon = _EPSILONS[family.norm]
    for key in (*_NEEDED, epsilon):
        if key not in said and (architecture.has_mlp or key != _MLP_SIZE):
            raise ConfigError(f"{where}{key} is missing")
    config: dict[str, object] = {"model_type": architecture.model_type}
    for key, theirs in {**_KEYS, epsilon: their_epsilon, **architecture.keys}.items():
        if key in said:
            config[theirs] = said.pop(key)
    for other, _ in _EPSILONS.values():  # some files have both
        said.pop(other, None)
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    return config | _experts(architecture, said, where)


def _biases(family: Family, tensors: Collection[str]) -> dict[str, object]:
    """Returns the keys of the family that say which linear layers have biases."""
    biased = {name.rpartition(".")[0].split(".")[-1] for name in tensors if name.endswith(".bias")}
    keys = {family.qkv_bias, family.o_bias, family.mlp_bias} & _BIASES.keys()
    return {key: not biased.isdisjoint(_BIASES[key]) for key in keys}


def _turned_part(said: dict[str, object], width: object) -> float:
    """Returns the rotated part of a head; all of it if the file does not say how many elements are rotated."""
    turned = said.pop(_TURNED, None) or width
    if not isinstance(turned, int) or not isinstance(width, int) or not width or turned == width:
        return 1.0
    return float(np.nextafter(turned / width, np.inf))  # times the width, never below `turned`


def _refuse_others(name: str, said: Mapping[str, object], where: str) -> None:
    """Raises `ConfigError` for settings that no reader has used, unless they have no effect."""
    for key, value in said.items():
        if key not in _UNUSED and value not in _NEUTRAL.get(key, _NOTHING):
            escaped = shown(key)[1:-1]  # the key may contain any character
            raise ConfigError(
                f"{where}{escaped} is {shown(value)}, which is not implemented for {name}"
            )


def _experts(architecture: Architecture, said: dict[str, object], where: str) -> dict[str, object]:
    """Returns the experts' part of the config; files leave out llama.cpp's defaults."""
    if architecture.model_type_with_experts is None or not said.get("expert_count"):
        return {}
    if said.get("expert_gating_func") == SOFTMAX_OF_CHOSEN and architecture.adds_up:
        del said["expert_gating_func"]
    need(said, "expert_gating_func", SOFTMAX, where)
    need(said, "expert_weights_norm", architecture.adds_up, where)
    need(said, "expert_weights_scale", 1.0, where)
    found = {theirs: said.pop(key) for key, theirs in _EXPERT_KEYS.items() if key in said}
    return {
        "model_type": architecture.model_type_with_experts,
        "norm_topk_prob": architecture.adds_up,
        **found,
    }


def _quotient(size: object, count: object) -> object:
    """Returns `size count`; None for values for which the config will be refused later."""
    return size // count if isinstance(size, int) and isinstance(count, int) and count else None


def _rope(
    architecture: Architecture, file: Metadata, factors: Mapping[str, NDArray[np.float32]]
) -> dict[str, object]:
    """Returns the rotary settings of all layers, or of each kind of layers, under the key of a config."""
    if architecture.has_own_layers:
        own = rope_of_layers(file.config, file.said, factors.get(ROPE_FACTORS), file.where)
        return {"rope_parameters": own}
    return {"rope_scaling": file.rope | _rope_scaling(architecture, file, factors)}


def _rope_scaling(
    architecture: Architecture, file: Metadata, factors: Mapping[str, NDArray[np.float32]]
) -> dict[str, object]:
    """Returns the scaling of rotary frequencies in the form of a config."""
    said, where = file.said, file.where
    kind = said.pop("rope.scaling.type", "none")
    if factors:
        return _listed_scaling(file, kind, factors)
    if kind == "none":
        said.pop("rope.scaling.original_context_length", None)
        return {"rope_type": "default"}  # overrides the family's default
    if kind not in ("linear", "yarn"):
        raise ConfigError(
            f"{where}rope.scaling.type is {shown(kind)}; none, linear and yarn are implemented"
        )
    allowed = ("factor",) if kind == "linear" else tuple(_ROPE_SCALING)
    found = {
        _ROPE_SCALING[key]: said.pop(f"rope.scaling.{key}")
        for key in allowed
        if f"rope.scaling.{key}" in said
    }
    if kind == "linear":
        said.pop("rope.scaling.original_context_length", None)
    elif not architecture.truncates:
        found["truncate"] = False
    return {"rope_type": kind, **found}


def _listed_scaling(
    file: Metadata, kind: object, factors: Mapping[str, NDArray[np.float32]]
) -> dict[str, object]:
    """Returns the scaling by listed factors: one list for all lengths, or one for short and one for long contexts."""
    if ROPE_FACTORS in factors:
        kinds, short, long = ("none", "llama3"), ROPE_FACTORS, ROPE_FACTORS
    else:
        kinds, short, long = ("none", "longrope"), SHORT_FACTORS, LONG_FACTORS
    if kind not in kinds or {short, long} != factors.keys():
        names = " and ".join(factors)
        raise ConfigError(f"{file.where}rope.scaling.type is {shown(kind)} beside {names}")
    found: dict[str, object] = {
        "rope_type": "longrope",
        "short_factor": factors[short].tolist(),
        "long_factor": factors[long].tolist(),
        "attention_factor": 1.0,
    }
    if short != long:
        found["attention_factor"] = file.said.pop("rope.scaling.attn_factor", 1.0)
        original = file.said.pop("rope.scaling.original_context_length", None)
        file.config["original_max_position_embeddings"] = original
    return found
