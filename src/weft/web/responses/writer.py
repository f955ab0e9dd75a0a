"""A turn's events to a response's. The response in one piece is what these events add up to."""

import itertools
import time
from collections.abc import Iterator
from typing import Any, assert_never

import msgspec

from weft.core.errors import Code, WeftError
from weft.schema.response_events import (
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
    OutputItem,
    OutputTokensDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)
from weft.schema.usage import TokenLogprob
from weft.text.parsers.parts import Arguments, Content, Part, Reasoning, ToolCall
from weft.web.chat.turn import Began, Ended, TurnDelta, TurnEvent, TurnReason
from weft.web.inference.logprobs import LogprobWriter
from weft.web.responses.items import new_id
from weft.web.responses.open_items import OpenCall, OpenItem, OpenMessage, OpenReasoning

_FAILURE_CODES = {Code.INVALID: "invalid_prompt", Code.OVERLOADED: "rate_limit_exceeded"}


class ResponseWriter:
    """One response's life: an `add` for each event of its turn; `fail` or `cancel`, where it ends otherwise.

    One item is open at a time; a part of another kind closes it. `response` is the state so far, with
    the items that are done.
    """

    def __init__(
        self,
        response: ResponseObject,
        logprobs: LogprobWriter | None,
        *,
        has_cached_tokens: bool = True,
    ) -> None:
        self._logprobs = logprobs
        self._has_cached_tokens = has_cached_tokens
        self._numbers = itertools.count()
        self._output: list[OutputItem] = []
        self._item: OpenItem | None = None
        self._tokens: list[TokenLogprob] = []  # that no text has come for yet
        self._num_skipped = 0  # of the next tokens, which are reasoning and no part of a message
        self._call_ids: set[str] = set()
        self._num_prompt_tokens = 0
        self._num_tokens = 0
        self._num_reasoning_tokens = 0
        self._reason: TurnReason = "stop"
        self.response = response
        self.has_started = False

    def start(self) -> Iterator[StreamEvent]:
        """It exists; in the background it may have to wait. Without this, the turn's beginning starts it."""
        self.has_started = True
        yield ResponseCreated(sequence_number=next(self._numbers), response=self.response)
        if self.response.status == "queued":
            yield ResponseQueued(sequence_number=next(self._numbers), response=self.response)

    def add(self, event: TurnEvent) -> Iterator[StreamEvent]:
        """The events that one of its turn makes."""
        match event:
            case Began():
                if not self.has_started:
                    yield from self.start()
                self._num_prompt_tokens = len(event.prompt_token_ids)
                self._move_to("in_progress")
                yield ResponseInProgress(
                    sequence_number=next(self._numbers), response=self.response
                )
            case TurnDelta():
                yield from self._delta(event)
            case Ended():
                yield from self._end(event)
            case _:
                assert_never(event)

    def fail(self, error: Exception, request_id: str) -> Iterator[StreamEvent]:
        """It ends with an error, of which it says no more than any answer would."""
        yield from self._close("incomplete")
        code, message = "server_error", f"internal error, id={request_id}"
        if isinstance(error, WeftError):
            code, message = _FAILURE_CODES.get(error.code, code), str(error) or code
        self._move_to("failed", error=ResponseFailure(code=code, message=message))
        yield ResponseFailed(sequence_number=next(self._numbers), response=self.response)

    def cancel(self) -> Iterator[StreamEvent]:
        """It is cancelled. The stream has no event of its own for this."""
        yield from self._close("incomplete")
        self._move_to("cancelled")
        yield ResponseIncomplete(sequence_number=next(self._numbers), response=self.response)

    # -- deltas ---------------------------------------------------------------------------------

    def _delta(self, event: TurnDelta) -> Iterator[StreamEvent]:
        self._num_tokens += len(event.token_ids)
        self._num_reasoning_tokens += event.num_reasoning_tokens
        if self._logprobs is not None and event.logprobs is not None:
            self._tokens += self._logprobs.tokens(event.logprobs)
            # Reasoning comes first, and is counted when it is certain that it is some.
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
                yield self._item.add(text)
            case Content(text):
                yield from self._say(text)
            case ToolCall(name=name, id=call_id):
                self._tokens.clear()
                yield from self._close("completed")
                index = len(self._output)
                unique = self._unused(call_id)
                yield from self._open(OpenCall(self._numbers, index, name=name, call_id=unique))
            case Arguments(text=text):
                self._tokens.clear()
                # Calls come one after the other: these are of the latest.
                assert isinstance(self._item, OpenCall)
                yield self._item.add(text)
            case _:
                assert_never(part)

    def _say(self, text: str) -> Iterator[StreamEvent]:
        """More of a message. All tokens come with it that belong to no reasoning and no calls."""
        if not isinstance(self._item, OpenMessage):
            yield from self._close("completed")
            yield from self._open(OpenMessage(self._numbers, len(self._output)))
        assert isinstance(self._item, OpenMessage)
        tokens, self._tokens = self._tokens, []
        yield self._item.add(text, tokens)

    def _open(self, item: OpenItem) -> Iterator[StreamEvent]:
        self._item = item
        yield from item.begin()

    def _close(self, status: str) -> Iterator[StreamEvent]:
        if self._item is None:
            return
        yield from self._item.end(status)
        self._output.append(self._item.item(status))
        self._item = None
        self.response = msgspec.structs.replace(self.response, output=list(self._output))

    def _unused(self, call_id: str | None) -> str:
        """The call's id, unless another has it: outputs are given back by these."""
        if call_id is None or call_id in self._call_ids:
            call_id = new_id("call")
        self._call_ids.add(call_id)
        return call_id

    # -- the end --------------------------------------------------------------------------------

    def _end(self, event: Ended) -> Iterator[StreamEvent]:
        if self._reason == "abort":
            yield from self.cancel()
            return
        if self._tokens and isinstance(self._item, OpenMessage):
            yield from self._say("")  # tokens that ended it without a text of their own
        is_cut = self._reason == "length"
        if not self._output and self._item is None:
            yield from self._open(OpenMessage(self._numbers, 0))
        yield from self._close("incomplete" if is_cut else "completed")
        usage = self._usage(event.num_cached_tokens)
        if is_cut:
            details = IncompleteDetails(reason="max_output_tokens")
            self._move_to("incomplete", incomplete_details=details, usage=usage)
            yield ResponseIncomplete(sequence_number=next(self._numbers), response=self.response)
        else:
            self._move_to("completed", completed_at=int(time.time()), usage=usage)
            yield ResponseCompleted(sequence_number=next(self._numbers), response=self.response)

    def _move_to(self, status: str, **changes: Any) -> None:
        self.response = msgspec.structs.replace(self.response, status=status, **changes)

    def _usage(self, num_cached_tokens: int) -> ResponseUsage:
        return ResponseUsage(
            input_tokens=self._num_prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=num_cached_tokens if self._has_cached_tokens else 0
            ),
            output_tokens=self._num_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self._num_reasoning_tokens),
            total_tokens=self._num_prompt_tokens + self._num_tokens,
        )
