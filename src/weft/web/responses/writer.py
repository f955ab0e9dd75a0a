"""Converts a turn's events to those of a response. The response in one piece is the sum of these events."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import msgspec

from weft.core.checks.object_ids import new_id, store_of
from weft.core.errors import Code, WeftError
from weft.schema.response_events import (
    ItemAdded,
    ItemDone,
    McpListCompleted,
    McpListInProgress,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
    StreamEvent,
)
from weft.schema.response_object import (
    IncompleteDetails,
    InputTokensDetails,
    McpListToolsItem,
    OutputItem,
    OutputTokensDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)
from weft.text.parsers.parts import Arguments, Content, Part, Reasoning, ToolCall
from weft.web.chat.turn import Began, Ended, TurnDelta, TurnEvent, TurnReason
from weft.web.items.client_tools import Called, called_by_name
from weft.web.items.item_reader import ApprovedCall
from weft.web.mcp.toolbox import Toolbox
from weft.web.mcp.values import CallResult
from weft.web.responses.open_items import (
    EventNumbers,
    OpenApproval,
    OpenCall,
    OpenCustomCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    OpenServerCall,
    ScoredToken,
)

_FAILURE_CODES = {Code.INVALID: "invalid_prompt", Code.OVERLOADED: "rate_limit_exceeded"}


class ResponseWriter:
    """Events of a response's life: `add` for each event of its turns, then `finish`, `fail` or `cancel`.

    One item is open at a time; a part of another kind closes it. The item of a server tool call is done when the call
    has returned. `response` is the current state, with the items that are done. `waits_for_client` is True if the
    client must make or approve a call.
    """

    def __init__(
        self,
        response: ResponseObject,
        *,
        has_cached_tokens: bool = True,
    ) -> None:
        self._has_cached_tokens = has_cached_tokens
        self._numbers = EventNumbers(store_of(response.id))
        self._called = called_by_name(response.tools)
        self._toolbox: Toolbox | None = None
        self._listed: Sequence[McpListToolsItem] = ()
        self._output: list[OutputItem | None] = []  # None for an item that is not complete
        self._item: OpenItem | None = None
        self._tokens: list[ScoredToken] = []  # tokens whose text has not arrived yet
        self._num_skipped = 0  # number of next tokens that are reasoning, so not part of a message
        self._call_ids: set[str] = set()
        # Calls that the model wrote and that have not run yet.
        self._calls: list[OpenServerCall] = []
        self._is_silent = True  # True until this turn has an output
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self.num_tokens = 0
        self._num_reasoning_tokens = 0
        self._reason: TurnReason = "stop"
        self.response = response
        self.has_started = False
        self.is_begun = False
        self.waits_for_client = False

    def start(self) -> Iterator[StreamEvent]:
        """Announces the response, which may have to wait in the background. Without this call, the turn's beginning
        does.
        """
        self.has_started = True
        yield ResponseCreated(sequence_number=next(self._numbers), response=self.response)
        if self.response.status == "queued":
            yield ResponseQueued(sequence_number=next(self._numbers), response=self.response)

    def offer(self, toolbox: Toolbox | None, listed: Sequence[McpListToolsItem]) -> None:
        """Adds the tools of servers; those in `listed` are shown at the beginning."""
        self._toolbox, self._listed = toolbox, listed

    def add(
        self, event: TurnEvent, tokens: Sequence[ScoredToken] | None = None
    ) -> Iterator[StreamEvent]:
        """The events for one event of a turn; `tokens` are the delta's, if they are requested."""
        match event:
            case Began():
                yield from self.begin()
                self._is_silent = True
                self._num_prompt_tokens += len(event.prompt_token_ids)
            case TurnDelta():
                yield from self._delta(event, tokens)
            case Ended():
                self._num_cached_tokens += event.num_cached_tokens
                yield from self._end_turn()
            case _:
                assert_never(event)

    def begin(self) -> Iterator[StreamEvent]:
        """Begins the work on the response once: first lists the tools of servers."""
        if self.is_begun:
            return
        self.is_begun = True
        if not self.has_started:
            yield from self.start()
        self._move_to("in_progress")
        yield ResponseInProgress(sequence_number=next(self._numbers), response=self.response)
        for item in self._listed:
            yield from self._list(item)

    def calls_to_make(self) -> list[OpenServerCall]:
        """The calls to make after the turn that has ended; none if it was cut off."""
        if self._reason in ("length", "abort"):
            return []
        return list(self._calls)

    def begin_approved(self, call: ApprovedCall) -> Iterator[StreamEvent]:
        """A call of an earlier response, approved since; made like other calls."""
        opened = OpenServerCall(
            self._numbers,
            len(self._output),
            label=call.label,
            name=call.name,
            approval_request_id=call.request_id,
        )
        yield from self._open(opened)
        yield from opened.add(call.arguments)
        yield from self._close("completed")

    def finish_call(self, call: OpenServerCall, result: CallResult | None) -> Iterator[StreamEvent]:
        """Adds the result of a call."""
        self._calls.remove(call)
        yield from call.finish(result)
        self._put(call.index, call.finished(result))

    def finish(self, *, is_cut: bool = False) -> Iterator[StreamEvent]:
        """Ends the response after all turns. `is_cut` means that there was no room for another turn."""
        yield from self._close_all()
        if self._reason == "abort":
            yield from self.cancel()
        elif is_cut or self._reason == "length":
            details = IncompleteDetails(reason="max_output_tokens")
            self._move_to("incomplete", incomplete_details=details, usage=self._usage())
            yield ResponseIncomplete(sequence_number=next(self._numbers), response=self.response)
        else:
            self._move_to("completed", completed_at=int(time.time()), usage=self._usage())
            yield ResponseCompleted(sequence_number=next(self._numbers), response=self.response)

    def fail(self, error: Exception, request_id: str) -> Iterator[StreamEvent]:
        """Ends the response with an error that contains no more than any other error answer."""
        yield from self._close_all()
        code, message = "server_error", f"internal error, id={request_id}"
        if isinstance(error, WeftError):
            code, message = _FAILURE_CODES.get(error.code, code), str(error) or code
        self._move_to("failed", error=ResponseFailure(code=code, message=message))
        yield ResponseFailed(sequence_number=next(self._numbers), response=self.response)

    def cancel(self) -> Iterator[StreamEvent]:
        """Ends the response as cancelled. The stream has no event for this."""
        yield from self._close_all()
        self._move_to("cancelled")
        yield ResponseIncomplete(sequence_number=next(self._numbers), response=self.response)

    # -- deltas ---------------------------------------------------------------------------------

    def _delta(
        self, event: TurnDelta, tokens: Sequence[ScoredToken] | None
    ) -> Iterator[StreamEvent]:
        self.num_tokens += len(event.token_ids)
        self._num_reasoning_tokens += event.num_reasoning_tokens
        if tokens is not None:
            self._tokens += tokens
            # Reasoning comes before text, and its tokens are counted once they are known to be reasoning.
            self._num_skipped += event.num_reasoning_tokens
            num_dropped = min(self._num_skipped, len(self._tokens))
            del self._tokens[:num_dropped]
            self._num_skipped -= num_dropped
        for part in event.parts:
            yield from self._add_part(part)
        if event.finish_reason is not None:
            self._reason = event.finish_reason

    def _add_part(self, part: Part) -> Iterator[StreamEvent]:
        match part:
            case Reasoning(text):
                if not isinstance(self._item, OpenReasoning):
                    yield from self._close("completed")
                    yield from self._open(OpenReasoning(self._numbers, len(self._output)))
                assert isinstance(self._item, OpenReasoning)
                yield from self._item.add(text)
            case Content(text):
                yield from self._say(text)
            case ToolCall(name=name, id=call_id):
                self._tokens.clear()
                yield from self._close("completed")
                yield from self._open(self._open_call(name, call_id))
            case Arguments(text=text):
                self._tokens.clear()
                # Calls follow each other: these pieces belong to the latest call.
                assert isinstance(self._item, OpenCall | OpenServerCall | OpenApproval)
                yield from self._item.add(text)
            case _:
                assert_never(part)

    def _say(self, text: str) -> Iterator[StreamEvent]:
        """Adds text of a message, with all tokens that belong to neither reasoning nor calls."""
        if not isinstance(self._item, OpenMessage):
            yield from self._close("completed")
            yield from self._open(OpenMessage(self._numbers, len(self._output)))
        assert isinstance(self._item, OpenMessage)
        tokens, self._tokens = self._tokens, []
        yield from self._item.add(text, tokens)

    def _open_call(self, name: str, call_id: str | None) -> OpenItem:
        """Opens an item for a call: of the client's function, or of a server tool, with or without approval."""
        tool = None if self._toolbox is None else self._toolbox.tools.get(name)
        index = len(self._output)
        if tool is not None and not tool.needs_approval:
            return OpenServerCall(self._numbers, index, label=tool.label, name=name)
        self.waits_for_client = True
        if tool is not None:
            return OpenApproval(self._numbers, index, label=tool.label, name=name)
        called = self._called.get(name) or Called(name)
        kind = OpenCustomCall if called.is_custom else OpenCall
        return kind(self._numbers, index, tool=called, call_id=self._unused(call_id))

    def _list(self, item: McpListToolsItem) -> Iterator[StreamEvent]:
        """A server's tools, which were listed before the response began."""
        numbers, index = self._numbers, len(self._output)
        empty = msgspec.structs.replace(item, tools=[])
        yield ItemAdded(sequence_number=next(numbers), output_index=index, item=empty)
        for kind in (McpListInProgress, McpListCompleted):
            yield kind(sequence_number=next(numbers), output_index=index, item_id=item.id)
        yield ItemDone(sequence_number=next(numbers), output_index=index, item=item)
        self._output.append(None)
        self._put(index, item)

    def _open(self, item: OpenItem) -> Iterator[StreamEvent]:
        self._item = item
        self._is_silent = False
        self._output.append(None)
        yield from item.begin()

    def _close(self, status: str) -> Iterator[StreamEvent]:
        item, self._item = self._item, None
        if item is None or (isinstance(item, OpenApproval) and status != "completed"):
            return
        yield from item.end(status)
        if isinstance(item, OpenServerCall) and status == "completed":
            self._calls.append(item)
        else:
            self._put(item.index, item.item(status))

    def _close_all(self) -> Iterator[StreamEvent]:
        """Closes all open items."""
        yield from self._close("incomplete")
        for call in list(self._calls):
            yield from self.finish_call(call, None)

    def _put(self, index: int, item: OutputItem) -> None:
        self._output[index] = item
        output = [one for one in self._output if one is not None]
        self.response = msgspec.structs.replace(self.response, output=output)

    def _unused(self, call_id: str | None) -> str:
        """The call's id, or a new one if it is taken: clients return outputs by these ids."""
        if call_id is None or call_id in self._call_ids:
            call_id = new_id("call")
        self._call_ids.add(call_id)
        return call_id

    # -- the end --------------------------------------------------------------------------------

    def _end_turn(self) -> Iterator[StreamEvent]:
        if self._reason == "abort":
            return
        if self._tokens and isinstance(self._item, OpenMessage):
            yield from self._say("")  # tokens that ended the message and have no text
        if self._is_silent:
            yield from self._open(OpenMessage(self._numbers, len(self._output)))
        yield from self._close("incomplete" if self._reason == "length" else "completed")
        self._tokens.clear()
        self._num_skipped = 0

    def _move_to(self, status: str, **changes: Any) -> None:
        self.response = msgspec.structs.replace(self.response, status=status, **changes)

    def _usage(self) -> ResponseUsage:
        return ResponseUsage(
            input_tokens=self._num_prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=self._num_cached_tokens if self._has_cached_tokens else 0
            ),
            output_tokens=self.num_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self._num_reasoning_tokens),
            total_tokens=self._num_prompt_tokens + self.num_tokens,
        )
