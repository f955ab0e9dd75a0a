"""What every generating endpoint reads from a call beside the words of its own API."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from weft.core.errors import BadRequest
from weft.core.validate import validate_request_id
from weft.schema.sampling import GenerationFields
from weft.schema.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from weft.web.http.endpoint import Call
from weft.web.served import Served

_RANK_HEADER = "x-data-parallel-rank"
_TRACE_HEADERS = ("traceparent", "tracestate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What stands on top of an answer and of each of its chunks."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What to tell beside the text."""

    has_usage: bool
    has_running_usage: bool
    has_token_ids: bool
    is_naming_by_id: bool
    """Whether tokens are written as `token_id:N` rather than as text."""
    has_cached_tokens: bool
    has_reasoning_tokens: bool


def heading(call: Call, fields: GenerationFields, *, prefix: str, created: int) -> Heading:
    """The answer's id bears the client's label, wherever it wrote it, or else ours."""
    label = label_of(call, fields.request_id)
    model = resolve_model(call.served, fields.model)
    return Heading(id=f"{prefix}-{label}", created=created, model=model)


def resolve_model(served: Served, name: str | None) -> str:
    """The name that the answer bears. None is the model that is served first; `NotFound` for a stranger's.

    An adapter is a model of its own name.
    """
    if name is None:
        return served.client.model_config.served_model_name
    served.lora_request(name)
    return name


def label_of(call: Call, written: str | None) -> str:
    """The client's label: its header, or what it wrote into the body, or else our own id."""
    if call.label == call.request_id and written is not None:
        return _usable(written) or call.label
    return call.label


def telling(call: Call, fields: GenerationFields) -> Telling:
    """What the body and the server's options ask for together."""
    options = call.served.options
    asked = fields.stream_options
    if asked is not None and not fields.stream:
        raise BadRequest("stream_options", "stream_options needs stream to be true")
    if asked is not None and asked.include_obfuscation:
        raise BadRequest("stream_options", "include_obfuscation must be absent or false")
    has_usage = bool(asked and asked.include_usage) or options.enable_force_include_usage
    return Telling(
        has_usage=has_usage,
        has_running_usage=has_usage and bool(asked and asked.continuous_usage_stats),
        has_token_ids=bool(fields.return_token_ids),
        is_naming_by_id=(
            options.return_tokens_as_token_ids
            if fields.return_tokens_as_token_ids is None
            else fields.return_tokens_as_token_ids
        ),
        has_cached_tokens=options.enable_prompt_tokens_details,
        has_reasoning_tokens=options.reasoning_parser is not None,
    )


def check_streamable(fields: GenerationFields) -> None:
    """A prompt's log-probabilities come with an answer in one piece only."""
    if fields.stream and fields.prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs", "prompt_logprobs are not available when stream is true")


def rank_of(headers: Mapping[str, str]) -> int | None:
    """The rank that a router chose; what is no number is ignored."""
    text = headers.get(_RANK_HEADER, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


async def trace_of(served: Served, headers: Mapping[str, str]) -> Mapping[str, str] | None:
    """The trace that a request belongs to, where traces are exported."""
    found = {name: headers[name] for name in _TRACE_HEADERS if name in headers}
    return found if found and await served.client.is_tracing_enabled() else None


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


def _usable(label: str) -> str | None:
    """The label, unless it cannot be shown: a bad one costs the client its label, not its answer."""
    try:
        validate_request_id(label)
    except BadRequest:
        return None
    return label
