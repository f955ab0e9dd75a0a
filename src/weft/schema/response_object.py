"""The response object of /v1/responses, and its items."""

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from weft.schema.responses import (
    McpApprovalFilter,
    McpToolFilter,
    ResponsesToolChoice,
    TextFormat,
)
from weft.schema.usage import TokenLogprob

# -- items --------------------------------------------------------------------------------------


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"
):
    """The text of reasoning."""

    text: str


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: str
    role: str = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """The model's complete reasoning; it is neither summarized nor encrypted."""

    id: str
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText]
    encrypted_content: None = None
    status: str


class FunctionCallItem(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"
):
    """A function call of the model; `arguments` is JSON text as the model wrote it."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"
):
    """A call of a custom tool; `input` is text."""

    id: str
    call_id: str
    name: str
    input: str
    status: str
    namespace: str | UnsetType = UNSET


class McpListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool, as described by its server."""

    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None


class McpListToolsItem(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_list_tools"
):
    """The tools of an MCP server that the model may call."""

    id: str
    server_label: str
    tools: list[McpListedTool]
    error: str | None = None


class McpCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_call"):
    """A call of an MCP tool, made by this server. A failed call has an `error` instead of an output."""

    id: str
    server_label: str
    name: str
    arguments: str
    approval_request_id: str | None = None
    output: str | None = None
    error: dict[str, Any] | None = None
    status: str


class McpApprovalRequestItem(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_approval_request"
):
    """A call of an MCP tool that this server makes only if the next request approves it."""

    id: str
    server_label: str
    name: str
    arguments: str


OutputItem: TypeAlias = (
    OutputMessage
    | ReasoningItem
    | FunctionCallItem
    | CustomCallItem
    | McpListToolsItem
    | McpCallItem
    | McpApprovalRequestItem
)
OutputPart: TypeAlias = OutputText | ReasoningText


# -- the response -------------------------------------------------------------------------------


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the prompt tokens. `cached_tokens` were read from the prefix cache; cache writes are not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the generated tokens. `reasoning_tokens` is the number of reasoning tokens."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a response ended early."""

    reason: str


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A function tool, as responses show it."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class CustomTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    """A tool with text input, as responses show it."""

    name: str
    description: str | None
    format: dict[str, Any] | None


class NamespaceTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="namespace"):
    """A namespace of tools, as responses show it."""

    name: str
    description: str | None
    tools: list[FunctionTool | CustomTool]


class McpTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp"):
    """An MCP server, as responses show it: without credentials."""

    server_label: str
    server_url: str | None
    server_description: str | None
    allowed_tools: list[str] | McpToolFilter | None
    require_approval: str | McpApprovalFilter
    headers: None = None


class ReasoningShown(msgspec.Struct, frozen=True, kw_only=True):
    """The requested reasoning settings."""

    effort: str | None
    summary: str | None


class TextShown(msgspec.Struct, frozen=True, kw_only=True):
    """The requested text settings."""

    format: TextFormat
    verbosity: str | None


class ConversationShown(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation that a response belongs to."""

    id: str


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response in any state."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool
    conversation: ConversationShown | UnsetType = UNSET
    error: ResponseFailure | None = None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningShown
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: TextShown
    tool_choice: str | ResponsesToolChoice
    tools: list[FunctionTool | CustomTool | NamespaceTool | McpTool]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Confirms that a stored response was deleted."""

    id: str
    object: str = "response"
    deleted: bool = True


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The length of a prompt."""

    object: str = "response.input_tokens"
    input_tokens: int


class CompactionItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="compaction"):
    """A summary of a conversation, for the input of later requests. `encrypted_content` is for this server only."""

    id: str
    encrypted_content: str


class CompactedMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message of the user that a compaction keeps."""

    id: str
    role: str = "user"
    status: str = "completed"
    content: list[dict[str, Any]]


class CompactedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A shorter conversation: the messages of the user, and one item in place of all others."""

    id: str
    object: str = "response.compaction"
    created_at: int
    output: list[CompactedMessage | CompactionItem]
    usage: ResponseUsage


class InputItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a response's input items; ids are null if the page is empty."""

    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
