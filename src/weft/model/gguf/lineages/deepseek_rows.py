"""Rows of GGUF architectures with DeepSeek's experts: DeepSeek, GLM-4-MoE and dots.llm1."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.core.errors import ConfigError
from weft.model.fields import is_finite_number, shown
from weft.model.gguf.architecture import (
    GROUPED_EXPERTS,
    SIGMOID,
    SOFTMAX,
    Architecture,
    Metadata,
    need,
    pass_over_mtp,
)
from weft.model.gguf.names import DEEPSEEK, GLM, SIGMOID_EXPERTS

_DEEPSEEK_DEFAULTS = {
    "num_experts_per_tok": None,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
}


def _read_glm(file: Metadata) -> None:
    """Reads GLM's settings: the rotated part of a head, norms of heads, and layers for multi-token prediction."""
    config, said = file.config, file.said
    need(said, "expert_gating_func", SIGMOID, file.where)
    config.setdefault("norm_topk_prob", False)  # llama.cpp's default
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file.tensors
    pass_over_mtp(config)


def _read_dots(file: Metadata) -> None:
    """Reads the settings of dots.llm1, of which files leave out llama.cpp's defaults."""
    need(file.said, "expert_gating_func", SIGMOID, file.where)
    file.config.setdefault("first_k_dense_replace", 0)
    pass_over_mtp(file.config)


def _read_deepseek(file: Metadata) -> None:
    """Reads DeepSeek's settings: sigmoid gating means V3, softmax gating V2, and no experts Youtu.

    Defaults are llama.cpp's, not the family's.
    """
    config, said = file.config, file.said
    gating = said.pop("expert_gating_func", SOFTMAX)
    if gating not in (SOFTMAX, SIGMOID):
        raise ConfigError(
            f"{file.where}expert_gating_func is {shown(gating)}; {SOFTMAX} (softmax) and {SIGMOID} (sigmoid) "
            "are implemented"
        )
    for key, value in _DEEPSEEK_DEFAULTS.items():
        config.setdefault(key, value)
    if not config.get("n_routed_experts"):
        config["model_type"] = "youtu"
        for key in _DEEPSEEK_DEFAULTS:  # of experts that it does not have
            config.pop(key, None)
    elif gating == SIGMOID:
        config["model_type"] = "deepseek_v3"
    elif config["n_group"] != 1:
        config["topk_method"] = "group_limited_greedy"
    config["attention_bias"] = "blk.0.attn_kv_a_mqa.bias" in file.tensors
    _read_latent_sizes(file)
    pass_over_mtp(config)
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
        need(said, "attention.value_length", rank, file.where)
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


DEEPSEEK_ROWS: Mapping[str, Architecture] = MappingProxyType(
    {
        "glm4moe": Architecture(
            model_type="glm4_moe", keys=GROUPED_EXPERTS, names=GLM, read_own=_read_glm
        ),
        "dots1": Architecture(
            model_type="dots1", keys=GROUPED_EXPERTS, names=SIGMOID_EXPERTS, read_own=_read_dots
        ),
        "deepseek2": Architecture(
            model_type="deepseek_v2", keys=GROUPED_EXPERTS, names=DEEPSEEK, read_own=_read_deepseek
        ),
    }
)
