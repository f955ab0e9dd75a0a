"""Rows of GGUF architectures with short convolutions: LFM2."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.gguf.architecture import (
    SIGMOID,
    Architecture,
    Metadata,
    need,
    read_layers_without_keys,
)
from weft.model.gguf.names import LFM2

_CONVOLUTION = {"shortconv.l_cache": "conv_L_cache"}
_LFM2_EXPERTS = {
    **_CONVOLUTION,
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "leading_dense_block_count": "num_dense_layers",
}


def _read_lfm2(file: Metadata) -> None:
    """Reads LFM2's settings: a layer without KV heads is a convolution, and the MLP's width needs no adjustment."""
    config = file.config
    if config["model_type"] == "lfm2":
        config["block_auto_adjust_ff_dim"] = False
    else:  # llama.cpp always computes it this way
        need(file.said, "expert_gating_func", SIGMOID, file.where)
        need(file.said, "expert_weights_norm", True, file.where)
        need(file.said, "expert_weights_scale", 1.0, file.where)
    read_layers_without_keys(file, "conv")


LFM_ROWS: Mapping[str, Architecture] = MappingProxyType(
    {
        "lfm2": Architecture(model_type="lfm2", keys=_CONVOLUTION, names=LFM2, read_own=_read_lfm2),
        "lfm2moe": Architecture(
            model_type="lfm2_moe", keys=_LFM2_EXPERTS, names=LFM2, read_own=_read_lfm2
        ),
    }
)
