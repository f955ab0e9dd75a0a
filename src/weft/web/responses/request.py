"""A body of /v1/responses to a `Turn`, and to the response as it is when it begins. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.core.errors import BadRequest
from weft.core.structured import validate_structured_outputs
from weft.core.types import SamplingParams, StructuredOutputsParams
from weft.schema.response_object import FunctionTool, ReasoningShown, ResponseObject, TextShown
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
from weft.web.http.endpoint import Call
from weft.web.inference.call import ModelCall
from weft.web.inference.fields import num_logprobs, template_kwargs, to_params
from weft.web.responses.items import Message
from weft.web.responses.unsupported import LOGPROBS, check_tool

_MAX_TOP_LOGPROBS = 20
_PLAIN = TextFormat(type="text")


def to_turn(call: ModelCall, body: ResponsesBody, messages: list[Message]) -> Turn:
    """What `body` requests. `messages` are what was said before, its instructions apart."""
    choice = to_choice(body)
    instructions = (
        () if body.instructions is None else ({"role": "system", "content": body.instructions},)
    )
    return Turn(
        options=call.request_options(body.priority),
        messages=(*instructions, *messages),
        params=_params(call, body, choice),
        tools=to_tools(body),
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
        # Where tokens of reasoning are told from those of text, outputs have to come one by one; and a
        # run in the background is seen to begin.
        is_streamed=bool(body.stream or body.background or wants_logprobs(body)),
        truncation_side=body.truncation_side,
        cache_salt=body.cache_salt,
    )


def to_response(
    body: ResponsesBody, params: SamplingParams, *, response_id: str, model: str, created_at: int
) -> ResponseObject:
    """The response before anything has come of it: what was requested, and nothing else."""
    text, reasoning = body.text or TextFields(), body.reasoning or ReasoningFields()
    return ResponseObject(
        id=response_id,
        created_at=created_at,
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
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
        tools=[
            FunctionTool(
                name=tool.name or "",
                description=tool.description,
                parameters=tool.parameters,
                strict=bool(tool.strict),
            )
            for tool in body.tools or ()
        ],
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        user=body.user,
    )


def wants_logprobs(body: ResponsesBody) -> bool:
    """Whether tokens come with their log-probabilities."""
    return LOGPROBS in (body.include or ())


# -- tools --------------------------------------------------------------------------------------


def to_tools(body: ResponsesBody) -> tuple[Tool, ...]:
    """The functions that may be called: those on offer, or those of them that the choice allows."""
    place = Place("tools", "tools")
    tools = tuple(_tool(tool, place[position]) for position, tool in enumerate(body.tools or ()))
    choice = body.tool_choice
    if not isinstance(choice, ResponsesToolChoice) or choice.type != "allowed_tools":
        return tools
    allowed = {_allowed_name(tool, tools) for tool in choice.tools or ()}
    return tuple(tool for tool in tools if tool.name in allowed)


def to_choice(body: ResponsesBody) -> ToolChoice:
    """Who decides whether functions are called."""
    choice = body.tool_choice
    match choice:
        case None | "auto":
            return "auto"
        case "none" | "required":
            return choice
        case ResponsesToolChoice(type="function", name=str(name)):
            return NamedTool(name)
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
        'tool_choice must be "none", "auto", "required", a function with its name, or allowed_tools '
        f"with mode and tools; got {shown[:40]!a}",
    )


def _tool(tool: ResponsesTool, place: Place) -> Tool:
    check_tool(tool, place)
    return Tool(
        name=tool.name or "",
        description=tool.description,
        parameters=tool.parameters,
    )


def _allowed_name(tool: Mapping[str, Any], tools: tuple[Tool, ...]) -> str:
    name = tool.get("name")
    if tool.get("type") != "function" or not isinstance(name, str):
        raise BadRequest("tool_choice", "tool_choice.tools must be functions with their names")
    if all(name != known.name for known in tools):
        raise BadRequest(
            "tool_choice", f"tool_choice.tools names {name[:64]!a}, which is none of the tools"
        )
    return name


# -- sampling -----------------------------------------------------------------------------------


def _params(call: Call, body: ResponsesBody, choice: ToolChoice) -> SamplingParams:
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
            "only one of text.format and structured_outputs can decide what the answer looks like",
        )
    if is_forced(choice):
        # It is about the text, and an answer that has to be calls has none.
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
