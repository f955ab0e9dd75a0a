"""Bodies of /v1/responses, and the kinds of items in their `input`."""

from typing import Any

import msgspec

from weft.schema.sampling import SamplingFields, StreamOptions

# -- a request ----------------------------------------------------------------------------------


class ReasoningFields(msgspec.Struct, frozen=True, kw_only=True):
    """Reasoning settings. `generate_summary` is the older name of `summary`."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format of the text: plain text, any JSON, or JSON of a schema."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextFields(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class McpToolFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Selects tools of an MCP server: by name, or the tools that the server declares read-only."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class McpApprovalFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The MCP tools that are called without approval; all others need approval."""

    always: McpToolFilter | None = None
    never: McpToolFilter | None = None


class ResponsesTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the client's, whose `parameters` are a JSON schema; or, of type mcp, a server's tools.

    Of type custom, a tool whose input is text; of type namespace, `tools` under one name.
    """

    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: list[str] | None = None
    is_async: bool | None = msgspec.field(default=None, name="async")
    defer_loading: bool | None = None
    output_schema: dict[str, Any] | None = None
    format: dict[str, Any] | None = None
    tools: list["ResponsesTool"] | None = None
    server_label: str | None = None
    server_url: str | None = None
    server_description: str | None = None
    allowed_tools: list[str] | McpToolFilter | None = None
    require_approval: str | McpApprovalFilter | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None


class ResponsesToolChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tool choice: one function or MCP tool by name, any tool of a server, or a list of tools to choose from."""

    type: str
    name: str | None = None
    server_label: str | None = None
    mode: str | None = None
    tools: list[dict[str, Any]] | None = None


class ConversationReference(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation by its id."""

    id: str


class BackgroundOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How soon a background response is needed. `continuation_id` is a label of related requests."""

    completion_window: str | None = None
    continuation_id: str | None = None


class ResponsesBody(SamplingFields, frozen=True, kw_only=True):
    """A request for a response. `input` is a text, or items of the types below."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    previous_input_messages: list[dict[str, Any]] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    include_reasoning: bool | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    client_metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    request_id: str | None = None
    enable_response_messages: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    access_programs: dict[str, Any] | None = None
    background_options: BackgroundOptions | None = None
    context_management: list[dict[str, Any]] | None = None
    conversation: str | ConversationReference | None = None
    image: dict[str, Any] | None = None
    moderation: Any = None
    prompt: dict[str, Any] | None = None


class ResponseCreateEvent(ResponsesBody, frozen=True, kw_only=True):
    """The event that asks for a response over a WebSocket. Requests with the same `stream_id` are answered in order.
    Without `generate`, the prompt is computed and the response has no output.
    """

    type: str = "response.create"
    input: str | list[dict[str, Any]] = []
    stream_id: str | None = None
    generate: bool | None = None


class ResponseSteerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event that adds input to a response while it is made over a WebSocket."""

    type: str = "response.steer"
    previous_response_id: str
    input: Any


class InputTokensBody(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt whose tokens are counted, or a conversation to be compacted."""

    input: str | list[dict[str, Any]] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    truncation: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    image: dict[str, Any] | None = None


# -- items of its input -------------------------------------------------------------------------


class MessageInput(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the conversation."""

    role: str
    content: str | list[dict[str, Any]]
    id: str | None = None
    status: str | None = None


class ReasoningInput(msgspec.Struct, frozen=True, kw_only=True):
    """Reasoning of an earlier response, returned as input."""

    id: str | None = None
    summary: list[dict[str, Any]] = []
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None
    status: str | None = None


class FunctionCallInput(msgspec.Struct, frozen=True, kw_only=True):
    """A function call of an earlier response, returned as input."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: str | None = None


class CustomCallInput(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a custom tool in an earlier response, returned as input."""

    call_id: str
    name: str
    input: str
    id: str | None = None
    status: str | None = None
    namespace: str | None = None


class ShellCallInput(msgspec.Struct, frozen=True, kw_only=True):
    """A shell command of the model, run by the client and returned as input."""

    call_id: str
    action: dict[str, Any]
    id: str | None = None
    status: str | None = None


class FunctionOutputInput(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a function call."""

    call_id: str
    output: str | list[dict[str, Any]]
    id: str | None = None
    status: str | None = None


class CompactionInput(msgspec.Struct, frozen=True, kw_only=True):
    """A summary in place of earlier items, as `/v1/responses/compact` makes it."""

    encrypted_content: str
    id: str | None = None


class ItemReferenceInput(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to an item of a stored response."""

    id: str


class McpListToolsInput(msgspec.Struct, frozen=True, kw_only=True):
    """The list of an MCP server's tools in an earlier response, returned as input."""

    server_label: str
    tools: list[dict[str, Any]]
    id: str | None = None
    error: str | None = None


class McpCallInput(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an MCP tool with its result, returned as input."""

    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: dict[str, Any] | str | None = None
    approval_request_id: str | None = None
    id: str | None = None
    status: str | None = None


class McpApprovalResponseInput(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's approval or refusal of an MCP tool call."""

    approval_request_id: str
    approve: bool
    reason: str | None = None
    id: str | None = None
