"""Table of GGUF architectures: one row for each, in the module of its lineage.

`weft.model.gguf.family_config` reads metadata by these rows.
"""

from collections.abc import Mapping
from types import MappingProxyType

from weft.core.errors import ConfigError
from weft.model.fields import shown
from weft.model.gguf.architecture import CLIP, Architecture
from weft.model.gguf.lineages.deepseek_rows import DEEPSEEK_ROWS
from weft.model.gguf.lineages.gemma_rows import GEMMA_ROWS
from weft.model.gguf.lineages.glm_rows import GLM_ROWS
from weft.model.gguf.lineages.hybrid_rows import HYBRID_ROWS
from weft.model.gguf.lineages.layer_norm_rows import LAYER_NORM_ROWS
from weft.model.gguf.lineages.lfm_rows import LFM_ROWS
from weft.model.gguf.lineages.llama_rows import LLAMA_ROWS
from weft.model.gguf.lineages.qwen_rows import QWEN_ROWS

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        **LLAMA_ROWS,
        **QWEN_ROWS,
        **GEMMA_ROWS,
        **DEEPSEEK_ROWS,
        **GLM_ROWS,
        **LAYER_NORM_ROWS,
        **LFM_ROWS,
        **HYBRID_ROWS,
    }
)


def find_architecture(metadata: Mapping[str, object], where: str) -> tuple[str, Architecture]:
    """Returns the architecture's name and row; raises a `ConfigError` that lists the known architectures for
    another.
    """
    name = metadata.get("general.architecture")
    known = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if name == CLIP:
        raise ConfigError(
            f"{where}: is a projector file, the vision tower of another model: name the text model, and this file with "
            "--mmproj"
        )
    if known is None or not isinstance(name, str):
        raise ConfigError(
            f"{where}: general.architecture is {shown(name)}; of GGUF files these are read: "
            + ", ".join(ARCHITECTURES)
            + ". The safetensors files of the model may be served in its place, by Weft or with --engine vllm"
        )
    return name, known
