"""Rows of GGUF architectures with Mamba-2 layers: Granite's hybrids and Bamba."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.core.errors import ConfigError
from weft.model.fields import shown
from weft.model.gguf.architecture import (
    GRANITE,
    Architecture,
    Metadata,
    need,
    read_layers_without_keys,
)
from weft.model.gguf.names import MAMBA

_HAS_ROPE = "rope.scaling.finetuned"  # the converter's name for it
_SHARED = "shared_intermediate_size"
_KEYS = {
    **GRANITE,
    "expert_shared_feed_forward_length": _SHARED,
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}


def _read_hybrid(file: Metadata) -> None:
    """Reads the layers and the sizes of Mamba-2; a file without a shared expert is of Bamba."""
    config, said = file.config, file.said
    has_rope = said.pop(_HAS_ROPE, True)
    if _SHARED in config:
        config["position_embedding_type"] = "rope" if has_rope else "nope"
        if not config.get("num_experts"):
            config["num_local_experts"] = 0
            said.pop("expert_used_count", None)
    else:
        config["model_type"] = "bamba"
        need({_HAS_ROPE: has_rope}, _HAS_ROPE, True, file.where)
    inner, hidden = said.pop("ssm.inner_size", None), config["hidden_size"]
    if type(inner) is not int or type(hidden) is not int or not hidden or inner % hidden:
        raise ConfigError(
            f"{file.where}ssm.inner_size is {shown(inner)}; a multiple of embedding_length is implemented"
        )
    config["mamba_expand"] = inner // hidden
    config["mamba_proj_bias"] = any(name.endswith(".ssm_in.bias") for name in file.tensors)
    config["mamba_conv_bias"] = any(name.endswith(".ssm_conv1d.bias") for name in file.tensors)
    read_layers_without_keys(file, "mamba")


HYBRID_ROWS: Mapping[str, Architecture] = MappingProxyType(
    {
        "granitehybrid": Architecture(
            model_type="granitemoehybrid",
            keys=_KEYS,
            names=MAMBA,
            is_interleaved=True,
            model_type_with_experts="granitemoehybrid",
            read_own=_read_hybrid,
        ),
    }
)
