"""Converts a turn's events to Anthropic's: blocks one after another, each with start, deltas and stop.

The message in one piece is the sum of these events.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, assert_never

import msgspec

from weft.core.errors import Unavailable
from weft.schema.anthropic import (
    BlockAnswer,
    BlockDelta,
    BlockStart,
    BlockStop,
    Delta,
    InputJsonDelta,
    MessageAnswer,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputTokensDetails,
    Ping,
    SignatureDelta,
    StreamEvent,
    TextAnswer,
    TextDelta,
    ThinkingAnswer,
    ThinkingDelta,
    ToolUseAnswer,
)
from weft.text.parsers.parts import Arguments, Content, Part, Reasoning, ToolCall
from weft.web.chat.partial_json import completed
from weft.web.chat.turn import Began, Ended, TurnDelta, TurnEvent, TurnReason

# The server does not verify reasoning that clients send back, so it does not sign it.
SIGNATURE: Final = "unsigned"
_OUR_CALLS: Final = "chatcmpl-tool-"
_THEIR_CALLS: Final = "toolu_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShape:
    """Form of an answer, streamed or not. Hidden reasoning still appears as a block, without text."""

    id: str
    model: str
    shows_reasoning: bool
    counts_reasoning: bool


class MessageWriter:
    """Converts events to Anthropic's.

    Whitespace between blocks of other types makes no block. `message` is the answer in one piece, once all events
    were added.
    """

    def __init__(self, shape: MessageShape) -> None:
        self._shape = shape
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_tokens = 0
        self._num_reasoning_tokens = 0
        self._reason: TurnReason = "stop"
        self._stop: int | str | None = None
        self._content: list[BlockAnswer] = []
        self._open: BlockAnswer | None = None
        self._pieces: list[str] = []  # text pieces of the open block
        self._held = ""  # leading whitespace of a text, sent only if text follows
        self._has_calls = False
        self.message = MessageAnswer(
            id=shape.id,
            model=shape.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(),
        )

    def events(self, event: TurnEvent) -> Iterator[StreamEvent]:
        """The events for one event of the turn."""
        match event:
            case Began():
                self._num_prompt_tokens = len(event.prompt_token_ids)
                self._num_cached_tokens = event.num_cached_tokens
                yield MessageStart(
                    message=msgspec.structs.replace(self.message, usage=self._usage())
                )
                yield Ping()
            case TurnDelta():
                yield from self._delta(event)
            case Ended():
                yield from self._last(event)
            case _:
                assert_never(event)

    def _delta(self, event: TurnDelta) -> Iterator[StreamEvent]:
        self._num_tokens += len(event.token_ids)
        self._num_reasoning_tokens += event.num_reasoning_tokens
        if event.finish_reason is not None:
            self._reason, self._stop = event.finish_reason, event.stop_reason
        for part in event.parts:
            yield from self._part(part)

    def _last(self, event: Ended) -> Iterator[StreamEvent]:
        self._num_cached_tokens = event.num_cached_tokens
        end, usage = self._end(), self._usage()
        yield from self._close()
        if not self._content:
            # Clients access the first block of every answer, so there must be one.
            text = self._held
            yield from self._begin(TextAnswer(text=""))
            if text:
                yield self._more(TextDelta(text=text), text)
            yield from self._close()
        self.message = msgspec.structs.replace(
            self.message,
            content=self._content,
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=usage,
        )
        yield MessageDelta(delta=end, usage=usage)
        yield MessageStop()

    def _part(self, part: Part) -> Iterator[StreamEvent]:
        match part:
            case Reasoning(text):
                if not isinstance(self._open, ThinkingAnswer):
                    yield from self._begin(ThinkingAnswer(thinking="", signature=""))
                if self._shape.shows_reasoning:
                    yield self._more(ThinkingDelta(thinking=text), text)
            case Content(text):
                yield from self._text(text)
            case ToolCall(name=name, id=call_id):
                self._has_calls = True
                yield from self._begin(
                    ToolUseAnswer(id=_call_id(call_id or ""), name=name, input=msgspec.Raw(b"{}"))
                )
            case Arguments(text=text):
                # Clients refuse a text block that is only whitespace.
                if text := text if self._pieces else text.lstrip():
                    yield self._more(InputJsonDelta(partial_json=text), text)
            case _:
                assert_never(part)

    def _text(self, text: str) -> Iterator[StreamEvent]:
        if not isinstance(self._open, TextAnswer):
            self._held += text
            if not self._held.strip():
                return
            text = self._held
            yield from self._begin(TextAnswer(text=""))
        yield self._more(TextDelta(text=text), text)

    def _begin(self, block: BlockAnswer) -> Iterator[StreamEvent]:
        yield from self._close()
        self._open, self._pieces, self._held = block, [], ""
        yield BlockStart(index=len(self._content), content_block=block)

    def _more(self, delta: Delta, text: str = "") -> BlockDelta:
        self._pieces.append(text)
        return BlockDelta(index=len(self._content), delta=delta)

    def _close(self) -> Iterator[StreamEvent]:
        if self._open is None:
            return
        if isinstance(self._open, ThinkingAnswer):
            yield self._more(SignatureDelta(signature=SIGNATURE))
        yield BlockStop(index=len(self._content))
        self._content.append(_whole(self._open, "".join(self._pieces)))
        self._open = None

    def _end(self) -> MessageEnd:
        if isinstance(self._stop, str):
            return MessageEnd(stop_reason="stop_sequence", stop_sequence=self._stop)
        match self._reason:
            case "length":
                reason = "max_tokens"
            case "tool_calls":
                reason = "tool_use"
            case "stop":
                # A call that tool_choice forced ends with the usual reason.
                reason = "tool_use" if self._has_calls else "end_turn"
            case "repetition":
                reason = "end_turn"
            case "abort":
                # The API has no stop reason for an abort, and the answer is incomplete.
                raise Unavailable("the request was aborted on the server")
            case _:
                assert_never(self._reason)
        return MessageEnd(stop_reason=reason, stop_sequence=None)

    def _usage(self) -> MessageUsage:
        details = OutputTokensDetails(thinking_tokens=self._num_reasoning_tokens)
        return MessageUsage(
            input_tokens=self._num_prompt_tokens - self._num_cached_tokens,
            cache_read_input_tokens=self._num_cached_tokens,
            output_tokens=self._num_tokens,
            output_tokens_details=details if self._shape.counts_reasoning else None,
        )


def _whole(begun: BlockAnswer, text: str) -> BlockAnswer:
    match begun:
        case TextAnswer():
            return TextAnswer(text=text)
        case ThinkingAnswer():
            return ThinkingAnswer(thinking=text, signature=SIGNATURE)
        case ToolUseAnswer(id=call_id, name=name):
            # A call that was cut off at a limit is closed to a valid object.
            made = msgspec.Raw(completed(text).encode())
            return ToolUseAnswer(id=call_id, name=name, input=made)
        case _:
            assert_never(begun)


def _call_id(call_id: str) -> str:
    """An id in Anthropic's style; an id that the model wrote is kept."""
    if call_id.startswith(_OUR_CALLS):
        return _THEIR_CALLS + call_id.removeprefix(_OUR_CALLS)
    return call_id
