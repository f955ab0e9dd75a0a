"""Bodies of /inference/v1/generate, tokens in and out, and of /generate, the plainest of all."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.types import SamplingParams
from weft.schema.sampling import SamplingFields, StreamOptions
from weft.schema.usage import ChatLogprobs, PromptLogprobs, Usage


class TokensBody(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids to go on with. `sampling_params` is what an engine's client is given, field for field."""

    token_ids: list[int]
    sampling_params: SamplingParams = SamplingParams()
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int | None = None
    features: Any = None
    kv_transfer_params: dict[str, Any] | None = None


class TokensChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer; in a chunk, what is new of it."""

    index: int
    token_ids: list[int]
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class TokensAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All answers."""

    request_id: str
    model: str
    choices: list[TokensChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    kv_transfer_params: None = None


class TokensChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The delta of one answer; or none and the usage, at the end."""

    request_id: str
    model: str
    choices: list[TokensChoice]
    usage: Usage | UnsetType = UNSET


class SimpleBody(SamplingFields, frozen=True, kw_only=True):
    """A text to go on with."""

    prompt: str
    stream: bool | None = None


class SimpleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt and what follows it, once an answer; streamed, all of it so far, a line of JSON each time."""

    text: list[str]
