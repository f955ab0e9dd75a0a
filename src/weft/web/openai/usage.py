"""Token counts, as OpenAI's APIs write them."""

from msgspec import UNSET, UnsetType

from weft.schema.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from weft.web.openai.calling import Telling


def to_usage(
    telling: Telling,
    *,
    num_prompt_tokens: int,
    num_completion_tokens: int,
    num_cached_tokens: int | None = None,
    num_reasoning_tokens: int = 0,
) -> Usage:
    """Token counts with the details that are told; `num_cached_tokens` None is not known yet."""
    cached: PromptTokensDetails | UnsetType = UNSET
    if telling.has_cached_tokens and num_cached_tokens is not None:
        cached = PromptTokensDetails(cached_tokens=num_cached_tokens)
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_completion_tokens,
        total_tokens=num_prompt_tokens + num_completion_tokens,
        prompt_tokens_details=cached,
        completion_tokens_details=(
            CompletionTokensDetails(reasoning_tokens=num_reasoning_tokens)
            if telling.has_reasoning_tokens
            else UNSET
        ),
    )
