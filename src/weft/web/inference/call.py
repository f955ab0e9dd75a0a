"""Fields that every generating endpoint reads from a call, in addition to those of its API."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from operator import attrgetter
from typing import Any, TypeAlias

from msgspec import UNSET, UnsetType

from weft.core.checks.validate import validate_request_id
from weft.core.errors import BadRequest
from weft.core.headers import PREFILLER
from weft.core.observe.tracing import TRACE_HEADERS
from weft.core.tenants import BEHIND_ALL
from weft.core.values.kv_transfer import Prefill
from weft.core.values.types import LoRARequest, RequestOptions
from weft.schema.sampling import GenerationFields, StreamOptions
from weft.schema.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from weft.web.http.endpoint import Answer, Call, Endpoint, Handler, endpoint
from weft.web.inference.logprobs import LogprobWriter
from weft.web.options import ApiOptions
from weft.web.served import Served

_CALL_FIELDS = tuple(field.name for field in fields(Call) if field.name != "label")
_call_fields = attrgetter(*_CALL_FIELDS)
_RANK_HEADER = "x-data-parallel-rank"
# A response is encoded in one piece; this many characters take 20 ms.
MAX_REPEATED_CHARS = 8 * 2**20
CHARS_PER_ID = 4  # characters that take as long to encode as a token id

ModelHandler: TypeAlias = "Callable[[ModelCall], Awaitable[Answer]]"
# From the name in a body to that of a model or an adapter; None stands for the first served name.
ToName: TypeAlias = Callable[[Served, str | None], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall(Call):
    """A call, with the model and options that its headers and body name, read before the handler.

    `model` is the name in the answer: a served name, or that of the adapter `lora_request`. `label` may come from the
    body too.
    """

    model: str
    lora_request: LoRARequest | None
    data_parallel_rank: int | None
    trace_headers: Mapping[str, str] | None

    def heading(self, prefix: str) -> "Heading":
        """Returns the header fields of the answer, created now."""
        return Heading(
            id=f"{prefix}-{self.label}",
            created=self.created_at or int(time.time()),
            model=self.model,
        )

    def logprob_writer(
        self,
        num_top: int | None,
        chosen_ids: Sequence[int] | None,
        *,
        is_naming_by_id: bool | None = None,
    ) -> LogprobWriter:
        """Returns the writer of logprobs; None leaves token names to the server's options."""
        if is_naming_by_id is None:
            is_naming_by_id = self.served.options.return_tokens_as_token_ids
        return LogprobWriter(self.served.tokenizer, num_top or 0, is_naming_by_id, chosen_ids)

    def request_options(self, priority: int | None = None) -> RequestOptions:
        """Returns the engine's options for the call."""
        return RequestOptions(
            request_id=self.request_id,
            lora_request=self.lora_request,
            trace_headers=self.trace_headers,
            priority=self._priority(priority),
            data_parallel_rank=self.data_parallel_rank,
            prefiller=self._prefiller() if PREFILLER in self.headers else None,
        )

    def _priority(self, given: int | None) -> int:
        """The priority of a request; the lowest one for a request of a batch, if the engine schedules by priority."""
        is_low = self.inside is not None and self.inside.is_low
        if is_low and self.served.client.info.policy == "priority":
            return BEHIND_ALL
        return given or 0

    def _prefiller(self) -> Prefill | None:
        if self.served.prefiller is None:
            return None
        return Prefill(
            address=self.headers[PREFILLER], authorization=self.headers.get("authorization")
        )


def model_endpoint(
    route: str, *, to_name: ToName | None = None, **fields: Any
) -> Callable[[ModelHandler], Endpoint]:
    """The `endpoint` of a handler of calls to the model; `to_name` reads the name of the model in the body."""
    make = endpoint(route, **fields)
    return lambda handler: make(for_model(handler, to_name=to_name))


def for_model(handler: ModelHandler, *, to_name: ToName | None = None) -> Handler:
    """A handler of calls to the model."""

    @wraps(handler)
    async def handle(call: Call) -> Answer:
        return await handler(await to_model_call(call, to_name=to_name))

    return handle


async def to_model_call(call: Call, *, to_name: ToName | None = None) -> ModelCall:
    """Reads the model of a call; raises `NotFound` for an unknown one."""
    name: str | None = call.body.model
    if to_name is not None:
        name = to_name(call.served, name)
    model, lora_request = resolve_model(call.served, name)
    headers = call.headers
    is_traced = not headers.keys().isdisjoint(TRACE_HEADERS)
    return ModelCall(
        **dict(zip(_CALL_FIELDS, _call_fields(call), strict=True)),
        label=label_of(call) if call.label == call.request_id else call.label,
        model=model,
        lora_request=lora_request,
        data_parallel_rank=rank_of(headers) if _RANK_HEADER in headers else None,
        trace_headers=await _trace(call.served, headers) if is_traced else None,
    )


def first_if_blank(_served: Served, name: str | None) -> str | None:
    """Takes an empty name for the first served name, as clients of embeddings and speech send it."""
    return name or None


def resolve_model(served: Served, name: str | None) -> tuple[str, LoRARequest | None]:
    """The name in the answer, and the adapter with that name; None stands for the first served name."""
    if name is None:
        return served.client.model_config.served_model_names[0], None
    return name, served.lora_request(name)


def label_of(call: Call) -> str:
    """The client's label from the body; otherwise the server's request id. No header has a label."""
    written = getattr(call.body, "request_id", None)
    return call.label if written is None else _usable(written) or call.label


def _usable(label: str) -> str | None:
    """The label if it is printable; an invalid label is ignored, and the request is served."""
    try:
        validate_request_id(label)
    except BadRequest:
        return None
    return label


def rank_of(headers: Mapping[str, str]) -> int | None:
    """The rank that a router chose; a value that is not a number is ignored."""
    text = headers.get(_RANK_HEADER, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


async def _trace(served: Served, headers: Mapping[str, str]) -> Mapping[str, str] | None:
    """The trace headers of a request, if traces are exported."""
    found = {name: headers[name] for name in TRACE_HEADERS if name in headers}
    return found if await served.client.is_tracing_enabled() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Fields that begin an answer and each of its chunks."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDetails:
    """The optional parts of an answer."""

    has_usage: bool
    has_running_usage: bool
    has_token_ids: bool
    is_naming_by_id: bool
    """Whether tokens are written as `token_id:N` rather than as text."""
    has_cached_tokens: bool
    has_reasoning_tokens: bool


def to_details(call: Call, fields: GenerationFields, *, reads_reasoning: bool) -> AnswerDetails:
    """Combines the body's fields with the server's options; `reads_reasoning` if a parser reads reasoning in texts."""
    options = call.served.options
    stream_options = fields.stream_options
    if stream_options is not None:
        check_stream_options(stream_options, is_streamed=bool(fields.stream))
    has_usage, has_running_usage = usage_of_stream(options, stream_options)
    return AnswerDetails(
        has_usage=has_usage,
        has_running_usage=has_running_usage,
        has_token_ids=bool(fields.return_token_ids),
        is_naming_by_id=(
            options.return_tokens_as_token_ids
            if fields.return_tokens_as_token_ids is None
            else fields.return_tokens_as_token_ids
        ),
        has_cached_tokens=options.enable_prompt_tokens_details,
        has_reasoning_tokens=reads_reasoning and options.reasoning_parser is not None,
    )


def usage_of_stream(options: ApiOptions, given: StreamOptions | None) -> tuple[bool, bool]:
    """Returns whether a stream ends with its usage, and whether each chunk has it too."""
    has_usage = bool(given and given.include_usage) or options.enable_force_include_usage
    return has_usage, has_usage and bool(given and given.continuous_usage_stats)


def check_stream_options(options: StreamOptions, *, is_streamed: bool) -> None:
    """Refuses stream options on a call that is not streamed, and obfuscation."""
    if not is_streamed:
        raise BadRequest("stream_options", "stream_options needs stream to be true")
    if options.include_obfuscation:
        raise BadRequest("stream_options", "include_obfuscation must be absent or false")


def check_streamable(fields: GenerationFields) -> None:
    """Refuses prompt logprobs in a stream."""
    if fields.stream and fields.prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs", "prompt_logprobs are not available when stream is true")


@contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Renames fields in errors that are raised inside, to the names that an API has for them."""
    try:
        yield
    except BadRequest as error:
        raise error.renamed(names) from error


def check_repeated(name: str, num_chars: int) -> None:
    """Refuses prompts that would be repeated too often: each is repeated in all of its answers."""
    if num_chars > MAX_REPEATED_CHARS:
        raise BadRequest(
            name,
            f"{name}: the answers would repeat {num_chars} characters of prompts; all of them together "
            f"may repeat {MAX_REPEATED_CHARS}",
        )


def to_usage(
    details: AnswerDetails,
    *,
    num_prompt_tokens: int,
    num_completion_tokens: int,
    num_cached_tokens: int | None = None,
    num_reasoning_tokens: int = 0,
) -> Usage:
    """Token counts with the requested details; `num_cached_tokens` None means unknown."""
    cached: PromptTokensDetails | UnsetType = UNSET
    if details.has_cached_tokens and num_cached_tokens is not None:
        cached = PromptTokensDetails(cached_tokens=num_cached_tokens)
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_completion_tokens,
        total_tokens=num_prompt_tokens + num_completion_tokens,
        prompt_tokens_details=cached,
        completion_tokens_details=(
            CompletionTokensDetails(reasoning_tokens=num_reasoning_tokens)
            if details.has_reasoning_tokens
            else UNSET
        ),
    )
