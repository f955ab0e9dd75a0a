"""SGLang's scheduler protocol."""

import hashlib
from typing import Final

from weft.epp.request.engine_protocol import EngineProtocol, ParsedPrompt, of_ids
from weft.pb.sglang_scheduler_pb2 import (
    EmbedRequest,
    EmbedResponse,
    GenerateRequest,
    GenerateResponse,
    MultimodalInputs,
)


def _read_generate(request: GenerateRequest) -> ParsedPrompt | None:
    if not request.HasField("tokenized"):
        return None
    sampling = request.sampling_params
    return ParsedPrompt(
        prompt=of_ids(request.tokenized.input_ids),
        is_streaming=request.stream,
        max_tokens=sampling.max_new_tokens if sampling.HasField("max_new_tokens") else None,
        media=_media(request.mm_inputs),
        adapter=request.lora_id,
    )


def _media(inputs: MultimodalInputs) -> tuple[str, ...]:
    """Returns a hash of each media item. Pixels of all pictures are one tensor, which counts as one item."""
    urls = (*inputs.image_urls, *inputs.video_urls, *inputs.audio_urls)
    raw = (*inputs.image_data, *inputs.video_data, *inputs.audio_data)
    pixels = (inputs.pixel_values.data,) if inputs.HasField("pixel_values") else ()
    sources = (*(url.encode() for url in urls), *raw, *pixels)
    return tuple(hashlib.sha256(source).hexdigest() for source in sources)


SGLANG: Final = EngineProtocol(
    service="sglang.grpc.scheduler.SglangScheduler",
    generate_request=GenerateRequest,
    embed_request=EmbedRequest,
    generate_response=GenerateResponse,
    embed_response=EmbedResponse,
    read_generate=_read_generate,
    needs="tokenized",
)
