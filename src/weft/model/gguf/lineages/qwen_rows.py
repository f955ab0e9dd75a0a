"""Rows of GGUF architectures of Qwen."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.gguf.architecture import Architecture

QWEN_ROWS: Mapping[str, Architecture] = MappingProxyType(
    {
        "qwen2": Architecture(model_type="qwen2"),
        "qwen3": Architecture(model_type="qwen3"),
        "qwen2moe": Architecture(
            model_type="qwen2_moe", model_type_with_experts="qwen2_moe", adds_up=False
        ),
        "qwen3moe": Architecture(model_type="qwen3_moe", model_type_with_experts="qwen3_moe"),
    }
)
