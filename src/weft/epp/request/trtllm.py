"""TensorRT-LLM's gRPC protocol."""

import hashlib
from typing import Final

from weft.epp.request.engine_protocol import EngineProtocol, ParsedPrompt, of_ids
from weft.pb.trtllm_service_pb2 import (
    EmbedRequest,
    EmbedResponse,
    GenerateRequest,
    GenerateResponse,
)


def _read_generate(request: GenerateRequest) -> ParsedPrompt | None:
    if not request.HasField("tokenized"):
        return None
    pictures = request.multimodal_input.image_data
    has_adapter, has_salt = request.HasField("lora_config"), request.HasField("cache_salt_id")
    return ParsedPrompt(
        prompt=of_ids(request.tokenized.input_token_ids),
        is_streaming=request.streaming,
        max_tokens=request.max_tokens or None,
        media=tuple(hashlib.sha256(picture).hexdigest() for picture in pictures),
        adapter=str(request.lora_config.task_id) if has_adapter else "",
        salt=str(request.cache_salt_id) if has_salt else "",
    )


TRTLLM: Final = EngineProtocol(
    service="trtllm.TrtllmService",
    generate_request=GenerateRequest,
    embed_request=EmbedRequest,
    generate_response=GenerateResponse,
    embed_response=EmbedResponse,
    read_generate=_read_generate,
    needs="tokenized",
    ids_field="input_token_ids",
)
