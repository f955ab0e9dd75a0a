"""The parts of vLLM's engine protocol that the picker reads: prompts of requests, and token usage of responses."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from weft.epp.request.values import MAX_COMPARED_TOKENS, Prompt
from weft.pb.vllm_engine_pb2 import (
    EmbedRequest,
    EmbedResponse,
    GenerateRequest,
    GenerateResponse,
)
from weft.wire.message_bounds import crowded_field

SERVICE: Final = "vllm.grpc.engine.VllmEngine"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPrompt:
    """A prompt, and the request parameters that routing needs."""

    prompt: Prompt
    is_streaming: bool = False
    max_tokens: int | None = None
    media: tuple[str, ...] = ()  # hashes of the media at the placeholders


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Token counts of a response. In the protocol, zero means "not reported"."""

    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    num_new_tokens: int = 0  # number of token ids in the message, if it is a chunk
    is_complete: bool


def crowded(message: bytes, max_parts: int, *, is_generate: bool) -> str | None:
    """Returns the name of the request's field that has too many parts to be read; None if no field has."""
    kind = GenerateRequest if is_generate else EmbedRequest
    return crowded_field(message, kind.DESCRIPTOR, max_parts=max_parts)


def read_generate(message: bytes) -> ParsedPrompt | None:
    """Parses a GenerateRequest; returns None if the message is invalid or has no prompt."""
    try:
        request = GenerateRequest.FromString(message)
    except DecodeError:
        return None
    sampling = request.sampling_params
    max_tokens = sampling.max_tokens if sampling.HasField("max_tokens") else None
    # Tensors are identified by the hashes of their sources, for each modality; URLs by themselves.
    tensors = (request.mm_inputs, *request.extra_mm_inputs)
    media = (
        *(each for inputs in tensors for each in inputs.mm_hashes),
        *(hashlib.sha256(ref.url.encode()).hexdigest() for ref in request.media_refs.items),
    )
    match request.WhichOneof("input"):
        case "tokenized":
            prompt = _of_ids(request.tokenized.input_ids)
        case "text":
            prompt = Prompt(text=request.text)
        case _:
            return None
    return ParsedPrompt(
        prompt=prompt, is_streaming=request.stream, max_tokens=max_tokens, media=media
    )


def read_embed(message: bytes) -> ParsedPrompt | None:
    """Parses an EmbedRequest; returns None if the message is invalid or has no token ids."""
    try:
        request = EmbedRequest.FromString(message)
    except DecodeError:
        return None
    if not request.HasField("tokenized"):
        return None
    return ParsedPrompt(prompt=_of_ids(request.tokenized.input_ids))


def _of_ids(ids: Sequence[int]) -> Prompt:
    num_left_out = max(0, len(ids) - MAX_COMPARED_TOKENS)
    return Prompt(token_ids=tuple(ids[:MAX_COMPARED_TOKENS]), num_left_out=num_left_out)


def read_generated(message: bytes) -> TokenCounts | None:
    """Parses a GenerateResponse; returns None if the message is invalid."""
    try:
        response = GenerateResponse.FromString(message)
    except DecodeError:
        return None
    is_chunk = response.WhichOneof("response") == "chunk"
    part = response.chunk if is_chunk else response.complete
    return TokenCounts(
        num_prompt_tokens=part.prompt_tokens,
        num_cached_tokens=part.cached_tokens,
        num_completion_tokens=part.completion_tokens,
        num_new_tokens=len(response.chunk.token_ids),
        is_complete=not is_chunk,
    )


def read_embedded(message: bytes) -> TokenCounts | None:
    """Parses an EmbedResponse; returns None if the message is invalid."""
    try:
        response = EmbedResponse.FromString(message)
    except DecodeError:
        return None
    return TokenCounts(num_prompt_tokens=response.prompt_tokens, is_complete=True)
