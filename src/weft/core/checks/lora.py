"""Checks of LoRA adapters that callers name; every API uses these."""

from typing import Final

from weft.core.config.engine import ModelConfig
from weft.core.errors import BadRequest
from weft.core.values.types import LoRARequest
from weft.core.values.unicode import encode_text

# gRPC metadata that names the adapter of a request: the messages have no field for it.
LORA_METADATA: Final = "x-weft-lora-name"

MAX_NAME_CHARS = 256
MAX_PATH_CHARS = 4096
_MAX_ID = 2**31 - 1


def validate_lora(request: LoRARequest, model: ModelConfig) -> None:
    """Raises `BadRequest`, naming the field, for a request that cannot be an adapter of this model."""
    if not isinstance(request, LoRARequest):
        raise BadRequest("lora_request", "lora_request must be a LoRARequest")
    validate_lora_name(request.lora_name)
    if request.lora_name in model.served_model_names:
        raise BadRequest(
            "lora_name",
            f"lora_name {request.lora_name!a} is a name of the served model; adapters need other names",
        )
    if type(request.lora_int_id) is not int or not 1 <= request.lora_int_id <= _MAX_ID:
        raise BadRequest("lora_int_id", f"lora_int_id must be from 1 to {_MAX_ID}")
    path: object = request.lora_path
    if not isinstance(path, str) or not 1 <= len(path) <= MAX_PATH_CHARS or "\0" in path:
        raise BadRequest("lora_path", "lora_path must be the path of a directory")
    encode_text("lora_path", path)
    names = (*model.served_model_names, model.model)
    if request.base_model_name is not None and request.base_model_name not in names:
        shown = str(request.base_model_name)[:64]
        raise BadRequest(
            "base_model_name", f"base_model_name must be {names[0]}, which is served, got {shown!a}"
        )


def validate_lora_name(name: object) -> None:
    """Raises `BadRequest` for a value that is not a valid adapter name."""
    # The name is sent as gRPC metadata and, separated by commas, in a label of the metrics.
    if not isinstance(name, str) or not (
        1 <= len(name) <= MAX_NAME_CHARS
        and name.isascii()
        and name.isprintable()
        and name.strip() == name
        and "," not in name
    ):
        raise BadRequest(
            "lora_name",
            f"lora_name must have 1 to {MAX_NAME_CHARS} printable ASCII characters, no comma among "
            "them and no space around them",
        )
