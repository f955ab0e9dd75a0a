"""Rows of GGUF architectures of dense GLM 4 and of ERNIE 4.5."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.gguf.architecture import Architecture
from weft.model.gguf.names import GLM4, NEIGHBOURS

GLM_ROWS: Mapping[str, Architecture] = MappingProxyType(
    {
        "chatglm": Architecture(model_type="glm", names=GLM4),
        "glm4": Architecture(model_type="glm4", names=GLM4),
        "ernie4_5": Architecture(
            model_type="ernie4_5",
            names=NEIGHBOURS,
        ),
    }
)
