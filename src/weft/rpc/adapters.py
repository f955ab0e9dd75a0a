"""The LoRA adapter of a request, which metadata names because the messages have no field for it."""

from weft.core.client import EngineClient
from weft.core.errors import BadRequest
from weft.core.lora import LORA_METADATA, find_lora
from weft.core.types import LoRARequest
from weft.rpc.boundary import Context


def lora_request_of(context: Context, client: EngineClient) -> LoRARequest | None:
    """The adapter that the call's metadata names. The name of the model itself, or none, is no adapter."""
    metadata = context.invocation_metadata() or ()
    names = {str(value) for name, value in metadata if name == LORA_METADATA and value}
    if len(names) > 1:
        raise BadRequest(LORA_METADATA, f"{LORA_METADATA} names {len(names)} adapters; give one")
    for name in names:
        return find_lora(name, client.model_config.served_model_names, client.lora_requests)
    return None
