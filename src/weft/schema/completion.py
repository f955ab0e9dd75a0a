"""Bodies of /v1/completions. In chunks all fields are written, null if they have no value."""

from typing import Any

import msgspec

from weft.schema.sampling import GenerationFields
from weft.schema.usage import CompletionLogprobs, PromptLogprobs, Usage


class CompletionBody(GenerationFields, frozen=True, kw_only=True):
    """A request to continue one or several texts, given as text or token ids."""

    # A text, a list of texts, a list of token ids, or a list of such lists; no mixture.
    prompt: str | list[str | int | list[int]] | None = None
    prompt_embeds: str | list[str] | None = None
    suffix: str | None = None
    logprobs: int | None = None
    best_of: int | None = None


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None


class CompletionChoice(_Choice, frozen=True, kw_only=True):
    """One answer. `index` counts the answers of all prompts; answers of the same prompt are adjacent."""

    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: list[int] | None


class CompletionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to all prompts."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    service_tier: str | None = None
    system_fingerprint: str | None = None
    kv_transfer_params: dict[str, Any] | None = None


class CompletionChunkChoice(_Choice, frozen=True, kw_only=True):
    """The new parts of one answer."""

    prompt_token_ids: list[int] | None


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: Usage | None
