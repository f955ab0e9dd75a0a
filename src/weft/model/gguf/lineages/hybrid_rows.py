"""Rows of GGUF architectures with Mamba layers: both Mambas alone, Granite's hybrids, Bamba and Falcon-H1."""

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
from weft.model.gguf.names import FIRST_MAMBA, MAMBA

_HAS_ROPE = "rope.scaling.finetuned"  # the converter's name for it
_SHARED = "shared_intermediate_size"
_SIZES = {"ssm.conv_kernel": "mamba_d_conv", "ssm.state_size": "mamba_d_state"}
_MAMBA2 = {
    **_SIZES,
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
_KEYS = {**GRANITE, "expert_shared_feed_forward_length": _SHARED, **_MAMBA2}


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
    _read_width(file)
    _read_biases(file)
    read_layers_without_keys(file, "mamba")


def _read_width(file: Metadata) -> None:
    inner, hidden = file.said.pop("ssm.inner_size", None), file.config["hidden_size"]
    if type(inner) is not int or type(hidden) is not int or not hidden or inner % hidden:
        raise ConfigError(
            f"{file.where}ssm.inner_size is {shown(inner)}; a multiple of embedding_length is implemented"
        )
    file.config["mamba_expand"] = inner // hidden


def _read_biases(file: Metadata) -> None:
    """Reads from the tensors which parts of Mamba have biases."""
    names = file.tensors
    file.config["mamba_proj_bias"] = any(name.endswith(".ssm_in.bias") for name in names)
    file.config["mamba_conv_bias"] = any(name.endswith(".ssm_conv1d.bias") for name in names)


def _without_heads(file: Metadata) -> None:
    """Removes sizes of attention and MLPs, which these files have as zeros."""
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        file.config.pop(key, None)


def _read_mamba(file: Metadata) -> None:
    """Reads the first Mamba; a setting says whether it is Falcon's. Files do not have the epsilon of its own norms."""
    if file.said.pop("ssm.dt_b_c_rms", False):
        file.config["model_type"] = "falcon_mamba"
    _without_heads(file)
    _read_biases(file)


def _read_mamba2(file: Metadata) -> None:
    _without_heads(file)
    file.config.pop("intermediate_size", None)
    file.config["mamba_d_head"] = "auto"
    _read_width(file)
    _read_biases(file)


def _read_falcon(file: Metadata) -> None:
    """Reads Falcon-H1; the factors of its config are in the file's weights, and outputs are gated before a norm."""
    config = file.config
    _read_biases(file)
    config["projectors_bias"] = config["mamba_proj_bias"]
    config["mamba_d_head"] = "auto"
    config["mamba_rms_norm"] = "blk.0.ssm_norm.weight" in file.tensors
    config["mamba_norm_before_gate"] = False


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
        "mamba": Architecture(
            model_type="mamba",
            keys={
                **_SIZES,
                "ssm.inner_size": "intermediate_size",
                "ssm.time_step_rank": "time_step_rank",
            },
            names=FIRST_MAMBA,
            read_own=_read_mamba,
        ),
        "mamba2": Architecture(
            model_type="mamba2", keys=_MAMBA2, names=MAMBA, read_own=_read_mamba2
        ),
        "falcon-h1": Architecture(
            model_type="falcon_h1",
            keys={**_MAMBA2, "ssm.inner_size": "mamba_d_ssm"},
            names=MAMBA,
            read_own=_read_falcon,
        ),
    }
)
