"""POST /v1/responses: checks the request completely, then answers, streams, or starts a background task."""

import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec import UnsetType

from weft.core.errors import BadRequest
from weft.core.values.media import takes_any
from weft.schema.response_events import StreamEvent
from weft.schema.response_object import McpListToolsItem, ResponseObject
from weft.schema.responses import ResponsesBody
from weft.web.chat.run import prepare_turn
from weft.web.http.endpoint import Answer, Events
from weft.web.http.problem import HttpError
from weft.web.inference.call import ModelCall, naming
from weft.web.inference.rendered import refuse_media, to_tokens_body
from weft.web.items.conversation_store import Conversations, with_own_ids
from weft.web.items.items import RequestInput, as_items, read_input
from weft.web.items.recalled import Recalled
from weft.web.mcp.values import ToolServerError
from weft.web.responses.event_log import EventLog
from weft.web.responses.recall import NO_UNSTORED, Recall, UnstoredById
from weft.web.responses.request import (
    to_response,
    to_turn,
    unforced,
    wants_logprobs,
)
from weft.web.responses.runs import Change, Prepare, Run, Runs, encoded
from weft.web.responses.server_tools import open_toolbox, to_items, to_toolbox
from weft.web.responses.store import AcceptedRequest
from weft.web.responses.tool_loop import PreparedRequest
from weft.web.store.stored_object import StoredObject

_SEED_BITS = 62
# This API's names of parameters, by the names in chat and the engine.
_NAMES = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens"}


@dataclass(frozen=True, slots=True)
class Resumed:
    """A background response that another process began: its record, and its request."""

    record: StoredObject
    request: AcceptedRequest


class Creation:
    """The handler of POST /v1/responses, with the objects that it shares with other handlers."""

    def __init__(self, runs: Runs, conversations: Conversations) -> None:
        self._runs = runs
        self._conversations = conversations
        self._recall = Recall(runs, conversations)

    async def create(self, call: ModelCall) -> Answer:
        """A response to an input: in one piece, streamed, or made in the background"""
        body: ResponsesBody = call.body
        resumed = None if call.inside is None else call.inside.subject
        if isinstance(resumed, Resumed):
            return await self._resume(
                call, msgspec.structs.replace(body, seed=resumed.request.seed), resumed
            )
        if body.background and self._runs.store.is_durable and _seed_of(body) is None:
            # After a restart, the response begins again and samples the same tokens.
            body = msgspec.structs.replace(body, seed=secrets.randbits(_SEED_BITS))
        recalled = await self._recall.of(call, body)
        request = await self._check(call, body, recalled)
        accepted = _accepted(call, body, request, recalled) if body.background else None
        prepare = partial(_with_turns, call, body)
        if body.background and request.toolbox is not None:
            # A background request returns at once: failures of tool servers are reported in its response.
            await request.toolbox.find()
            run = self.run_of(call, request, self._log(body), prepare)
            return await self._in_background(run, accepted)
        with _naming_servers():
            request = await prepare(request)
        try:
            return await self._answer(call, body, request, accepted)
        except BaseException:
            request.close()
            raise

    async def _answer(
        self,
        call: ModelCall,
        body: ResponsesBody,
        request: PreparedRequest,
        accepted: AcceptedRequest | None,
    ) -> Answer:
        if body.background:
            return await self._in_background(self.run_of(call, request, self._log(body)), accepted)
        run = self.run_of(call, request)
        if body.stream:
            return Events(self._stream(run, body))
        return await self.in_one_piece(run, body)

    async def in_one_piece(self, run: Run, body: ResponsesBody) -> ResponseObject:
        """Returns a response that the client waits for; raises the error that ended it."""
        with _own_words(body):
            async with aclosing(self._runs.in_foreground(run)) as events:
                async for _ in events:
                    pass
        if run.error is not None:
            raise run.error
        return run.response

    async def render(self, call: ModelCall) -> Answer:
        """The prompt of a response in tokens, as a body of /inference/v1/generate"""
        body: ResponsesBody = call.body
        request = await self.prepare(call, body)
        request.close()
        if request.prepared is None:
            raise BadRequest(
                "input",
                "input has approved calls of MCP servers: its prompt is known after they have run",
            )
        rendered = request.prepared.request
        refuse_media(rendered, "input")
        return to_tokens_body(
            call,
            rendered,
            request.turn.params,
            request_id=request.response.id,
            is_streamed=body.stream,
        )

    async def prepare(
        self, call: ModelCall, body: ResponsesBody, unstored: UnstoredById = NO_UNSTORED
    ) -> PreparedRequest:
        """Checks a request; raises all its errors before anything has begun. It may continue stored responses and
        those of `unstored`.
        """
        recalled = await self._recall.of(call, body, unstored)
        return await _with_turns(call, body, await self._check(call, body, recalled))

    async def run_in_session(
        self, call: ModelCall, body: ResponsesBody, unstored: UnstoredById, *, is_warmup: bool
    ) -> Run:
        """A run of a request of a session. One that `is_warmup` needs a single token, which is not shown."""
        changed = msgspec.structs.replace(body, max_output_tokens=1) if is_warmup else body
        with _naming_servers():
            request = await self.prepare(call, changed, unstored)
        response = msgspec.structs.replace(
            request.response, max_output_tokens=body.max_output_tokens
        )
        return self.run_of(
            call, dataclasses.replace(request, response=response, is_warmup=is_warmup)
        )

    async def events(self, run: Run, body: ResponsesBody) -> AsyncGenerator[StreamEvent, None]:
        """The events of a run whose client waits."""
        with _own_words(body):
            async with aclosing(self._runs.in_foreground(run)) as events:
                async for event in events:
                    yield event
        run.log_error()

    async def _resume(self, call: ModelCall, body: ResponsesBody, resumed: Resumed) -> Answer:
        """Begins a background response again, under the id that its caller knows."""
        recalled = resumed.request.recalled
        request = await self._check(call, body, recalled, listed=resumed.request.items)
        response = msgspec.structs.replace(
            request.response, id=resumed.record.id, created_at=int(resumed.record.created_at)
        )
        request = dataclasses.replace(request, response=response)
        if request.toolbox is not None:
            await request.toolbox.find()
        prepare = partial(_with_turns, call, body)
        run = self.run_of(call, request, self._log(body), prepare)
        await self._runs.start_background(run, None)
        return run.response

    def run_of(
        self,
        call: ModelCall,
        request: PreparedRequest,
        log: EventLog | None = None,
        prepare: Prepare | None = None,
    ) -> Run:
        """A run of a request that was checked."""
        tenant = call.tenant_name
        also = partial(_turn_of_conversation, self._conversations)
        return Run(call.served, request, log, prepare, tenant=tenant, also=also)

    async def _check(
        self,
        call: ModelCall,
        body: ResponsesBody,
        recalled: Recalled,
        listed: bytes | None = None,
    ) -> PreparedRequest:
        """Checks everything that needs neither a model nor an answer of an MCP server. `listed` are the items of the
        input if they have ids already.
        """
        if not self._recall.stores(call):
            body = msgspec.structs.replace(body, store=False)
        if body.background:
            self._runs.check_room()
        before = recalled.before
        conversation = await read_input(
            body.input,
            before=before,
            find_item=recalled.items.get,
            takes_media=takes_any(call.served.client.model_config.media),
        )
        if listed is not None:
            conversation = dataclasses.replace(conversation, items=msgspec.json.decode(listed))
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
                response_id=self._runs.store.new_id("resp"),
                model=call.model,
                created_at=call.created_at or int(time.time()),
            ),
            conversation=conversation,
            before=before,
            own_item_ids=_own_ids(body, conversation),
            logprobs=call.logprob_writer(body.top_logprobs, body.logprob_token_ids)
            if wants_logprobs(body)
            else None,
            toolbox=to_toolbox(body, call.served.tool_servers, conversation),
            known_labels=recalled.known_labels | conversation.listed_labels,
        )

    def _log(self, body: ResponsesBody) -> EventLog | None:
        return EventLog(self._runs.limits.max_event_bytes) if body.stream else None

    async def _in_background(self, run: Run, accepted: AcceptedRequest | None) -> Answer:
        await self._runs.start_background(run, accepted)
        if run.log is not None:
            return Events(run.log.follow(-1))
        return run.response

    async def _stream(self, run: Run, body: ResponsesBody) -> AsyncGenerator[bytes, None]:
        async with aclosing(self.events(run, body)) as events:
            async for event in events:
                yield encoded(event)


def _seed_of(body: ResponsesBody) -> int | None:
    """The seed of a body; its field is declared with the other sampling parameters."""
    seed: int | None = msgspec.structs.asdict(body)["seed"]
    return seed


def _accepted(
    call: ModelCall, body: ResponsesBody, request: PreparedRequest, recalled: Recalled
) -> AcceptedRequest:
    return AcceptedRequest(
        body=call.raw_body,
        items=msgspec.json.encode(request.conversation.items),
        seed=_seed_of(body),
        recalled=recalled,
    )


def _turn_of_conversation(conversations: Conversations, run: Run) -> Sequence[Change]:
    """Returns the change that adds the items of a complete response to its conversation."""
    conversation = run.response.conversation
    if isinstance(conversation, UnsetType):
        return ()
    items = [*with_own_ids(run.request.conversation.items), *as_items(run.response.output)]
    return (conversations.added(run.tenant, conversation.id, items),)


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
def _naming_servers() -> Iterator[None]:
    """Converts a failure of a tool server to OpenAI's form of the error."""
    try:
        yield
    except ToolServerError as error:
        raise HttpError(424, str(error), parameter="tools") from error


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
