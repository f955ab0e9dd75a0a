"""Converts a body of /v1/responses to a `Turn`, and to the initial response; without side effects."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from weft.core.checks.structured import check_strict, validate_structured_outputs
from weft.core.errors import BadRequest
from weft.core.values.types import SamplingParams, StructuredOutputsParams
from weft.schema.response_object import (
    ConversationShown,
    CustomTool,
    FunctionTool,
    McpTool,
    NamespaceTool,
    ReasoningShown,
    ResponseObject,
    TextShown,
)
from weft.schema.responses import (
    ReasoningFields,
    ResponsesBody,
    ResponsesTool,
    ResponsesToolChoice,
    TextFields,
    TextFormat,
)
from weft.text.content import Place
from weft.web.chat.prompt import trusted_template
from weft.web.chat.tools import is_forced
from weft.web.chat.turn import NamedTool, Tool, ToolChoice, Turn
from weft.web.http.endpoint import Call, Deviation
from weft.web.inference.call import ModelCall
from weft.web.inference.fields import (
    beyond_openai,
    num_logprobs,
    report_unheld,
    template_kwargs,
    to_params,
)
from weft.web.items.client_tools import CLIENT_TYPES, PASSED_OVER, to_functions, to_shown
from weft.web.items.item_reader import Message
from weft.web.items.items import left_out_kinds
from weft.web.mcp.toolbox import Toolbox
from weft.web.responses.unsupported import LOGPROBS, check_tool

_MAX_TOP_LOGPROBS = 20
_PLAIN = TextFormat(type="text")


def to_turn(
    call: ModelCall,
    body: ResponsesBody,
    messages: Sequence[Message],
    toolbox: Toolbox | None = None,
) -> Turn:
    """Converts a body to a turn. `messages` are the earlier conversation, without its instructions.

    If `toolbox` is None, everything is checked except the tools of MCP servers.
    """
    choice = to_choice(body)
    instructions = (
        () if body.instructions is None else ({"role": "system", "content": body.instructions},)
    )
    return Turn(
        options=call.request_options(body.priority),
        messages=(*instructions, *messages),
        params=_params(call, body, choice),
        tools=_allowed(body, _tools(body, toolbox)),
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        call_id_prefix="call_",
        chat_template=trusted_template(call.served, body.chat_template),
        template_kwargs=template_kwargs(
            (body.reasoning or ReasoningFields()).effort,
            (body.text or TextFields()).verbosity,
            body.chat_template_kwargs,
        ),
        include_reasoning=body.include_reasoning is not False,
        # Streamed inside the engine: logprobs of text must be separated from those of reasoning, and a background run
        # must be seen to begin.
        is_streamed=bool(body.stream or body.background or wants_logprobs(body)),
        truncation_side=body.truncation_side or ("left" if _is_cut(body) else None),
        cache_salt=body.cache_salt,
        mm_processor_kwargs=body.mm_processor_kwargs,
    )


def beyond_api(body: ResponsesBody) -> Iterable[Deviation]:
    """Yields the parts of a body that go beyond the API, or are accepted without effect."""
    form = None if body.text is None else body.text.format
    yield from beyond_openai(body)
    yield from report_unheld("text.format", None if form is None else form.schema)
    for tool in body.tools or ():
        if tool.type in PASSED_OVER:
            yield Deviation(
                "tools", f"the tool {tool.type} is left out: this server does not run it"
            )
    yield from map(_left_out, left_out_kinds(body.input))


def _left_out(kind: str) -> Deviation:
    return Deviation(
        "input", f"{kind} is removed from the input: the model of this server cannot read it"
    )


def to_response(
    body: ResponsesBody, params: SamplingParams, *, response_id: str, model: str, created_at: int
) -> ResponseObject:
    """The response at its beginning: the request's fields, without any output."""
    text, reasoning = body.text or TextFields(), body.reasoning or ReasoningFields()
    return ResponseObject(
        id=response_id,
        created_at=created_at,
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        conversation=(
            UNSET if body.conversation is None else ConversationShown(id=conversation_id(body))
        ),
        frequency_penalty=params.frequency_penalty,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        presence_penalty=params.presence_penalty,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningShown(
            effort=reasoning.effort, summary=reasoning.summary or reasoning.generate_summary
        ),
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=params.temperature,
        text=TextShown(format=text.format or _PLAIN, verbosity=text.verbosity),
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=[_shown(tool) for tool in body.tools or () if tool.type not in PASSED_OVER],
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def conversation_id(body: ResponsesBody) -> str:
    """The id of the conversation that a body names."""
    named = body.conversation
    assert named is not None
    return named if isinstance(named, str) else named.id


def wants_logprobs(body: ResponsesBody) -> bool:
    """True if tokens have logprobs in the answer."""
    return LOGPROBS in (body.include or ())


# -- tools --------------------------------------------------------------------------------------


def unforced(body: ResponsesBody) -> ResponsesBody:
    """The body for the turn after a call: a forced tool choice no longer applies."""
    choice = body.tool_choice
    if isinstance(choice, ResponsesToolChoice) and choice.type == "allowed_tools":
        return msgspec.structs.replace(
            body, tool_choice=msgspec.structs.replace(choice, mode="auto")
        )
    return body if choice == "none" else msgspec.structs.replace(body, tool_choice="auto")


def to_choice(body: ResponsesBody) -> ToolChoice:
    """Returns the tool choice."""
    choice = body.tool_choice
    match choice:
        case None | "auto":
            return "auto"
        case "none" | "required":
            return choice
        case ResponsesToolChoice(type="function" | "custom", name=str(name), server_label=None):
            return NamedTool(name)
        case ResponsesToolChoice(type="mcp", name=str(name), server_label=str()):
            return NamedTool(name)
        case ResponsesToolChoice(type="mcp", server_label=str()):
            return "required"
        case ResponsesToolChoice(type="allowed_tools", mode="auto" | "required" as mode):
            return mode
        case ResponsesToolChoice(type="allowed_tools"):
            raise BadRequest("tool_choice", 'tool_choice.mode must be "auto" or "required"')
        case ResponsesToolChoice(type=kind):
            shown = kind
        case _:
            shown = choice
    raise BadRequest(
        "tool_choice",
        'tool_choice must be "none", "auto", "required", a function with its name, mcp with a '
        f"server_label, or allowed_tools with mode and tools; got {shown[:40]!a}",
    )


def _tools(body: ResponsesBody, toolbox: Toolbox | None) -> list[tuple[str | None, Tool]]:
    """Returns all tools, each with the label of its server; None for the client's functions."""
    place = Place("tools", "tools")
    tools: list[tuple[str | None, Tool]] = []
    for position, tool in enumerate(body.tools or ()):
        check_tool(tool, place[position])
        if tool.type in CLIENT_TYPES:
            tools += ((None, function) for function in to_functions(tool))
        elif toolbox is not None and tool.server_label is not None:
            tools += (
                (
                    tool.server_label,
                    Tool(name=one.name, description=one.description, parameters=one.input_schema),
                )
                for one in toolbox.listed(tool.server_label)
            )
    return tools


def _allowed(body: ResponsesBody, tools: Sequence[tuple[str | None, Tool]]) -> tuple[Tool, ...]:
    """Returns the tools that the tool choice allows."""
    choice = body.tool_choice
    if not isinstance(choice, ResponsesToolChoice):
        return tuple(tool for _, tool in tools)
    labels = {tool.server_label for tool in body.tools or () if tool.type == "mcp"}
    if choice.type == "mcp":
        allowed = [_wanted({"type": "mcp", "server_label": choice.server_label}, tools, labels)]
    elif choice.type == "allowed_tools":
        allowed = [_wanted(tool, tools, labels) for tool in choice.tools or ()]
    else:
        allowed = [(None, None), *((label, None) for label in labels)]
    return tuple(
        tool for label, tool in tools if (label, None) in allowed or (label, tool.name) in allowed
    )


def _wanted(
    wanted: Mapping[str, Any],
    tools: Sequence[tuple[str | None, Tool]],
    labels: Collection[str | None],
) -> tuple[str | None, str | None]:
    """A server's label and a tool's name; no name stands for all tools of the server."""
    name, label = wanted.get("name"), wanted.get("server_label")
    match wanted.get("type"):
        case "function" if isinstance(name, str):
            if (None, name) not in [(owner, tool.name) for owner, tool in tools]:
                raise BadRequest(
                    "tool_choice",
                    f"tool_choice.tools names {name[:64]!a}, which is none of the tools",
                )
            return None, name
        case "mcp" if isinstance(label, str) and isinstance(name, str | None):
            if label not in labels:
                raise BadRequest(
                    "tool_choice",
                    f"tool_choice names the server {label[:64]!a}, which is none of the tools",
                )
            return label, name
    raise BadRequest(
        "tool_choice",
        "tool_choice.tools must be functions with their names, or mcp with a server_label",
    )


def _shown(tool: ResponsesTool) -> FunctionTool | CustomTool | NamespaceTool | McpTool:
    """A tool as the response shows it."""
    if tool.type == "mcp":
        return McpTool(
            server_label=tool.server_label or "",
            server_url=tool.server_url and tool.server_url.partition("?")[0],
            server_description=tool.server_description,
            allowed_tools=tool.allowed_tools,
            require_approval=tool.require_approval or "always",
        )
    return to_shown(tool)


# -- sampling -----------------------------------------------------------------------------------


def _params(call: Call, body: ResponsesBody, choice: ToolChoice) -> SamplingParams:
    context = call.served.client.info.limits.max_sequence_len
    return _cut_to_fit(_uncut_params(call, body, choice), body, context)


def _is_cut(body: ResponsesBody) -> bool:
    """True if an input that is too long is truncated at its beginning instead of refused."""
    return body.truncation == "auto"


def _cut_to_fit(params: SamplingParams, body: ResponsesBody, context: int) -> SamplingParams:
    """Returns the parameters with a prompt truncated so that the answer has room."""
    room = context - (params.max_tokens or 1)
    if not _is_cut(body) or params.truncate_prompt_tokens is not None or room < 1:
        return params
    return msgspec.structs.replace(params, truncate_prompt_tokens=room)


def _uncut_params(call: Call, body: ResponsesBody, choice: ToolChoice) -> SamplingParams:
    params = to_params(
        body,
        call.served.client.model_config.default_sampling_params,
        max_tokens=body.max_output_tokens,
        logprobs=_num_logprobs(body),
    )
    constraint = _constraint(None if body.text is None else body.text.format)
    if constraint is None:
        return params
    if params.structured_outputs is not None:
        raise BadRequest(
            "structured_outputs",
            "only one of text.format and structured_outputs can set the form of the answer",
        )
    if is_forced(choice):
        # The format is for the text, and an answer with a forced call has none.
        return params
    return msgspec.structs.replace(params, structured_outputs=constraint)


def _num_logprobs(body: ResponsesBody) -> int | None:
    top = body.top_logprobs
    if top is not None and not 0 <= top <= _MAX_TOP_LOGPROBS:
        raise BadRequest(
            "top_logprobs", f"top_logprobs must be 0 to {_MAX_TOP_LOGPROBS}, got {top}", top
        )
    switch = f"include to hold {LOGPROBS}"
    return num_logprobs(body, is_on=wants_logprobs(body), switch=switch)


def _constraint(form: TextFormat | None) -> StructuredOutputsParams | None:
    match form:
        case None | TextFormat(type="text"):
            return None
        case TextFormat(type="json_object"):
            return StructuredOutputsParams(json_object=True)
        case TextFormat(type="json_schema", schema=dict(schema)):
            if form.strict:
                check_strict("text.format", "text.format", schema)
            return _schema_constraint(schema)
        case TextFormat(type="json_schema"):
            raise BadRequest("text.format", "text.format of type json_schema needs a schema")
    raise BadRequest(
        "text.format",
        f"text.format.type must be text, json_object or json_schema, got {form.type[:40]!a}",
    )


def _schema_constraint(schema: dict[str, Any]) -> StructuredOutputsParams:
    constraint = StructuredOutputsParams(json=schema)
    try:
        validate_structured_outputs(constraint)
    except BadRequest as error:
        raise BadRequest("text.format", f"text.format: {error}") from error
    return constraint
