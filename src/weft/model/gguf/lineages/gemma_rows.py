"""Rows of GGUF architectures of Gemma."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.gguf.architecture import WINDOW, Architecture, Metadata
from weft.model.gguf.names import GEMMA4
from weft.model.gguf.own_layers import read_own_layers

_LOGIT_CAP = {"final_logit_softcapping": "final_logit_softcapping"}


def _read_gemma4(file: Metadata) -> None:
    """Reads Gemma 4's settings of single layers."""
    read_own_layers(file.config, file.said, file.tensors, file.where)


GEMMA_ROWS: Mapping[str, Architecture] = MappingProxyType(
    {
        "gemma": Architecture(model_type="gemma", adds_norm_offset=True),
        "gemma2": Architecture(
            model_type="gemma2",
            keys=WINDOW | _LOGIT_CAP | {"attn_logit_softcapping": "attn_logit_softcapping"},
            adds_norm_offset=True,
            layers_of_largest=46,
        ),
        "gemma3": Architecture(
            model_type="gemma3_text",
            keys=WINDOW | _LOGIT_CAP | {"rope.freq_base_swa": "rope_local_base_freq"},
            adds_norm_offset=True,
            has_optional_windows=True,
            layers_of_largest=62,
        ),
        "gemma4": Architecture(
            model_type="gemma4_text",
            model_type_with_experts="gemma4_text",
            keys=WINDOW | _LOGIT_CAP,
            names=GEMMA4,
            has_own_layers=True,
            read_own=_read_gemma4,
        ),
    }
)
