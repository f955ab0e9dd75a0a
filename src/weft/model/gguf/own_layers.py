"""Settings of single layers in Gemma 4's metadata: heads, windows, MLPs, and keys that are shared."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.families.layers import FULL, SLIDING
from weft.model.fields import shown

_PATTERN = "attention.sliding_window_pattern"
_STILL = 1e20  # pairs do not turn if their frequency is divided by this or more


def read_own_layers(
    config: dict[str, object],
    said: dict[str, object],
    tensors: Mapping[str, tuple[int, ...]],
    where: str,
) -> None:
    """Adds the settings to `config`, and removes them from `said`; `where` begins error messages about a key."""
    kinds = _kinds(config["num_hidden_layers"], said, where)
    config["layer_types"] = kinds
    full = [index for index, kind in enumerate(kinds) if kind == FULL]
    heads = _by_layer(config["num_key_value_heads"], kinds, f"{where}attention.head_count_kv")
    dim = config["head_dim"]
    config["per_layer_config"] = {
        str(index): {"head_dim": dim, "num_key_value_heads": heads[index]} for index in full
    }
    narrow = [count for count, kind in zip(heads, kinds, strict=True) if kind == SLIDING]
    if narrow:
        config["num_key_value_heads"] = narrow[0]
        config["head_dim"] = said.pop("attention.key_length_swa", dim)
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        value = said.pop(key, config["head_dim"])
        if value != config["head_dim"]:
            raise ConfigError(
                f"{where}{key} is {shown(value)}; {config['head_dim']} is implemented"
            )
    config["attention_k_eq_v"] = bool(full) and f"blk.{full[0]}.attn_v.weight" not in tensors
    config["hidden_size_per_layer_input"] = said.pop("embedding_length_per_layer_input", 0)
    config["enable_moe_block"] = bool(config.get("num_experts"))
    _read_shared(config, said, kinds, where)


def _kinds(num_layers: object, said: dict[str, object], where: str) -> list[str]:
    slides = said.pop(_PATTERN, None)
    if not isinstance(slides, list) or len(slides) != num_layers or not set(slides) <= {0, 1}:
        raise ConfigError(
            f"{where}{_PATTERN} is {shown(slides)}; it must be a list of {shown(num_layers)} booleans"
        )
    return [SLIDING if one else FULL for one in slides]


def _by_layer(value: object, kinds: list[str], where: str) -> list[object]:
    """Returns a number of each layer; raises `ConfigError` unless layers of one kind have the same."""
    numbers = value if isinstance(value, list) else [value] * len(kinds)
    if len(numbers) != len(kinds) or len(set(zip(kinds, numbers, strict=True))) > len(set(kinds)):
        raise ConfigError(f"{where} is {shown(value)}; it must be the same for layers of one kind")
    return numbers


def _read_shared(
    config: dict[str, object], said: dict[str, object], kinds: list[str], where: str
) -> None:
    """Reads how many layers share keys and values, and whether their MLPs are twice as wide."""
    shared = said.pop("attention.shared_kv_layers", 0)
    config["num_kv_shared_layers"] = shared
    sizes = config["intermediate_size"]
    if not isinstance(sizes, list):
        return
    first = sizes[0] if sizes else 0
    own = len(kinds) - shared if isinstance(shared, int) else 0
    wide = [first] * own + [2 * first] * (len(kinds) - own)
    if sizes not in (wide, [first] * len(kinds)):
        raise ConfigError(
            f"{where}feed_forward_length is {shown(sizes)}; one size is implemented, or twice that size in layers "
            "that share keys"
        )
    config["intermediate_size"] = first
    config["use_double_wide_mlp"] = sizes == wide and own < len(kinds)


def rope_of_layers(
    config: Mapping[str, object],
    said: dict[str, object],
    factors: NDArray[np.float32] | None,
    where: str,
) -> dict[str, object]:
    """Returns the rotary settings of both kinds of layers; `factors` say which pairs of a head turn."""
    kind = said.pop("rope.scaling.type", "none")
    factors = np.ones(1, np.float32) if factors is None else factors
    num_turned = int((factors == 1).sum())
    is_head = bool((factors[:num_turned] == 1).all() and (factors[num_turned:] >= _STILL).all())
    if kind != "none" or not is_head:
        raise ConfigError(
            f"{where}rope.scaling.type is {shown(kind)}; none is implemented, with factors of 1 and then of {_STILL:g} "
            "or more"
        )
    base = config.get("rope_theta", 10000.0)
    return {
        FULL: {
            "rope_type": "proportional",
            "rope_theta": base,
            "partial_rotary_factor": num_turned / len(factors),
        },
        SLIDING: {"rope_type": "default", "rope_theta": said.pop("rope.freq_base_swa", base)},
    }
