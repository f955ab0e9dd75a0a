"""Bodies of /inference/v1/generate, which gets and returns token ids, and of /generate, the API with the fewest
fields.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.values.types import SamplingParams
from weft.schema.sampling import SamplingFields, StreamOptions
from weft.schema.usage import ChatLogprobs, PromptLogprobs, Usage

OutputMode = Literal["tokens", "text"]


class TokensParams(SamplingParams, frozen=True, kw_only=True):
    """Sampling parameters with the names of an engine client. Without `max_tokens`, the answer may fill the context."""

    max_tokens: int | None = None


class TokensBody(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids to continue. With `output_mode` "text", the answer has text besides the ids.

    `token_offsets` are what render endpoints return; they have no effect.
    """

    token_ids: list[int]
    sampling_params: TokensParams = TokensParams()
    model: str | None = None
    output_mode: OutputMode = "tokens"
    return_token_ids: bool | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    request_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int | None = None
    token_offsets: list[tuple[int, int]] | None = None
    features: Any = None
    content_parts: list[dict[str, Any]] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


class IdLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token id with its logprob and its rank: 1 is the most probable token, null an unknown rank."""

    token_id: int
    logprob: float
    rank: int | None


class ChosenIdLogprob(IdLogprob, frozen=True, kw_only=True):
    """The sampled token. `top_logprobs` begins with it, followed by the alternatives in order of rank."""

    top_logprobs: list[IdLogprob]


class IdLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Logprobs of every token of an answer or of a chunk."""

    content: list[ChosenIdLogprob]


class WeightVersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of an answer from `start` up to `end` were sampled with the weights `version`."""

    version: str
    start: int
    end: int


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None
    weight_versions: list[WeightVersionSpan] | None


class TokensChoice(_Choice, frozen=True, kw_only=True):
    """An answer or, in a chunk, its new part. The last chunk has `weight_versions` of the whole answer."""

    logprobs: IdLogprobs | None


class TextChoice(_Choice, frozen=True, kw_only=True):
    """An answer as text, with the text of each token."""

    text: str
    logprobs: ChatLogprobs | None


class _Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="output_mode"):
    request_id: str
    created: int
    model: str
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class TokensAnswer(_Answer, frozen=True, kw_only=True, tag="tokens"):
    """All answers of a request as token ids."""

    choices: list[TokensChoice]


class TextAnswer(_Answer, frozen=True, kw_only=True, tag="text"):
    """All answers of a request with their texts."""

    choices: list[TextChoice]


class _Chunk(msgspec.Struct, frozen=True, kw_only=True, tag_field="output_mode"):
    request_id: str
    created: int
    model: str
    usage: Usage | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class TokensChunk(_Chunk, frozen=True, kw_only=True, tag="tokens"):
    """The delta of one answer; or none and the usage, at the end. The prompt comes with the first.

    `kv_transfer_params` come with the last delta; with `do_chunked_transfer` in a chunk of their own before.
    """

    choices: list[TokensChoice]


class TextChunk(_Chunk, frozen=True, kw_only=True, tag="text"):
    """A stream event with texts."""

    choices: list[TextChoice]


class SimpleBody(SamplingFields, frozen=True, kw_only=True):
    """A text to continue."""

    prompt: str
    stream: bool | None = None


class SimpleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt and what follows it, once an answer; streamed, all of it so far, a line of JSON each time."""

    text: list[str]
