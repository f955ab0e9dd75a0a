"""POST /v1/responses: checks the request completely, then answers, streams, or starts a background task."""

import dataclasses
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from functools import partial

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.media import takes
from weft.schema.response_object import McpListToolsItem
from weft.schema.responses import ResponsesBody
from weft.web.chat.prompt import check_messages
from weft.web.chat.run import prepare_turn
from weft.web.http.endpoint import Answer, Events
from weft.web.http.problem import HttpError
from weft.web.inference.call import ModelCall, naming
from weft.web.mcp.values import ToolServerError
from weft.web.responses.event_log import EventLog
from weft.web.responses.item_reader import Message, new_id
from weft.web.responses.items import RequestInput, read_input
from weft.web.responses.request import to_response, to_turn, unforced, wants_logprobs
from weft.web.responses.runs import Run, Runs, encoded
from weft.web.responses.server_tools import open_toolbox, to_items, to_toolbox
from weft.web.responses.tool_loop import PreparedRequest
from weft.web.responses.unsupported import check_body, check_store

# This API's names of parameters, by the names in chat and the engine.
_NAMES = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens"}


class PreviousResponseNotFound(BadRequest):
    """No response with this id is stored; clients then send the whole conversation."""

    api_code = "previous_response_not_found"


class Creation:
    """The handler of POST /v1/responses, with the objects that it shares with other handlers."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def create(self, call: ModelCall) -> Answer:
        """A response to an input: in one piece, streamed, or made in the background"""
        body: ResponsesBody = call.body
        request = await self._check(call, body)
        prepare = partial(_with_turns, call, body)
        if body.background and request.toolbox is not None:
            # A background request returns at once: failures of tool servers are reported in its response.
            await request.toolbox.find()
            return self._in_background(Run(call.served, request, self._log(body), prepare), body)
        try:
            request = await prepare(request)
        except ToolServerError as error:  # OpenAI's form of the error
            raise HttpError(424, str(error), parameter="tools") from error
        try:
            return await self._answer(call, body, request)
        except BaseException:
            request.close()
            raise

    async def _answer(
        self, call: ModelCall, body: ResponsesBody, request: PreparedRequest
    ) -> Answer:
        if body.background:
            return self._in_background(Run(call.served, request, self._log(body)), body)
        run = Run(call.served, request)
        if body.stream:
            return Events(self._stream(run, body))
        with _own_words(body):
            async with aclosing(self._runs.in_foreground(run)) as events:
                async for _ in events:
                    pass
        if run.error is not None:
            raise run.error
        return run.response

    async def prepare(self, call: ModelCall, body: ResponsesBody) -> PreparedRequest:
        """Checks a request; raises all its errors before anything has begun."""
        return await _with_turns(call, body, await self._check(call, body))

    async def _check(self, call: ModelCall, body: ResponsesBody) -> PreparedRequest:
        """Checks everything that needs neither a model nor an answer of an MCP server."""
        check_body(body)
        if not call.served.stores_responses:
            check_store(body)
            body = msgspec.structs.replace(body, store=False)
        if body.background:
            self._runs.check_room()
        before, known_labels = self._before(body)
        conversation = await read_input(
            body.input,
            before=before,
            find_item=self._runs.store.item_finder(),
            takes_images=takes("image", call.served.client.model_config.media),
        )
        if not (before or conversation.messages or conversation.approved):
            raise BadRequest("input", "input is empty; there has to be something to respond to")
        turn = to_turn(call, body, [*before, *conversation.messages])
        return PreparedRequest(
            turn=turn,
            later_turn=turn,
            prepared=None,
            response=to_response(
                body,
                turn.params,
                response_id=new_id("resp"),
                model=call.model,
                created_at=int(time.time()),
            ),
            conversation=conversation,
            before=before,
            own_item_ids=_own_ids(body, conversation),
            logprobs=call.logprob_writer(body.top_logprobs, body.logprob_token_ids)
            if wants_logprobs(body)
            else None,
            toolbox=to_toolbox(body, call.served.tool_servers, conversation),
            known_labels=known_labels | conversation.listed_labels,
        )

    def _before(self, body: ResponsesBody) -> tuple[list[Message], frozenset[str]]:
        """Returns the conversation before this request's input, and the MCP servers whose tools were listed in it."""
        if body.previous_input_messages:
            try:
                check_messages(body.previous_input_messages)
            except BadRequest as error:
                raise BadRequest("previous_input_messages", f"previous_input_{error}") from error
            return body.previous_input_messages, frozenset()
        if body.previous_response_id is None:
            return [], frozenset()
        stored = self._runs.store.get(body.previous_response_id)
        if stored is not None:
            return stored.conversation(), stored.known_labels
        shown = f"Previous response with id {body.previous_response_id[:64]!a}"
        if self._runs.get(body.previous_response_id) is not None:
            raise BadRequest("previous_response_id", f"{shown} has not ended yet.")
        raise PreviousResponseNotFound("previous_response_id", f"{shown} not found.")

    def _log(self, body: ResponsesBody) -> EventLog | None:
        return EventLog(self._runs.limits.max_event_bytes) if body.stream else None

    def _in_background(self, run: Run, body: ResponsesBody) -> Answer:
        self._runs.start_background(run)
        if run.log is not None:
            return Events(run.log.follow(-1))
        return run.response

    async def _stream(self, run: Run, body: ResponsesBody) -> AsyncGenerator[bytes, None]:
        with _own_words(body):
            async with aclosing(self._runs.in_foreground(run)) as events:
                async for event in events:
                    yield encoded(event)
        run.log_error()


async def _with_turns(
    call: ModelCall, body: ResponsesBody, request: PreparedRequest
) -> PreparedRequest:
    """Adds the tools of the request's servers, and the engine's first turns."""
    toolbox, turn, later = request.toolbox, request.turn, request.later_turn
    listed: list[McpListToolsItem] = []
    try:
        if toolbox is not None:
            await open_toolbox(toolbox, body, request.conversation)
            messages = [*request.before, *request.conversation.messages]
            turn = to_turn(call, body, messages, toolbox)
            later = to_turn(call, unforced(body), messages, toolbox)
            listed = to_items(toolbox, request.known_labels)
        with _own_words(body):
            prepared = (
                None if request.conversation.approved else await prepare_turn(call.served, turn)
            )
        if call.served.client.errored:
            raise call.served.client.dead_error
    except BaseException:
        request.close()
        raise
    return dataclasses.replace(
        request,
        turn=turn,
        later_turn=later,
        prepared=prepared,
        listed=tuple(listed),
        known_labels=request.known_labels | {item.server_label for item in listed},
    )


@contextmanager
def _own_words(body: ResponsesBody) -> Iterator[None]:
    """Renames fields in errors to the names of this API."""
    names = _NAMES
    if body.text is not None and body.text.format is not None:
        names = {**_NAMES, "json": "text.format"}  # the engine's name of a schema
    with naming(names):
        yield


def _own_ids(body: ResponsesBody, conversation: RequestInput) -> tuple[str, ...]:
    """Returns the ids of input items that this server generated. Ids that the client chose are left out, because
    another client might guess them.
    """
    given = () if isinstance(body.input, str) else body.input
    theirs = {item.get("id") for item in given}
    return tuple(item["id"] for item in conversation.items if item["id"] not in theirs)
