"""/cohere/v2/chat: converts the body to a `Turn`, and the turn's events to a message or a stream."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any

from weft.core.aio.scores import write_scores
from weft.core.errors import BadRequest
from weft.core.values.kv_transfer import to_extra_args
from weft.core.values.logprobs import num_scores
from weft.core.values.params import IN_BODIES
from weft.core.values.types import SamplingParams, StructuredOutputsParams
from weft.schema.tokens import TokensBody
from weft.web.chat.run import prepare_turn, run_turn
from weft.web.chat.turn import Turn, TurnDelta, TurnEvent
from weft.web.cohere.bodies import CohereChatAnswer, CohereChatBody, CohereEvent, CohereFormat
from weft.web.cohere.cohere_messages import (
    to_choice,
    to_documents,
    to_messages,
    to_tools,
)
from weft.web.cohere.cohere_writer import CohereWriter
from weft.web.http.endpoint import Answer, Deviation, Dialect, Events
from weft.web.http.sse import DONE, data_event
from weft.web.inference.call import ModelCall, model_endpoint
from weft.web.inference.fields import report_unheld
from weft.web.inference.rendered import refuse_media, to_tokens_body

# This API's names of parameters, by the engine's names in error messages.
_NAMES = {"top_k": "k", "top_p": "p", "stop": "stop_sequences", "json": "response_format"}
# Parameters that have the same name in this API.
_SAME = tuple(p.name for p in IN_BODIES if p.name in CohereChatBody.__struct_fields__)
_EXAMPLE = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}
_NO_CITATIONS = ("OFF", "DISABLED")


def deviations(body: CohereChatBody) -> Iterable[Deviation]:
    """Yields the parts of the format's schema that no grammar enforces."""
    schema = None if body.response_format is None else _schema(body.response_format)
    yield from report_unheld("response_format", schema)


@model_endpoint(
    "POST /cohere/v2/chat",
    dialect=Dialect.COHERE,
    body=CohereChatBody,
    deviations=deviations,
    example=_EXAMPLE,
    answer=CohereChatAnswer,
    event=CohereEvent,
)
async def create_chat(call: ModelCall) -> Answer:
    """The next message of a conversation in Cohere's words, in one piece or streamed"""
    body: CohereChatBody = call.body
    turn = to_turn(call, body)
    writer = CohereWriter(call.label, call.served.tokenizer)
    events = _written(run_turn(call.served, turn), writer)
    if body.stream:
        return Events(_encoded(events))
    async with aclosing(events):
        async for _ in events:
            pass
    return writer.answer()


@model_endpoint(
    "POST /cohere/v2/chat/render",
    dialect=Dialect.COHERE,
    body=CohereChatBody,
    deviations=deviations,
    example=_EXAMPLE,
    answer=TokensBody,
)
async def render_chat(call: ModelCall) -> Answer:
    """A conversation's prompt in tokens, as a body of /inference/v1/generate"""
    body: CohereChatBody = call.body
    turn = to_turn(call, body)
    request = (await prepare_turn(call.served, turn)).request
    refuse_media(request, "messages")
    return to_tokens_body(
        call, request, turn.params, request_id=call.label, is_streamed=body.stream
    )


def to_turn(call: ModelCall, body: CohereChatBody) -> Turn:
    """Converts `body` to a turn; every field is used or refused."""
    if not body.messages:
        raise BadRequest("messages", "messages must hold at least one message")
    mode = None if body.citation_options is None else body.citation_options.mode
    if mode is not None and mode.upper() not in _NO_CITATIONS:
        raise BadRequest(
            "citation_options", "citation_options.mode must be absent or OFF: answers do not cite"
        )
    if body.tool_choice is not None and not body.tools:
        raise BadRequest("tool_choice", "tool_choice needs tools")
    return Turn(
        options=call.request_options(body.priority),
        messages=to_messages(body.messages),
        params=_params(call, body),
        tools=to_tools(body),
        tool_choice=to_choice(body),
        documents=to_documents(body.documents),
        template_kwargs=_template_kwargs(body),
        is_streamed=bool(body.stream),
        names=_NAMES,
    )


def _params(call: ModelCall, body: CohereChatBody) -> SamplingParams:
    given: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    given |= {"top_k": body.k, "top_p": body.p}
    given = {name: value for name, value in given.items() if value is not None}
    form, transfer = body.response_format, body.kv_transfer_params
    return SamplingParams(
        **{**call.served.client.model_config.default_sampling_params, **given},
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        logprobs=0 if body.logprobs else None,
        # A format is for the text, and an answer with a forced call has none.
        structured_outputs=(
            None if form is None or body.tool_choice == "REQUIRED" else _constraint(form)
        ),
        thinking_token_budget=_thinking_budget(call, body),
        extra_args=transfer and to_extra_args(transfer),
    )


def _constraint(form: CohereFormat) -> StructuredOutputsParams | None:
    schema = _schema(form)
    if form.type == "text":
        if schema is not None:
            raise BadRequest("response_format", "response_format of type text takes no schema")
        return None
    if schema is None:
        return StructuredOutputsParams(json_object=True)
    return StructuredOutputsParams(json=schema)


def _schema(form: CohereFormat) -> dict[str, Any] | None:
    return form.schema if form.json_schema is None else form.json_schema


def _thinking_budget(call: ModelCall, body: CohereChatBody) -> int | None:
    """Maximum number of reasoning tokens; None without a limit."""
    budget = None if body.thinking is None else body.thinking.token_budget
    if budget is not None and budget < 1:
        raise BadRequest("thinking", f"thinking.token_budget must be at least 1, got {budget}")
    # Without a reasoning parser the reasoning cannot be recognized, so the budget cannot be applied.
    return budget if call.served.options.reasoning_parser else None


def _template_kwargs(body: CohereChatBody) -> dict[str, Any]:
    """Returns the template's keyword arguments besides the conversation; the caller's own ones win."""
    kwargs: dict[str, Any] = {}
    if body.thinking is not None:
        # Templates use either name for the switch.
        kwargs["enable_thinking"] = kwargs["thinking"] = body.thinking.type == "enabled"
    if body.safety_mode is not None:
        kwargs["safety_mode"] = body.safety_mode
    return {**kwargs, **(body.chat_template_kwargs or {})}


async def _written(
    events: AsyncGenerator[TurnEvent, None], writer: CohereWriter
) -> AsyncGenerator[CohereEvent, None]:
    async with aclosing(events):
        async for event in events:
            rows = event.logprobs if isinstance(event, TurnDelta) else None
            for made in await write_scores(num_scores(rows), partial(_all, writer, event)):
                yield made


def _all(writer: CohereWriter, event: TurnEvent) -> list[CohereEvent]:
    return list(writer.events(event))


async def _encoded(events: AsyncGenerator[CohereEvent, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield data_event(event)
    yield DONE
