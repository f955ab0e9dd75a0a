"""Rows of GGUF architectures with layer norms: descendants of GPT-2, GPT-NeoX and Llama."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.gguf.architecture import WINDOW, Architecture, Metadata
from weft.model.gguf.names import NEIGHBOURS_OF_ONE_NORM, ONE_NORM, TWO_NORMS

_LOGIT_SCALE = {"logit_scale": "logit_scale"}


def _read_stablelm(file: Metadata) -> None:
    """Reads whether attention and MLP are parallel from the tensors, as llama.cpp does: some files say it wrongly."""
    file.said.pop("use_parallel_residual", None)
    file.config["use_parallel_residual"] = "blk.0.ffn_norm.weight" not in file.tensors


def _read_command_r(file: Metadata) -> None:
    """Reads from the tensors whether queries and keys have norms, as those of Command R+ have."""
    file.config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file.tensors


LAYER_NORM_ROWS: Mapping[str, Architecture] = MappingProxyType(
    {
        "gpt2": Architecture(model_type="gpt2"),
        "gptneox": Architecture(
            model_type="gpt_neox",
            keys={"use_parallel_residual": "use_parallel_residual"},
            names=TWO_NORMS,
        ),
        "phi2": Architecture(model_type="phi", names=ONE_NORM),
        "starcoder2": Architecture(
            model_type="starcoder2",
        ),
        "stablelm": Architecture(
            model_type="stablelm",
            names=ONE_NORM,
            read_own=_read_stablelm,
        ),
        "nemotron": Architecture(model_type="nemotron", adds_norm_offset=True),
        "command-r": Architecture(
            model_type="cohere",
            keys=_LOGIT_SCALE,
            names=NEIGHBOURS_OF_ONE_NORM,
            read_own=_read_command_r,
        ),
        "cohere2": Architecture(
            model_type="cohere2", keys=WINDOW | _LOGIT_SCALE, names=NEIGHBOURS_OF_ONE_NORM
        ),
    }
)
