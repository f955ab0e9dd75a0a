"""Bodies of /v1/chat/completions. In chunks, `UNSET` fields are left out, and None is written as null."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from weft.schema.sampling import GenerationFields
from weft.schema.usage import ChatLogprobs, PromptLogprobs, Usage

# -- requests -----------------------------------------------------------------------------------


class FunctionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct, frozen=True, kw_only=True):
    """A tool; functions are the only type."""

    type: str = "function"
    function: FunctionBody | None = None


class FunctionName(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a function."""

    name: str


class NamedToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A tool choice that names the function which the model must call."""

    type: str = "function"
    function: FunctionName | None = None


class ChatFields(GenerationFields, frozen=True, kw_only=True):
    """The fields of a chat besides its messages."""

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolBody] | None = None
    tool_choice: str | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    return_prompt_text: bool | None = None


class ChatBody(ChatFields, frozen=True, kw_only=True):
    """A request for the next message of a conversation."""

    messages: list[dict[str, Any]]


class BatchChatBody(ChatFields, frozen=True, kw_only=True):
    """A request for the next messages of several conversations."""

    messages: list[list[dict[str, Any]]]


# -- what is answered ---------------------------------------------------------------------------


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """A function call of the model. `arguments` is JSON text as the model wrote it."""

    name: str
    arguments: str


class ToolCallBody(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the model."""

    id: str
    function: FunctionCall
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message that the model generated. `reasoning_content` is the older name of `reasoning`."""

    role: str
    content: str | None
    refusal: None = None
    reasoning: str | None
    reasoning_content: str | None
    tool_calls: list[ToolCallBody]


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the `n` answers. `stop_reason` is the stop string or token id that ended it."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A complete chat completion."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str | None = None
    system_fingerprint: str | None = None
    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: list[int] | None
    prompt_text: str | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | None = None


# -- what is streamed ---------------------------------------------------------------------------


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New parts of a function call: the name is sent once, the arguments in pieces."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New parts of the tool call number `index` of an answer. Id and type are sent together with the function's
    name.
    """

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New parts of an answer. Absent fields are omitted and not null, because clients append every field that is
    present.
    """

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The new parts of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_text: str | UnsetType = UNSET
