"""Token counts and log-probabilities as OpenAI's APIs write them."""

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the prompt tokens. `cached_tokens` were read from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the generated tokens. `reasoning_tokens` is the number of reasoning tokens."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts: the prompt counts once, for any number of answers, and the answers' tokens are summed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """An alternative token with its logprob."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The sampled token with its logprob, and its alternatives."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Logprobs of every token of an answer or of a chunk."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Logprobs in the older form: one list per field.

    The first token of an echoed prompt has no logprob. `top_logprobs` is null if no alternatives were requested.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The logprob of a token at one position of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[int, PromptLogprob] | None]
