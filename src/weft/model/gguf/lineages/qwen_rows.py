"""Rows of GGUF architectures of Qwen."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.core.errors import ConfigError
from weft.model.fields import shown
from weft.model.gguf.architecture import (
    NUM_GUESSING_LAYERS,
    Architecture,
    Metadata,
    pass_over_mtp,
)
from weft.model.gguf.names import DELTA, DELTA_BY_KEY_HEAD

_SECTIONS = "rope.dimension_sections"
_DELTA = {
    "full_attention_interval": "full_attention_interval",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "nextn_predict_layers": NUM_GUESSING_LAYERS,
}


def _read_delta(file: Metadata) -> None:
    """Reads the size of the values of a delta net's head; all positions of a text token are the same."""
    config, said = file.config, file.said
    inner, heads = said.pop("ssm.inner_size", None), config.get("linear_num_value_heads")
    if type(inner) is not int or type(heads) is not int or not heads or inner % heads:
        raise ConfigError(
            f"{file.where}ssm.inner_size is {shown(inner)}; a multiple of ssm.time_step_rank is implemented"
        )
    config["linear_value_head_dim"] = inner // heads
    said.pop(_SECTIONS, None)
    pass_over_mtp(config)


def _read_sections(file: Metadata) -> None:
    """Reads how many rotary pairs belong to frames, rows and columns; files have a fourth number, which is 0."""
    listed = file.said.pop(_SECTIONS, None)
    if not isinstance(listed, list) or len(listed) != 4 or listed[3] != 0:
        raise ConfigError(
            f"{file.where}{_SECTIONS} is {shown(listed)}; it must be a list of four numbers, the last of which is 0"
        )
    file.rope["mrope_section"] = listed[:3]
    file.said.pop("n_deepstack_layers", None)  # the projector file says it


QWEN_ROWS: Mapping[str, Architecture] = MappingProxyType(
    {
        "qwen2": Architecture(model_type="qwen2"),
        "qwen3": Architecture(model_type="qwen3"),
        "qwen2vl": Architecture(model_type="qwen2_5_vl", read_own=_read_sections),
        "qwen3vl": Architecture(model_type="qwen3_vl", read_own=_read_sections),
        "qwen2moe": Architecture(
            model_type="qwen2_moe", model_type_with_experts="qwen2_moe", adds_up=False
        ),
        "qwen3moe": Architecture(model_type="qwen3_moe", model_type_with_experts="qwen3_moe"),
        "qwen3next": Architecture(
            model_type="qwen3_next",
            keys=_DELTA,
            names=DELTA_BY_KEY_HEAD,
            adds_norm_offset=True,
            has_mlp=False,
            model_type_with_experts="qwen3_next",
            read_own=_read_delta,
        ),
        "qwen35": Architecture(
            model_type="qwen3_5_text",
            keys=_DELTA,
            names=DELTA,
            adds_norm_offset=True,
            has_tiled_heads=True,
            read_own=_read_delta,
        ),
        "qwen35moe": Architecture(
            model_type="qwen3_5_moe_text",
            keys=_DELTA,
            names=DELTA,
            adds_norm_offset=True,
            has_tiled_heads=True,
            has_mlp=False,
            model_type_with_experts="qwen3_5_moe_text",
            read_own=_read_delta,
        ),
    }
)
