"""Token counts, as OpenAI's APIs write them."""

from msgspec import UNSET

from weft.schema.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from weft.web.openai.calling import Telling


def to_usage(
    telling: Telling,
    *,
    num_prompt_tokens: int,
    num_completion_tokens: int,
    num_cached_tokens: int = 0,
    num_reasoning_tokens: int = 0,
) -> Usage:
    """The details that are told, and are not nothing."""
    has_cached = telling.has_cached_tokens and num_cached_tokens > 0
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_completion_tokens,
        total_tokens=num_prompt_tokens + num_completion_tokens,
        prompt_tokens_details=(
            PromptTokensDetails(cached_tokens=num_cached_tokens) if has_cached else UNSET
        ),
        completion_tokens_details=(
            CompletionTokensDetails(reasoning_tokens=num_reasoning_tokens)
            if telling.has_reasoning_tokens
            else UNSET
        ),
    )
