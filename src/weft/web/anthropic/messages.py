"""/v1/messages: converts the body to a `Turn`, and the turn's events to a message or a stream."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

from weft.core.errors import BadRequest, ContextLengthExceeded
from weft.core.values.media import takes
from weft.core.values.types import SamplingParams, StructuredOutputsParams
from weft.schema.anthropic import (
    CountAnswer,
    MessageAnswer,
    MessagesBody,
    OutputFormat,
    PromptBody,
    StreamEvent,
    ThinkingBody,
)
from weft.schema.tokens import TokensBody
from weft.text.content import Place
from weft.text.prompts import check_length
from weft.web.anthropic.conversation import is_prefill, to_messages
from weft.web.anthropic.tools import is_parallel, to_choice, to_tools
from weft.web.anthropic.unsupported import ThreadUnsupported, beyond_api, refuse_unsupported
from weft.web.anthropic.writer import MessageShape, MessageWriter
from weft.web.chat.prompt import render_turn
from weft.web.chat.run import prepare_turn, run_turn
from weft.web.chat.tools import check_tools, is_forced
from weft.web.chat.turn import Turn
from weft.web.http.endpoint import Answer, Call, Dialect, Events
from weft.web.http.sse import named_event
from weft.web.inference.call import ModelCall, model_endpoint
from weft.web.inference.rendered import num_prompt_tokens, refuse_media, to_tokens_body
from weft.web.served import Served

# Fields that the newer version dropped are accepted with both; versions before the first one listed have unnamed
# events. The beta header has no effect: fields of betas are accepted or refused like all others.
_VERSIONS = ("2023-06-01", "2026-10-21")
# Templates with effort levels have three of them.
_EFFORTS = {"xhigh": "high", "max": "high"}
# This API's names of parameters, by the engine's names in error messages.
_NAMES = {"stop": "stop_sequences", "json": "output_config.format", "prompt": "messages"}
_EXAMPLE = {"messages": [{"role": "user", "content": "Hello!"}]}


@model_endpoint(
    "POST /v1/messages",
    dialect=Dialect.ANTHROPIC,
    body=MessagesBody,
    deviations=beyond_api,
    example={**_EXAMPLE, "max_tokens": 32},
    answer=MessageAnswer,
    event=StreamEvent,
)
async def create_message(call: ModelCall) -> Answer:
    """The next message of a conversation in Anthropic's words, in one piece or streamed"""
    body: MessagesBody = call.body
    check_version(call.headers)
    turn = to_turn(call, body)
    writer = MessageWriter(to_shape(call, body))
    events = message_events(call.served, turn, writer)
    if body.stream:
        return Events(_encoded(events))
    async with aclosing(events):
        async for _ in events:
            pass
    return writer.message


@model_endpoint(
    "POST /v1/messages/render",
    dialect=Dialect.ANTHROPIC,
    body=MessagesBody,
    deviations=beyond_api,
    example={**_EXAMPLE, "max_tokens": 32},
    answer=TokensBody,
)
async def render_message(call: ModelCall) -> Answer:
    """A conversation's prompt in tokens, as a body of /inference/v1/generate"""
    body: MessagesBody = call.body
    check_version(call.headers)
    turn = to_turn(call, body)
    with _own_names():
        request = (await prepare_turn(call.served, turn)).request
    refuse_media(request, "messages")
    return to_tokens_body(
        call, request, turn.params, request_id=f"msg_{call.label}", is_streamed=body.stream
    )


@model_endpoint(
    "POST /v1/messages/count_tokens",
    dialect=Dialect.ANTHROPIC,
    body=PromptBody,
    deviations=beyond_api,
    example=_EXAMPLE,
    answer=CountAnswer,
)
async def count_tokens(call: ModelCall) -> Answer:
    """Count the prompt tokens of a conversation"""
    body: PromptBody = call.body
    check_version(call.headers)
    turn = to_turn(call, body)
    check_tools(turn.tools, turn.tool_choice)
    rendered = await render_turn(call.served, turn)
    if rendered.media is not None:
        with _own_names():
            request = (await prepare_turn(call.served, turn)).request
        return CountAnswer(input_tokens=num_prompt_tokens(request, "messages"))
    text = rendered.text
    tokenizer = call.served.tokenizer
    check_length(len(text), tokenizer, call.served.client.info.limits)
    token_ids = await tokenizer.soon(
        len(text), partial(tokenizer.encode, text, add_special_tokens=turn.add_special_tokens)
    )
    return CountAnswer(input_tokens=len(token_ids))


def check_version(headers: Mapping[str, str]) -> None:
    """Refuses an unsupported version of the API; requests without a version are accepted."""
    version = headers.get("anthropic-version")
    if version is not None and version not in _VERSIONS:
        raise BadRequest(
            "anthropic-version",
            f"anthropic-version must be {' or '.join(_VERSIONS)}, got {version[:40]!a}",
        )


# -- body to turn -------------------------------------------------------------------------------


def to_turn(call: ModelCall, body: PromptBody) -> Turn:
    """Converts `body` to a turn; every field is used or refused."""
    refuse_unsupported(body)
    if isinstance(body, MessagesBody) and body.thread is not None:
        raise ThreadUnsupported
    if body.output_config is not None:
        refuse_unsupported(body.output_config, Place("output_config", "output_config"))
    tools = to_tools(body)
    takes_images = takes("image", call.served.client.model_config.media)
    messages = to_messages(body, takes_images=takes_images, tools=tools)
    continues = is_prefill(messages)
    return Turn(
        options=call.request_options(),
        messages=messages,
        params=_params(call, body),
        tools=tools,
        tool_choice=to_choice(body),
        parallel_tool_calls=is_parallel(body),
        template_kwargs=_template_kwargs(body),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        is_streamed=isinstance(body, MessagesBody) and bool(body.stream),
    )


def to_shape(call: ModelCall, body: MessagesBody) -> MessageShape:
    """Returns the form of the answer."""
    thinking = body.thinking
    return MessageShape(
        id=f"msg_{call.label}",
        model=call.model,
        shows_reasoning=thinking is None or thinking.display != "omitted",
        counts_reasoning=call.served.options.reasoning_parser is not None,
    )


def _params(call: Call, body: PromptBody) -> SamplingParams:
    """Returns sampling parameters; a count samples nothing, but invalid formats and budgets are still refused."""
    form = _constraint(body)
    max_tokens = body.max_tokens if isinstance(body, MessagesBody) else None
    budget = _thinking_budget(body.thinking, max_tokens)
    if not isinstance(body, MessagesBody):
        return SamplingParams()
    given = {
        name: value
        for name in ("temperature", "top_p", "top_k")
        if (value := getattr(body, name)) is not None
    }
    return SamplingParams(
        **{**call.served.client.model_config.default_sampling_params, **given},
        max_tokens=max_tokens,
        stop=body.stop_sequences,
        structured_outputs=form,
        # Without a reasoning parser the reasoning cannot be recognized, so the budget cannot be applied.
        thinking_token_budget=budget if call.served.options.reasoning_parser else None,
    )


def _constraint(body: PromptBody) -> StructuredOutputsParams | None:
    """Returns the constraint on the answer's text; None if the answer must be tool calls."""
    newer = None if body.output_config is None else body.output_config.format
    if newer is not None and body.output_format is not None:
        raise BadRequest("output_format", "output_format is the older name of output_config.format")
    form = newer or body.output_format
    if form is None:
        return None
    schema = _schema(form, "output_config.format" if newer else "output_format")
    return None if is_forced(to_choice(body)) else StructuredOutputsParams(json=schema)


def _schema(form: OutputFormat, at: str) -> dict[str, Any]:
    if form.type != "json_schema" or form.schema is None:
        raise BadRequest(at, f"{at} must be of type json_schema and hold a schema")
    return form.schema


def _thinking_budget(thinking: ThinkingBody | None, max_tokens: int | None) -> int | None:
    """Maximum number of reasoning tokens; None means no limit. `BadRequest` for contradictory fields."""
    if thinking is None:
        return None
    if thinking.type not in {"enabled", "adaptive", "disabled"}:
        raise BadRequest(
            "thinking",
            f"thinking.type must be enabled, adaptive or disabled, got {thinking.type[:40]!a}",
        )
    budget = thinking.budget_tokens
    if (budget is None) == (thinking.type == "enabled"):
        raise BadRequest("thinking", "thinking.budget_tokens and type enabled need each other")
    if thinking.type == "disabled" and thinking.display is not None:
        raise BadRequest(
            "thinking", "thinking.display must not be given when thinking.type is disabled"
        )
    if budget is not None and not 0 < budget < (max_tokens or budget + 1):
        raise BadRequest(
            "thinking", f"thinking.budget_tokens must be from 1 to below max_tokens, got {budget}"
        )
    return budget


def _template_kwargs(body: PromptBody) -> dict[str, Any]:
    """Returns the template's keyword arguments; fields that are not requested keep the template's defaults."""
    kwargs: dict[str, Any] = {}
    if body.thinking is not None:
        # Templates use either name for the switch.
        thinks = body.thinking.type != "disabled"
        kwargs["enable_thinking"] = kwargs["thinking"] = thinks
    if body.output_config is not None and body.output_config.effort is not None:
        effort = body.output_config.effort
        kwargs["reasoning_effort"] = _EFFORTS.get(effort, effort)
    return kwargs


# -- turn to message ----------------------------------------------------------------------------


async def message_events(
    served: Served, turn: Turn, writer: MessageWriter
) -> AsyncGenerator[StreamEvent, None]:
    """Yields all events of a message. Errors name this API's fields."""
    with _own_names():
        async with aclosing(run_turn(served, turn)) as events:
            async for event in events:
                for written in writer.events(event):
                    yield written


@contextmanager
def _own_names() -> Iterator[None]:
    """Renames fields in errors to the names of this API."""
    try:
        yield
    except BadRequest as error:
        name = _NAMES.get(error.parameter or "")
        if name is None or isinstance(error, ContextLengthExceeded):
            raise
        raise BadRequest(name, f"{name}: {error}", error.value) from error


async def _encoded(events: AsyncGenerator[StreamEvent, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield named_event(str(event.__struct_config__.tag), event)
