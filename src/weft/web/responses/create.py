"""POST /v1/responses: check everything that can be refused, then answer, stream, or leave it to a task."""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from weft.core.errors import BadRequest
from weft.schema.responses import ResponsesBody
from weft.web.chat.prompt import check_messages
from weft.web.chat.run import prepare_turn
from weft.web.http.endpoint import Answer, Events
from weft.web.inference.call import ModelCall
from weft.web.inference.logprobs import LogprobWriter
from weft.web.responses.event_log import EventLog
from weft.web.responses.items import Message, RequestInput, new_id, read_input
from weft.web.responses.request import to_response, to_turn, wants_logprobs
from weft.web.responses.runs import PreparedRequest, Run, Runs, encoded
from weft.web.responses.unsupported import check_body
from weft.web.served import Served

# What this API calls otherwise than chat and the engine do.
_NAMES = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens"}


class Creation:
    """The handler, with what it shares with the others."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def create(self, call: ModelCall) -> Answer:
        """The handler."""
        body: ResponsesBody = call.body
        request = await self.prepare(call, body)
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
        """The request, checked: what is wrong with it raises here, before anything has begun."""
        check_body(body)
        if body.background:
            self._runs.check_room()
        served = call.served
        before = self._before(body)
        conversation = await read_input(
            body.input, before=before, find_item=self._runs.store.item_finder()
        )
        if not (before or conversation.messages):
            raise BadRequest("input", "input is empty; there has to be something to respond to")
        turn = to_turn(
            call,
            body,
            [*before, *conversation.messages],
        )
        with _own_words(body):
            prepared = await prepare_turn(served, turn)
        if served.client.errored:
            raise served.client.dead_error
        return PreparedRequest(
            turn=turn,
            prepared=prepared,
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
            logprobs=_logprob_writer(served, body) if wants_logprobs(body) else None,
        )

    def _before(self, body: ResponsesBody) -> list[Message]:
        """What was said before this request's input."""
        if body.previous_input_messages:
            try:
                check_messages(body.previous_input_messages)
            except BadRequest as error:
                raise BadRequest("previous_input_messages", f"previous_input_{error}") from error
            return body.previous_input_messages
        if body.previous_response_id is None:
            return []
        stored = self._runs.store.get(body.previous_response_id)
        if stored is not None:
            return stored.conversation()
        is_open = self._runs.get(body.previous_response_id) is not None
        raise BadRequest(
            "previous_response_id",
            f"Previous response with id {body.previous_response_id[:64]!a} "
            + ("has not ended yet." if is_open else "not found."),
        )

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


@contextmanager
def _own_words(body: ResponsesBody) -> Iterator[None]:
    """Whatever refuses the request meanwhile names the fields of this API."""
    names = _NAMES
    if body.text is not None and body.text.format is not None:
        names = {**_NAMES, "json": "text.format"}  # what the engine calls a schema
    try:
        yield
    except BadRequest as error:
        raise error.renamed(names) from error


def _logprob_writer(served: Served, body: ResponsesBody) -> LogprobWriter:
    return LogprobWriter(
        tokenizer=served.tokenizer,
        num_top=body.top_logprobs or 0,
        is_naming_by_id=served.options.return_tokens_as_token_ids,
        chosen_ids=body.logprob_token_ids,
    )


def _own_ids(body: ResponsesBody, conversation: RequestInput) -> tuple[str, ...]:
    """The ids of input items that are of our making; a client's own might be guessed by another."""
    given = () if isinstance(body.input, str) else body.input
    theirs = {item.get("id") for item in given}
    return tuple(item["id"] for item in conversation.items if item["id"] not in theirs)
