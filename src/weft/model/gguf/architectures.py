"""Names of model settings in GGUF metadata, by architecture, and differences of GGUF tensors from the family's tensors.

The settings become the config that the model's family reads (`weft.model.families.decoders`). An unknown setting is
refused by name, because it could change the result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.families.names import DecoderNames
from weft.model.fields import is_finite_number, shown
from weft.model.gguf.names import DEEPSEEK, EMBED, GEMMA4, GLM, GPT_OSS, HEAD, LFM2, TENSORS
from weft.model.gguf.own_layers import read_own_layers, rope_of_layers

ROPE_FACTORS = "rope_freqs.weight"
NUM_GUESSING_LAYERS = "num_nextn_predict_layers"

_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_EXPERT_KEYS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_SOFTMAX, _SIGMOID, _SOFTMAX_OF_CHOSEN = (
    1,
    2,
    3,
)  # values of `expert_gating_func`; the first and third are equal if weights sum to 1
_WINDOW = {"attention.sliding_window": "sliding_window"}
_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
}
_GLM_KEYS = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": NUM_GUESSING_LAYERS,
}
_DEEPSEEK_DEFAULTS = {
    "num_experts_per_tok": None,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
}
_CONVOLUTION = {"shortconv.l_cache": "conv_L_cache"}
_LFM2_EXPERTS = {
    **_CONVOLUTION,
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "leading_dense_block_count": "num_dense_layers",
}
_LOGIT_CAP = {"final_logit_softcapping": "final_logit_softcapping"}
_NEEDED = (
    *("context_length", "embedding_length", "block_count", "feed_forward_length"),
    *("attention.head_count", "attention.layer_norm_rms_epsilon"),
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
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture of GGUF files. `keys` maps the architecture's own settings to keys of the family's config.

    `is_interleaved`: elements that are rotated together are adjacent rows of queries and keys. `adds_norm_offset`: norm
    weights in the file include the family's offset. `has_optional_windows`: without a window width no layer has a
    window, although the family has a default. `layers_of_largest`: number of layers of the model whose queries are
    scaled by hidden_size / num_attention_heads; other models scale by the head width, and the files do not say which.
    `model_type_with_experts`: model type for files with experts. `adds_up`: the weights of a token's experts sum to 1.
    `read_own` converts settings and tensors that the config has in another form. `truncates`: the frequencies at which
    yarn begins and ends are rounded to whole numbers.
    """

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)
    names: DecoderNames = TENSORS
    is_interleaved: bool = False
    adds_norm_offset: bool = False
    has_optional_windows: bool = False
    layers_of_largest: int | None = None
    model_type_with_experts: str | None = None
    adds_up: bool = True
    truncates: bool = True
    has_own_layers: bool = False  # sizes of single layers, as Gemma 4 has them
    read_own: Callable[["Metadata"], None] | None = None


@dataclass(frozen=True, slots=True)
class Metadata:
    """Data for the reader of one architecture: the unfinished `config`, and the unread settings `said`.

    A reader removes the settings that it reads from `said`. `rope` has the reader's additions to the config of scaled
    frequencies. `tensors` are shapes by name; `where` begins error messages about a key.
    """

    config: dict[str, object]
    said: dict[str, object]
    rope: dict[str, object]
    tensors: Mapping[str, tuple[int, ...]]
    where: str


def _need(said: dict[str, object], key: str, expected: object, where: str) -> None:
    value = said.pop(key, expected)
    if value != expected:
        raise ConfigError(f"{where}{key} is {shown(value)}; {expected} is implemented")


def _read_glm(file: Metadata) -> None:
    """Reads GLM's settings: the rotated part of a head, norms of heads, and layers for multi-token prediction."""
    config, said = file.config, file.said
    _need(said, "expert_gating_func", _SIGMOID, file.where)
    config.setdefault("norm_topk_prob", False)  # llama.cpp's default
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file.tensors
    turned, width = said.pop("rope.dimension_count", None), config["head_dim"]
    if isinstance(turned, int) and isinstance(width, int) and width:
        config["partial_rotary_factor"] = turned / width
    _pass_over_mtp(config)


def _pass_over_mtp(config: dict[str, object]) -> None:
    """Subtracts the layers for multi-token prediction, which the metadata counts as ordinary layers."""
    layers, guessing = config["num_hidden_layers"], config.setdefault(NUM_GUESSING_LAYERS, 0)
    if isinstance(layers, int) and isinstance(guessing, int) and 0 <= guessing < layers:
        config["num_hidden_layers"] = layers - guessing


def _read_deepseek(file: Metadata) -> None:
    """Reads DeepSeek's settings: sigmoid gating means V3, softmax gating V2.

    Defaults are llama.cpp's, not the family's.
    """
    config, said = file.config, file.said
    gating = said.pop("expert_gating_func", _SOFTMAX)
    if gating not in (_SOFTMAX, _SIGMOID):
        raise ConfigError(
            f"{file.where}expert_gating_func is {shown(gating)}; {_SOFTMAX} (softmax) and {_SIGMOID} (sigmoid) "
            "are implemented"
        )
    for key, value in _DEEPSEEK_DEFAULTS.items():
        config.setdefault(key, value)
    if gating == _SIGMOID:
        config["model_type"] = "deepseek_v3"
    elif config["n_group"] != 1:
        config["topk_method"] = "group_limited_greedy"
    config["attention_bias"] = "blk.0.attn_kv_a_mqa.bias" in file.tensors
    _read_latent_sizes(file)
    _pass_over_mtp(config)
    stretch = said.pop("rope.scaling.yarn_log_multiplier", 0.0)  # the file has a tenth of mscale
    if not is_finite_number(stretch):
        raise ConfigError(
            f"{file.where}rope.scaling.yarn_log_multiplier is {shown(stretch)}; it must be a number"
        )
    if stretch and said.get("rope.scaling.type") == "yarn":
        file.rope["mscale"] = file.rope["mscale_all_dim"] = round(10 * stretch, 7)


def _read_latent_sizes(file: Metadata) -> None:
    """Reads the sizes of latent attention.

    Newer files describe the cached vector as one KV head, and the heads by settings that end in `_mla`.
    """
    config, said = file.config, file.said
    rank, turned = (_size(file, key) for key in ("attention.kv_lora_rank", "rope.dimension_count"))
    if "attention.key_length_mla" in said:
        key, value = (_size(file, f"attention.{part}_length_mla") for part in ("key", "value"))
        found = (config["num_key_value_heads"], config["head_dim"])
        if found != (1, rank + turned):
            raise ConfigError(
                f"{file.where}attention.head_count_kv is {shown(found[0])} and attention.key_length "
                f"{shown(found[1])}; 1 and {rank + turned} are implemented beside attention.key_length_mla"
            )
        _need(said, "attention.value_length", rank, file.where)
        config["num_key_value_heads"] = config["num_attention_heads"]
    else:
        said["attention.key_length"] = config["head_dim"]
        key, value = (_size(file, f"attention.{part}_length") for part in ("key", "value"))
    config |= {
        "kv_lora_rank": rank,
        "q_lora_rank": said.pop("attention.q_lora_rank", None) or None,
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": key - turned,
        "v_head_dim": value,
    }


def _size(file: Metadata, key: str) -> int:
    value = file.said.pop(key, None)
    if type(value) is not int:
        found = "missing" if value is None else shown(value)
        raise ConfigError(f"{file.where}{key} is {found}; it must be a whole number")
    return value


def _read_gemma4(file: Metadata) -> None:
    """Reads Gemma 4's settings of single layers."""
    read_own_layers(file.config, file.said, file.tensors, file.where)


def _read_lfm2(file: Metadata) -> None:
    """Reads LFM2's settings: a layer without KV heads is a convolution, and the MLP's width needs no adjustment."""
    config, key = file.config, "num_key_value_heads"
    if config["model_type"] == "lfm2":
        config["block_auto_adjust_ff_dim"] = False
    else:  # llama.cpp always computes it this way
        _need(file.said, "expert_gating_func", _SIGMOID, file.where)
        _need(file.said, "expert_weights_norm", True, file.where)
        _need(file.said, "expert_weights_scale", 1.0, file.where)
    heads = config[key]
    if not isinstance(heads, list):
        return
    counts = [count for count in heads if count != 0]
    if not counts or type(counts[0]) is not int or counts != counts[:1] * len(counts):
        raise ConfigError(
            f"{file.where}attention.head_count_kv is {shown(heads)}; one number for all layers of attention "
            "is implemented, and 0 for convolutions"
        )
    config[key] = counts[0]
    config["layer_types"] = ["conv" if count == 0 else "full_attention" for count in heads]


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture(
            model_type="llama", is_interleaved=True, model_type_with_experts="mixtral"
        ),
        "qwen2": Architecture(model_type="qwen2"),
        "qwen3": Architecture(model_type="qwen3"),
        "gemma": Architecture(model_type="gemma", adds_norm_offset=True),
        "gemma2": Architecture(
            model_type="gemma2",
            keys=_WINDOW | _LOGIT_CAP | {"attn_logit_softcapping": "attn_logit_softcapping"},
            adds_norm_offset=True,
            layers_of_largest=46,
        ),
        "gemma3": Architecture(
            model_type="gemma3_text",
            keys=_WINDOW | _LOGIT_CAP | {"rope.freq_base_swa": "rope_local_base_freq"},
            adds_norm_offset=True,
            has_optional_windows=True,
            layers_of_largest=62,
        ),
        "gemma4": Architecture(
            model_type="gemma4_text",
            model_type_with_experts="gemma4_text",
            keys=_WINDOW | _LOGIT_CAP,
            names=GEMMA4,
            has_own_layers=True,
            read_own=_read_gemma4,
        ),
        "olmo2": Architecture(model_type="olmo2"),
        "granite": Architecture(
            model_type="granite",
            keys=_GRANITE,
            is_interleaved=True,
        ),
        "smollm3": Architecture(model_type="smollm3", is_interleaved=True),
        "qwen2moe": Architecture(
            model_type="qwen2_moe", model_type_with_experts="qwen2_moe", adds_up=False
        ),
        "qwen3moe": Architecture(model_type="qwen3_moe", model_type_with_experts="qwen3_moe"),
        "olmoe": Architecture(model_type="olmoe", model_type_with_experts="olmoe", adds_up=False),
        "granitemoe": Architecture(
            model_type="granitemoe",
            keys=_GRANITE,
            is_interleaved=True,
            model_type_with_experts="granitemoe",
        ),
        "gpt-oss": Architecture(
            model_type="gpt_oss",
            keys=_WINDOW,
            names=GPT_OSS,
            model_type_with_experts="gpt_oss",
            truncates=False,
        ),
        "glm4moe": Architecture(
            model_type="glm4_moe", keys=_GLM_KEYS, names=GLM, read_own=_read_glm
        ),
        "deepseek2": Architecture(
            model_type="deepseek_v2", keys=_GLM_KEYS, names=DEEPSEEK, read_own=_read_deepseek
        ),
        "lfm2": Architecture(model_type="lfm2", keys=_CONVOLUTION, names=LFM2, read_own=_read_lfm2),
        "lfm2moe": Architecture(
            model_type="lfm2_moe", keys=_LFM2_EXPERTS, names=LFM2, read_own=_read_lfm2
        ),
    }
)


def find_architecture(metadata: Mapping[str, object], where: str) -> tuple[str, Architecture]:
    """Returns the architecture's name and row; raises a `ConfigError` that lists the known architectures for
    another.
    """
    name = metadata.get("general.architecture")
    known = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if known is None or not isinstance(name, str):
        raise ConfigError(
            f"{where}: general.architecture is {shown(name)}; of GGUF files these are read: "
            + ", ".join(ARCHITECTURES)
        )
    return name, known


def make_config(
    name: str,
    architecture: Architecture,
    metadata: Mapping[str, object],
    where: str,
    *,
    tensors: Mapping[str, tuple[int, ...]],
    rope_factors: NDArray[np.float32] | None,
) -> dict[str, object]:
    """Returns the config of the model's family. `tensors` are shapes by name.

    `rope_factors`, if the file has them, divide the rotary frequencies.
    """
    prefix = f"{name}."
    said = {
        key.removeprefix(prefix): value
        for key, value in metadata.items()
        if key.startswith(prefix) and key.removeprefix(prefix) not in _UNUSED
    }
    for key in _NEEDED:
        if key not in said:
            raise ConfigError(f"{where}: {prefix}{key} is missing")
    config: dict[str, object] = {
        "model_type": architecture.model_type,
        "vocab_size": tensors.get(f"{EMBED}.weight", (0,))[0],
        "tie_word_embeddings": f"{HEAD}.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }
    for key, theirs in {**_KEYS, **architecture.keys}.items():
        if key in said:
            config[theirs] = said.pop(key)
    config |= _experts(architecture, said, f"{where}: {prefix}")
    by_heads = _quotient(config["hidden_size"], config["num_attention_heads"])
    width = config.setdefault("head_dim", by_heads)
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    if architecture.has_optional_windows and not config.get("sliding_window"):
        config["sliding_window_pattern"] = 1
    rope: dict[str, object] = {}
    if architecture.read_own is not None:
        architecture.read_own(Metadata(config, said, rope, tensors, f"{where}: {prefix}"))
    for key in ("attention.value_length", "rope.dimension_count"):
        _need(said, key, width, f"{where}: {prefix}")
    if architecture.layers_of_largest is not None:
        is_largest = config["num_hidden_layers"] == architecture.layers_of_largest
        config["query_pre_attn_scalar"] = by_heads if is_largest else width
    file = Metadata(config, said, rope, tensors, f"{where}: {prefix}")
    config |= _rope(architecture, file, rope_factors)
    _refuse_others(name, said, f"{where}: {prefix}")
    return config


def _refuse_others(name: str, said: Mapping[str, object], where: str) -> None:
    """Raises `ConfigError` for settings that no reader has used, unless they have no effect."""
    for key, value in said.items():
        if value not in _NEUTRAL.get(key, _NOTHING):
            escaped = shown(key)[1:-1]  # the key may contain any character
            raise ConfigError(
                f"{where}{escaped} is {shown(value)}, which is not implemented for {name}"
            )


def _experts(architecture: Architecture, said: dict[str, object], where: str) -> dict[str, object]:
    """Returns the experts' part of the config; files leave out llama.cpp's defaults."""
    if architecture.model_type_with_experts is None or not said.get("expert_count"):
        return {}
    if said.get("expert_gating_func") == _SOFTMAX_OF_CHOSEN and architecture.adds_up:
        del said["expert_gating_func"]
    _need(said, "expert_gating_func", _SOFTMAX, where)
    _need(said, "expert_weights_norm", architecture.adds_up, where)
    _need(said, "expert_weights_scale", 1.0, where)
    found = {theirs: said.pop(key) for key, theirs in _EXPERT_KEYS.items() if key in said}
    return {
        "model_type": architecture.model_type_with_experts,
        "norm_topk_prob": architecture.adds_up,
        **found,
    }


def interleaved_order(num_heads: int, head_dim: int) -> NDArray[np.intp]:
    """Returns the file's index of each row of heads whose two halves of rows are interleaved in the file."""
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _quotient(size: object, count: object) -> object:
    """Returns `size count`; None for values for which the config will be refused later."""
    return size // count if isinstance(size, int) and isinstance(count, int) and count else None


def _rope(
    architecture: Architecture, file: Metadata, factors: NDArray[np.float32] | None
) -> dict[str, object]:
    """Returns the rotary settings of all layers, or of each kind of layers, under the key of a config."""
    if architecture.has_own_layers:
        own = rope_of_layers(file.config, file.said, factors, file.where)
        return {"rope_parameters": own}
    scaling = _rope_scaling(architecture, file.said, file.where, factors)
    return {"rope_scaling": file.rope | scaling}


def _rope_scaling(
    architecture: Architecture,
    said: dict[str, object],
    where: str,
    factors: NDArray[np.float32] | None,
) -> dict[str, object]:
    """Returns the scaling of rotary frequencies in the form of a config."""
    kind = said.pop("rope.scaling.type", "none")
    if factors is not None:  # one factor per frequency, like longrope's, but without a second set
        if kind not in ("none", "llama3"):
            raise ConfigError(f"{where}rope.scaling.type is {shown(kind)} beside {ROPE_FACTORS}")
        listed = factors.tolist()
        return {
            "rope_type": "longrope",
            "short_factor": listed,
            "long_factor": listed,
            "attention_factor": 1.0,
        }
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
