"""The events of a streamed response. `sequence_number` numbers all events from 0."""

from typing import TypeAlias

import msgspec

from weft.schema.response_object import OutputItem, OutputPart, ResponseObject


class EventLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """An alternative token with its logprob. Events leave out the token's bytes."""

    token: str
    logprob: float


class EventTokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The sampled token with its logprob and alternatives."""

    token: str
    logprob: float
    top_logprobs: list[EventLogprob]


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """An event with the whole response."""

    sequence_number: int
    response: ResponseObject


class ResponseCreated(ResponseEvent, frozen=True, kw_only=True, tag="response.created"):
    """The response was created."""


class ResponseQueued(ResponseEvent, frozen=True, kw_only=True, tag="response.queued"):
    """The response waits in the queue of background responses."""


class ResponseInProgress(ResponseEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """The engine has started the response."""


class ResponseCompleted(ResponseEvent, frozen=True, kw_only=True, tag="response.completed"):
    """The response is complete."""


class ResponseIncomplete(ResponseEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """The response ended early: at a limit, or cancelled; see its status."""


class ResponseFailed(ResponseEvent, frozen=True, kw_only=True, tag="response.failed"):
    """The response failed; see its error."""


class ItemEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """An event with a whole output item."""

    sequence_number: int
    output_index: int
    item: OutputItem


class ItemAdded(ItemEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An empty output item begins."""


class ItemDone(ItemEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """The output item is complete."""


class WithinItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """An event about a part of an output item."""

    sequence_number: int
    item_id: str
    output_index: int


class WithinPart(WithinItem, frozen=True, kw_only=True):
    """An event about a content part of an output item."""

    content_index: int


class PartEvent(WithinPart, frozen=True, kw_only=True):
    """An event with a whole content part."""

    part: OutputPart


class PartAdded(PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """An empty content part begins."""


class PartDone(PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The content part is complete."""


class TextDelta(WithinPart, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """A new piece of a message's text."""

    delta: str
    logprobs: list[EventTokenLogprob]


class TextDone(WithinPart, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The complete text of a content part."""

    text: str
    logprobs: list[EventTokenLogprob]


class ReasoningDelta(WithinPart, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """A new piece of the reasoning."""

    delta: str


class ReasoningDone(WithinPart, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """The complete text of the reasoning."""

    text: str


class ArgumentsDelta(
    WithinItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """A new piece of a function call's arguments."""

    delta: str


class ArgumentsDone(
    WithinItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """The complete arguments of a function call."""

    arguments: str


class McpArgumentsDelta(
    WithinItem, frozen=True, kw_only=True, tag="response.mcp_call_arguments.delta"
):
    """A new piece of an MCP tool call's arguments."""

    delta: str


class McpArgumentsDone(
    WithinItem, frozen=True, kw_only=True, tag="response.mcp_call_arguments.done"
):
    """The complete arguments of an MCP tool call."""

    arguments: str


class McpCallInProgress(WithinItem, frozen=True, kw_only=True, tag="response.mcp_call.in_progress"):
    """An MCP tool call is being generated or made."""


class McpCallCompleted(WithinItem, frozen=True, kw_only=True, tag="response.mcp_call.completed"):
    """The MCP tool call returned an output."""


class McpCallFailed(WithinItem, frozen=True, kw_only=True, tag="response.mcp_call.failed"):
    """The MCP tool call returned an error."""


class McpListInProgress(
    WithinItem, frozen=True, kw_only=True, tag="response.mcp_list_tools.in_progress"
):
    """The tools of an MCP server are being listed."""


class CustomInputDelta(
    WithinItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"
):
    """A new piece of the input of a custom tool call."""

    delta: str


class CustomInputDone(
    WithinItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"
):
    """The complete input of a custom tool call."""

    input: str


class McpListCompleted(
    WithinItem, frozen=True, kw_only=True, tag="response.mcp_list_tools.completed"
):
    """The tools of the MCP server are listed."""


StreamEvent: TypeAlias = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
    | McpArgumentsDelta
    | McpArgumentsDone
    | McpCallInProgress
    | McpCallCompleted
    | McpCallFailed
    | McpListInProgress
    | McpListCompleted
)
