"""Bodies of /v1/messages as Anthropic publishes them. Fields of a request may be null where they may be absent.

Blocks and tools have more kinds than these: `weft.web.anthropic` separates the kinds by their `type`
and refuses the others by name.
"""

from typing import Any, Literal, TypeAlias

import msgspec

# -- requests: blocks ---------------------------------------------------------------------------


class CacheControl(msgspec.Struct, frozen=True, kw_only=True):
    """End of a cached prefix, and its lifetime."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Citations(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of citations: whether answers cite the document."""

    enabled: bool | None = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Source of a document: `data` for type "text", `content` for type "content"."""

    type: str
    media_type: str | None = None
    data: str | None = None
    content: str | list[dict[str, Any]] | None = None


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Caller of a tool: "direct" is the model itself."""

    type: str


class TextBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block of text."""

    text: str
    citations: list[dict[str, Any]] | None = None
    cache_control: CacheControl | None = None


class DocumentBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A document for the model to read."""

    source: Source
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None
    cache_control: CacheControl | None = None


class ImageSource(msgspec.Struct, frozen=True, kw_only=True):
    """Source of an image: `data` for type "base64", `url` for type "url"."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class ImageBlock(msgspec.Struct, frozen=True, kw_only=True):
    """An image for the model to read."""

    source: ImageSource
    cache_control: CacheControl | None = None


class SearchResultBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A search result that the caller provides; `source` is its address."""

    content: list[dict[str, Any]]
    source: str
    title: str
    citations: Citations | None = None
    cache_control: CacheControl | None = None


class ToolReferenceBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to a tool that a tool search found."""

    tool_name: str
    cache_control: CacheControl | None = None


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The reasoning of an earlier answer."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The reasoning of an earlier answer, encrypted by the server that made it."""

    data: str


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]
    caller: Caller | None = None
    toolset_name: str | None = None
    cache_control: CacheControl | None = None


class ToolResultBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a tool call."""

    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    toolset_name: str | None = None
    cache_control: CacheControl | None = None


Block: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ToolReferenceBlock
)

# -- requests: the body -------------------------------------------------------------------------


class MessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the conversation. A string as content stands for a single text block."""

    role: str
    content: str | list[dict[str, Any]]


class ToolBody(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the caller runs; `type` is absent or "custom". `input_schema` is a JSON schema."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    input_examples: list[dict[str, Any]] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    cache_control: CacheControl | None = None


class ToolChoiceBody(msgspec.Struct, frozen=True, kw_only=True):
    """Tool choice: "auto", "any", "tool" with a name, or "none"."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingBody(msgspec.Struct, frozen=True, kw_only=True):
    """Reasoning before the answer: "enabled" with a budget, "adaptive", or "disabled"."""

    type: str
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Format of the answer: JSON of this schema."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Effort and format of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: dict[str, Any] | None = None


class PromptBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a conversation that determine its prompt, and so its number of tokens."""

    model: str
    messages: list[MessageBody]
    system: str | list[dict[str, Any]] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: ThinkingBody | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: CacheControl | None = None
    billing_policy: dict[str, Any] | None = None
    compaction: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] | None = None
    speed: str | None = None


class MessagesBody(PromptBody, frozen=True, kw_only=True):
    """A request for the next message of a conversation."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None
    container: str | dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None
    fallback_credit_token: str | dict[str, Any] | None = None
    fallbacks: Any = None
    inference_geo: str | None = None
    service_tier: str | None = None
    thread: dict[str, Any] | None = None


# -- what is answered ---------------------------------------------------------------------------


class Typed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """An object with a `type`."""


class TextAnswer(Typed, frozen=True, kw_only=True, tag="text"):
    """A block of the answer's text."""

    text: str


class ThinkingAnswer(Typed, frozen=True, kw_only=True, tag="thinking"):
    """A block of reasoning. `signature` is never empty, because clients drop blocks without a signature."""

    thinking: str
    signature: str


class ToolUseAnswer(Typed, frozen=True, kw_only=True, tag="tool_use"):
    """A tool call; `input` is the object that the model wrote, unchanged."""

    id: str
    name: str
    input: msgspec.Raw


BlockAnswer: TypeAlias = TextAnswer | ThinkingAnswer | ToolUseAnswer


class CacheCreation(msgspec.Struct, frozen=True, kw_only=True):
    """Number of tokens written to the cache and billed; always 0 in Weft."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Number of reasoning tokens in the answer."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. `input_tokens` counts the prompt tokens that were not read from the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    cache_creation: CacheCreation = CacheCreation()
    output_tokens: int
    output_tokens_details: OutputTokensDetails | None
    service_tier: str = "standard"


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The message that the model generated. In the first event of a stream, the stop reasons are null."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[BlockAnswer]
    stop_reason: str | None
    stop_sequence: str | None
    stop_details: None = None
    usage: MessageUsage


class CountAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Number of tokens of the prompt."""

    input_tokens: int


# -- what is streamed ---------------------------------------------------------------------------


class TextDelta(Typed, frozen=True, kw_only=True, tag="text_delta"):
    """A new piece of the text."""

    text: str


class ThinkingDelta(Typed, frozen=True, kw_only=True, tag="thinking_delta"):
    """A new piece of the reasoning."""

    thinking: str


class SignatureDelta(Typed, frozen=True, kw_only=True, tag="signature_delta"):
    """The signature of a reasoning block that is complete."""

    signature: str


class InputJsonDelta(Typed, frozen=True, kw_only=True, tag="input_json_delta"):
    """A piece of a tool call's input. All pieces joined are one JSON object."""

    partial_json: str


Delta: TypeAlias = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageStart(Typed, frozen=True, kw_only=True, tag="message_start"):
    """First event of a stream: the message without content, stop reasons and output tokens."""

    message: MessageAnswer


class Ping(Typed, frozen=True, kw_only=True, tag="ping"):
    """An event without content that keeps the connection open."""


class BlockStart(Typed, frozen=True, kw_only=True, tag="content_block_start"):
    """An empty content block begins."""

    index: int
    content_block: BlockAnswer


class BlockDelta(Typed, frozen=True, kw_only=True, tag="content_block_delta"):
    """A new piece of the content block that is open."""

    index: int
    delta: Delta


class BlockStop(Typed, frozen=True, kw_only=True, tag="content_block_stop"):
    """The content block is complete."""

    index: int


class MessageEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why the message ended."""

    stop_reason: str
    stop_sequence: str | None
    stop_details: None = None


class MessageDelta(Typed, frozen=True, kw_only=True, tag="message_delta"):
    """Final fields of a message after its last block; `usage` counts the whole message."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Typed, frozen=True, kw_only=True, tag="message_stop"):
    """The last event of a stream."""


StreamEvent: TypeAlias = (
    MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
)
