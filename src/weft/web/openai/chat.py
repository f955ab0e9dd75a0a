"""/v1/chat/completions: converts the body to a `Turn`, and the turn's events to an answer or its chunks."""

from dataclasses import asdict
from functools import partial
from itertools import count

import msgspec
from msgspec import UNSET

from weft.core.aio.scores import let_go, write_scores
from weft.core.errors import BadRequest
from weft.core.values.logprobs import num_scores
from weft.schema.chat import (
    ChatAnswer,
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatMessage,
    FunctionCall,
    NamedToolChoice,
    ToolBody,
    ToolCallBody,
)
from weft.text.content import joined_text
from weft.web.chat.fold import WholeAnswer, WholeTurn, fold
from weft.web.chat.prompt import trusted_template
from weft.web.chat.run import run_turn
from weft.web.chat.tools import is_forced
from weft.web.chat.turn import NamedTool, Tool, ToolChoice, Turn
from weft.web.http.endpoint import Answer
from weft.web.inference.call import (
    ModelCall,
    check_repeated,
    check_streamable,
    model_endpoint,
    to_details,
    to_usage,
)
from weft.web.inference.fields import (
    REFUSED_BESIDE_MEDIA,
    beyond_openai,
    num_logprobs,
    refuse_unsupported,
    template_kwargs,
    to_length_penalty,
    to_params,
)
from weft.web.inference.logprobs import to_prompt_logprobs
from weft.web.openai.chat_stream import ChatShape, chat_stream

# This API's name of the parameter that the engine calls `logprobs`, which is a switch here.
_NAMES = {"logprobs": "top_logprobs"}
_NEWER_NAMES = {**_NAMES, "max_tokens": "max_completion_tokens"}
EXAMPLE = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}


@model_endpoint(
    "POST /v1/chat/completions",
    body=ChatBody,
    example=EXAMPLE,
    deviations=beyond_openai,
    answer=ChatAnswer,
    event=ChatChunk,
)
async def create_chat_completion(call: ModelCall) -> Answer:
    """The next message of a conversation, in one piece or streamed"""
    body: ChatBody = call.body
    turn = to_turn(call, body)
    shape = to_shape(call, body, turn)
    if body.stream:
        return chat_stream(call.served, turn, shape)
    whole = await fold(run_turn(call.served, turn))
    if turn.params.logprobs is None and turn.params.prompt_logprobs is None:
        return to_answer(whole, shape)
    of_answers = sum(num_scores(answer.logprobs) for answer in whole.answers)
    answer = await write_scores(
        num_scores(whole.prompt_logprobs) + of_answers, partial(to_answer, whole, shape)
    )
    await let_go(whole.prompt_logprobs, *(one.logprobs for one in whole.answers))
    return answer


# -- body to turn -------------------------------------------------------------------------------


def to_turn(call: ModelCall, body: ChatBody) -> Turn:
    """Converts a body to a turn; every field of the body is used or refused."""
    refuse_unsupported(body, REFUSED_BESIDE_MEDIA)
    check_streamable(body)
    tools = tuple(map(_tool, body.tools or (), count()))
    params = to_params(
        body,
        call.served.client.model_config.default_sampling_params,
        max_tokens=_max_tokens(body),
        logprobs=num_logprobs(body, is_on=bool(body.logprobs), switch="logprobs to be true"),
    )
    choice = to_choice(body, tools)
    if is_forced(choice) and body.response_format is not None:
        # The format is for the content, and an answer with a forced call has none.
        params = msgspec.structs.replace(params, structured_outputs=None)
    if body.add_generation_prompt is None:  # unless the last message is to be continued
        adds_prompt = not body.continue_final_message
    else:
        adds_prompt = body.add_generation_prompt
    return Turn(
        options=call.request_options(body.priority),
        messages=body.messages,
        params=params,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        documents=body.documents,
        chat_template=trusted_template(call.served, body.chat_template),
        template_kwargs=template_kwargs(
            body.reasoning_effort, body.verbosity, body.chat_template_kwargs
        ),
        add_generation_prompt=adds_prompt,
        continue_final_message=bool(body.continue_final_message),
        add_special_tokens=bool(body.add_special_tokens),
        include_reasoning=body.include_reasoning is not False,
        is_streamed=bool(body.stream),
        truncation_side=body.truncation_side,
        cache_salt=body.cache_salt,
        length_penalty=to_length_penalty(call.served.client.info.limits, body, params),
        mm_processor_kwargs=body.mm_processor_kwargs,
        names=_NAMES if body.max_completion_tokens is None else _NEWER_NAMES,
    )


def to_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    """Returns the tool choice. An empty list of tools leaves no choice."""
    choice = body.tool_choice
    if choice is None:
        return "auto"
    if choice == "none":
        return "none"
    if body.tools is None:
        raise BadRequest("tool_choice", "tool_choice needs tools")
    match choice:
        case "auto" | "required":
            return choice if tools else "none"
        case NamedToolChoice(type="function", function=function) if function is not None:
            return NamedTool(function.name)
    raise BadRequest(
        "tool_choice",
        'tool_choice must be "none", "auto", "required" or '
        '{"type": "function", "function": {"name": ...}}',
    )


def _tool(tool: ToolBody, position: int) -> Tool:
    function = tool.function
    if tool.type != "function" or function is None:
        raise BadRequest(
            "tools",
            f"tools[{position}] must be of type function and hold one, got type {tool.type[:40]!a}",
        )
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        is_strict=bool(function.strict),
    )


def _max_tokens(body: ChatBody) -> int | None:
    """`max_completion_tokens`, or the older `max_tokens`."""
    newer, older = body.max_completion_tokens, body.max_tokens
    if newer is not None and older is not None and newer != older:
        raise BadRequest(
            "max_tokens",
            f"max_tokens is {older} and max_completion_tokens {newer}: they are two names of the same setting",
        )
    return older if newer is None else newer


# -- whole turn to answer -----------------------------------------------------------------------


def to_shape(call: ModelCall, body: ChatBody, turn: Turn) -> ChatShape:
    """Returns the form of the answer."""
    details = to_details(call, body, reads_reasoning=True)
    role = call.served.options.response_role
    if not turn.add_generation_prompt and body.messages:
        role = str(body.messages[-1].get("role"))
    echo = _echoed(body, role, turn.params.n) if body.echo and body.messages else ""
    return ChatShape(
        head=call.heading("chatcmpl"),
        details=details,
        role=role,
        num_answers=turn.params.n,
        echo=echo,
        has_forced_call=is_forced(turn.tool_choice),
        has_prompt_text=bool(body.return_prompt_text),
        logprobs=call.logprob_writer(
            body.top_logprobs,
            body.logprob_token_ids,
            is_naming_by_id=details.is_naming_by_id,
        ),
    )


def to_answer(turn: WholeTurn, shape: ChatShape) -> ChatAnswer:
    """The answer of a finished turn, in one piece."""
    details = shape.details
    return ChatAnswer(
        **asdict(shape.head),
        choices=[whole_choice(answer, shape) for answer in turn.answers],
        usage=to_usage(
            details,
            num_prompt_tokens=len(turn.prompt_token_ids),
            num_completion_tokens=sum(len(answer.token_ids) for answer in turn.answers),
            num_cached_tokens=turn.num_cached_tokens,
            num_reasoning_tokens=sum(answer.num_reasoning_tokens for answer in turn.answers),
        ),
        prompt_logprobs=to_prompt_logprobs(turn.prompt_logprobs),
        prompt_token_ids=turn.prompt_token_ids if details.has_token_ids else None,
        prompt_text=turn.prompt if shape.has_prompt_text else UNSET,
        kv_transfer_params=turn.kv_transfer_params,
    )


def whole_choice(answer: WholeAnswer, shape: ChatShape) -> ChatChoice:
    """The choice of one finished answer."""
    return ChatChoice(
        index=answer.index,
        message=ChatMessage(
            role=shape.role,
            content=_content(answer, shape),
            reasoning=answer.reasoning,
            reasoning_content=answer.reasoning,
            tool_calls=[
                ToolCallBody(
                    id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments)
                )
                for call in answer.calls
            ],
        ),
        logprobs=None if answer.logprobs is None else shape.logprobs.chat(answer.logprobs),
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        token_ids=answer.token_ids if shape.details.has_token_ids else None,
    )


def _content(answer: WholeAnswer, shape: ChatShape) -> str | None:
    """Null if there are only calls or reasoning; empty for a forced call."""
    content = answer.content
    if content is None and (shape.has_forced_call or not (answer.calls or answer.reasoning)):
        content = ""
    return content if not shape.echo else shape.echo + (content or "")


def _echoed(body: ChatBody, role: str, num_answers: int) -> str:
    """The last message's text, if the answer continues that message."""
    if body.messages[-1].get("role") != role:
        return ""
    text = joined_text(body.messages[-1].get("content"))
    check_repeated("echo", num_answers * len(text))
    return text
