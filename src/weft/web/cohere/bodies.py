"""Bodies of Cohere's API, version 2: chat and embeddings. Fields of a request may be null where they may be absent.

The format is that of the package `cohere` 7.3. A stream is server-sent events, whose `type` is in their data.
"""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from weft.schema.sampling import PenaltyFields

# -- requests -----------------------------------------------------------------------------------


class CalledCohereFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Name and arguments of a call; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class CalledCohereTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the assistant."""

    id: str
    function: CalledCohereFunction
    type: Literal["function"] = "function"


class CohereMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the conversation. `tool_plan` is the assistant's reasoning before its calls."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[CalledCohereTool] | None = None
    tool_plan: str | None = None
    tool_call_id: str | None = None
    citations: list[Any] | None = None


class OfferedCohereFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OfferedCohereTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call."""

    function: OfferedCohereFunction
    type: Literal["function"] = "function"


class CohereDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document for the model to read: names and values."""

    data: dict[str, Any]
    id: str | None = None


class CitationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of citations, which this server does not write."""

    mode: str | None = None


class CohereFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format of the answer. `schema` is an older name of `json_schema`."""

    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None


class CohereThinking(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model reasons, and for how many tokens."""

    type: Literal["enabled", "disabled"]
    token_budget: int | None = None


class CohereChatBody(PenaltyFields, frozen=True, kw_only=True):
    """The body of /cohere/v2/chat. The last two fields are vLLM's."""

    model: str
    messages: list[CohereMessage]
    stream: bool | None = None
    tools: list[OfferedCohereTool] | None = None
    strict_tools: bool | None = None
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: list[str | CohereDocument] | None = None
    citation_options: CitationOptions | None = None
    response_format: CohereFormat | None = None
    safety_mode: Literal["CONTEXTUAL", "STRICT", "OFF", "NONE"] | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    seed: int | None = None
    k: int | None = None
    p: float | None = None
    logprobs: bool | None = None
    thinking: CohereThinking | None = None
    priority: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CohereEmbedContent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an input: a text or an image."""

    type: str
    text: str | None = None
    image_url: dict[str, Any] | None = None


class CohereEmbedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input of several parts."""

    content: list[CohereEmbedContent]


class CohereEmbedBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /v2/embed. Inputs that are too long lose their end, unless `truncate` says otherwise."""

    model: str
    input_type: str | None = None
    texts: list[str] | None = None
    images: list[str] | None = None
    inputs: list[CohereEmbedInput] | None = None
    max_tokens: int | None = None
    output_dimension: int | None = None
    embedding_types: list[str] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    priority: int | None = None


# -- answers ------------------------------------------------------------------------------------


class WrittenCohereFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Name and arguments of a call that the model wrote; in a stream, the new part of them."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class WrittenCohereTool(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model wrote; in a stream, the new part of it."""

    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: WrittenCohereFunction


class CohereContent(msgspec.Struct, frozen=True, kw_only=True):
    """A block of text or thinking; in a stream, the new part of it."""

    type: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET


class CohereAnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message that the model wrote."""

    role: str = "assistant"
    content: list[CohereContent] | UnsetType = UNSET
    tool_calls: list[WrittenCohereTool] | UnsetType = UNSET


class CohereTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tokens."""

    input_tokens: int
    output_tokens: int | UnsetType = UNSET


class CohereUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a chat. Nothing is billed here; clients read the same numbers in either place."""

    billed_units: CohereTokens
    tokens: CohereTokens
    cached_tokens: int


class CohereLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of the tokens of a piece of text."""

    text: str
    token_ids: list[int]
    logprobs: list[float]


class CohereChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of /cohere/v2/chat in one piece."""

    id: str
    finish_reason: str
    message: CohereAnswerMessage
    usage: CohereUsage
    logprobs: list[CohereLogprob] | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class CohereVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The version of Cohere's API."""

    version: str = "2"


class CohereMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tokens of an embedding."""

    api_version: CohereVersion = CohereVersion()
    billed_units: CohereTokens
    tokens: CohereTokens


class CohereEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Embeddings of all inputs in each type that the request names."""

    float: list[Any] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET


class CohereEmbedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /v2/embed."""

    id: str
    response_type: str = "embeddings_by_type"
    embeddings: CohereEmbeddings
    texts: list[str] | UnsetType = UNSET
    meta: CohereMeta


# -- events of a stream -------------------------------------------------------------------------


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """An event of a stream."""


class RoleMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a message."""

    role: str = "assistant"


class RoleDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A message that has begun."""

    message: RoleMessage = RoleMessage()


class CohereMessageStart(_Event, frozen=True, kw_only=True, tag="message-start"):
    """The first event."""

    id: str
    delta: RoleDelta = RoleDelta()


class ContentMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message with a new part of a block."""

    content: CohereContent


class ContentChange(msgspec.Struct, frozen=True, kw_only=True):
    """The new part of a block."""

    message: ContentMessage


class ContentStart(_Event, frozen=True, kw_only=True, tag="content-start"):
    """The beginning of the block with this index."""

    index: int
    delta: ContentChange


class ContentDelta(_Event, frozen=True, kw_only=True, tag="content-delta"):
    """New text of the block with this index."""

    index: int
    delta: ContentChange
    logprobs: CohereLogprob | UnsetType = UNSET


class ContentEnd(_Event, frozen=True, kw_only=True, tag="content-end"):
    """The end of the block with this index."""

    index: int


class CallMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message with a new part of one call, under the name that the API has for it."""

    tool_calls: WrittenCohereTool


class CallChange(msgspec.Struct, frozen=True, kw_only=True):
    """The new part of a call."""

    message: CallMessage


class CallStart(_Event, frozen=True, kw_only=True, tag="tool-call-start"):
    """The beginning of the call with this index."""

    index: int
    delta: CallChange


class CallDelta(_Event, frozen=True, kw_only=True, tag="tool-call-delta"):
    """New arguments of the call with this index."""

    index: int
    delta: CallChange


class CallEnd(_Event, frozen=True, kw_only=True, tag="tool-call-end"):
    """The end of the call with this index."""

    index: int


class CohereEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why the message ended. `error` is the message of an error that ended it."""

    finish_reason: str
    error: str | UnsetType = UNSET
    usage: CohereUsage | UnsetType = UNSET


class CohereMessageEnd(_Event, frozen=True, kw_only=True, tag="message-end"):
    """The last event before `[DONE]`."""

    id: str | UnsetType = UNSET
    delta: CohereEnd


CohereEvent: TypeAlias = (
    CohereMessageStart
    | ContentStart
    | ContentDelta
    | ContentEnd
    | CallStart
    | CallDelta
    | CallEnd
    | CohereMessageEnd
)
