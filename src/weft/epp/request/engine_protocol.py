"""The parts of an engine's gRPC protocol that the picker reads: prompts of requests, and token counts of responses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from weft.epp.request.values import MAX_COMPARED_TOKENS, Prompt
from weft.wire.message_bounds import crowded_field

GENERATE: Final = "/Generate"
EMBED: Final = "/Embed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPrompt:
    """A prompt, and the request parameters that routing needs."""

    prompt: Prompt
    is_streaming: bool = False
    max_tokens: int | None = None
    media: tuple[str, ...] = ()  # hashes of the media at the placeholders
    adapter: str = ""  # LoRA adapter, if the message names one
    salt: str = ""  # separates equal prompts in prefix caches


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Token counts of a response. In the protocols, zero means "not reported"."""

    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    num_new_tokens: int = 0  # number of token ids in the message, if it is a chunk
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProtocol:
    """The gRPC service of an engine: the message types of its calls `Generate` and `Embed`, and how to read them."""

    service: str
    generate_request: Any
    embed_request: Any
    generate_response: Any
    embed_response: Any
    read_generate: Callable[[Any], ParsedPrompt | None]  # returns None if the message has no prompt
    needs: str  # what the message of `Generate` must have, for errors
    ids_field: str = "input_ids"  # of the message `tokenized`

    def crowded(self, message: bytes, max_parts: int, *, is_generate: bool) -> str | None:
        """Returns the name of the request's field that has too many parts to be read; None if no field has."""
        kind = self.generate_request if is_generate else self.embed_request
        return crowded_field(message, kind.DESCRIPTOR, max_parts=max_parts)

    def prompt(self, message: bytes, *, is_generate: bool) -> ParsedPrompt | None:
        """Parses a request; returns None if the message is invalid or has no prompt."""
        kind = self.generate_request if is_generate else self.embed_request
        try:
            request = kind.FromString(message)
        except DecodeError:
            return None
        if is_generate:
            return self.read_generate(request)
        if not request.HasField("tokenized"):
            return None
        return ParsedPrompt(prompt=of_ids(getattr(request.tokenized, self.ids_field)))

    def counts(self, message: bytes, *, is_generate: bool) -> TokenCounts | None:
        """Parses a response; returns None if the message is invalid."""
        kind = self.generate_response if is_generate else self.embed_response
        try:
            response = kind.FromString(message)
        except DecodeError:
            return None
        if not is_generate:
            return TokenCounts(num_prompt_tokens=response.prompt_tokens, is_complete=True)
        is_chunk = response.WhichOneof("response") == "chunk"
        part = response.chunk if is_chunk else response.complete
        return TokenCounts(
            num_prompt_tokens=part.prompt_tokens,
            num_cached_tokens=part.cached_tokens,
            num_completion_tokens=part.completion_tokens,
            num_new_tokens=len(response.chunk.token_ids),
            is_complete=not is_chunk,
        )


def of_ids(ids: Sequence[int]) -> Prompt:
    """Returns the prompt of token ids, which are hashed unchanged."""
    num_left_out = max(0, len(ids) - MAX_COMPARED_TOKENS)
    return Prompt(token_ids=tuple(ids[:MAX_COMPARED_TOKENS]), num_left_out=num_left_out)
