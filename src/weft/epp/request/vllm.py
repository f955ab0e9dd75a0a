"""vLLM's engine protocol, which Weft's workers speak."""

import hashlib
from typing import Final

from weft.epp.request.engine_protocol import EngineProtocol, ParsedPrompt, of_ids
from weft.epp.request.values import Prompt
from weft.pb.vllm_engine_pb2 import (
    EmbedRequest,
    EmbedResponse,
    GenerateRequest,
    GenerateResponse,
)


def _read_generate(request: GenerateRequest) -> ParsedPrompt | None:
    sampling = request.sampling_params
    # Tensors are identified by the hashes of their sources, for each modality; URLs by themselves.
    tensors = (request.mm_inputs, *request.extra_mm_inputs)
    media = (
        *(each for inputs in tensors for each in inputs.mm_hashes),
        *(hashlib.sha256(ref.url.encode()).hexdigest() for ref in request.media_refs.items),
    )
    match request.WhichOneof("input"):
        case "tokenized":
            prompt = of_ids(request.tokenized.input_ids)
        case "text":
            prompt = Prompt(text=request.text)
        case _:
            return None
    return ParsedPrompt(
        prompt=prompt,
        is_streaming=request.stream,
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else None,
        media=media,
    )


VLLM: Final = EngineProtocol(
    service="vllm.grpc.engine.VllmEngine",
    generate_request=GenerateRequest,
    embed_request=EmbedRequest,
    generate_response=GenerateResponse,
    embed_response=EmbedResponse,
    read_generate=_read_generate,
    needs="tokenized or text",
)
