"""A turn's events, one by one, in Anthropic's words: blocks one after another, each begun, added to, ended."""

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
from weft.web.chat.turn import Began, Ended, TurnDelta, TurnEvent, TurnReason

# Nothing here verifies thoughts that come back, and so they are not signed.
SIGNATURE: Final = "unsigned"
_OUR_CALLS: Final = "chatcmpl-tool-"
_THEIR_CALLS: Final = "toolu_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShape:
    """How an answer is to look, streamed or not.

    Thoughts that are not shown still have their place: a block without text.
    """

    id: str
    model: str
    shows_thoughts: bool
    counts_thoughts: bool


class MessageWriter:
    """Turns events into Anthropic's. Whitespace between blocks of other kinds makes no block."""

    def __init__(self, shape: MessageShape) -> None:
        self._shape = shape
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_tokens = 0
        self._num_thought_tokens = 0
        self._reason: TurnReason = "stop"
        self._stop: int | str | None = None
        self._num_blocks = 0
        self._open: type[BlockAnswer] | None = None
        self._held = ""  # whitespace that begins a text, if text follows
        self._has_input = False
        self._has_calls = False

    def events(self, event: TurnEvent) -> Iterator[StreamEvent]:
        """The events that one of the turn's makes."""
        match event:
            case Began():
                yield from self._first(event)
            case TurnDelta():
                yield from self._news(event)
            case Ended():
                yield from self._last(event)
            case _:
                assert_never(event)

    def _first(self, event: Began) -> Iterator[StreamEvent]:
        self._num_prompt_tokens = len(event.prompt_token_ids)
        self._num_cached_tokens = event.num_cached_tokens
        yield MessageStart(
            message=MessageAnswer(
                id=self._shape.id,
                model=self._shape.model,
                content=[],
                stop_reason=None,
                stop_sequence=None,
                usage=self._usage(),
            )
        )
        yield Ping()

    def _news(self, event: TurnDelta) -> Iterator[StreamEvent]:
        self._num_tokens += len(event.token_ids)
        self._num_thought_tokens += event.num_reasoning_tokens
        if event.finish_reason is not None:
            self._reason, self._stop = event.finish_reason, event.stop_reason
        for part in event.parts:
            yield from self._part(part)

    def _last(self, event: Ended) -> Iterator[StreamEvent]:
        self._num_cached_tokens = event.num_cached_tokens
        end = self._end()
        yield from self._close()
        if self._num_blocks == 0:
            # Clients read the first block of every answer.
            text = self._held
            yield from self._begin(TextAnswer(text=""))
            if text:
                yield self._more(TextDelta(text=text))
            yield from self._close()
        yield MessageDelta(delta=end, usage=self._usage())
        yield MessageStop()

    def _part(self, part: Part) -> Iterator[StreamEvent]:
        match part:
            case Reasoning(text):
                if self._open is not ThinkingAnswer:
                    yield from self._begin(ThinkingAnswer(thinking="", signature=""))
                if self._shape.shows_thoughts:
                    yield self._more(ThinkingDelta(thinking=text))
            case Content(text):
                yield from self._text(text)
            case ToolCall():
                yield from self._call(part)
            case Arguments(_, text):
                yield from self._input(text)
            case _:
                assert_never(part)

    def _text(self, text: str) -> Iterator[StreamEvent]:
        if self._open is not TextAnswer:
            self._held += text
            if not self._held.strip():
                return
            text = self._held
            yield from self._begin(TextAnswer(text=""))
        yield self._more(TextDelta(text=text))

    def _call(self, call: ToolCall) -> Iterator[StreamEvent]:
        self._has_calls, self._has_input = True, False
        block = ToolUseAnswer(id=_call_id(call.id or ""), name=call.name, input=msgspec.Raw(b"{}"))
        yield from self._begin(block)

    def _input(self, text: str) -> Iterator[StreamEvent]:
        """More of the call that is open. Clients cannot read whitespace with nothing behind it."""
        if not self._has_input:
            text = text.lstrip()
        if text:
            self._has_input = True
            yield self._more(InputJsonDelta(partial_json=text))

    def _begin(self, block: BlockAnswer) -> Iterator[StreamEvent]:
        yield from self._close()
        self._open, self._held = type(block), ""
        yield BlockStart(index=self._num_blocks, content_block=block)

    def _more(self, delta: Delta) -> BlockDelta:
        return BlockDelta(index=self._num_blocks, delta=delta)

    def _close(self) -> Iterator[StreamEvent]:
        if self._open is None:
            return
        if self._open is ThinkingAnswer:
            yield self._more(SignatureDelta(signature=SIGNATURE))
        yield BlockStop(index=self._num_blocks)
        self._open = None
        self._num_blocks += 1

    def _end(self) -> MessageEnd:
        if isinstance(self._stop, str):
            return MessageEnd(stop_reason="stop_sequence", stop_sequence=self._stop)
        match self._reason:
            case "length":
                reason = "max_tokens"
            case "tool_calls":
                reason = "tool_use"
            case "stop":
                # A call that was asked for by name ends like any answer.
                reason = "tool_use" if self._has_calls else "end_turn"
            case "repetition":
                reason = "end_turn"
            case "abort":
                # There is no reason for this, and the answer is not what was asked for.
                raise Unavailable("the request was aborted on the server")
            case _:
                assert_never(self._reason)
        return MessageEnd(stop_reason=reason, stop_sequence=None)

    def _usage(self) -> MessageUsage:
        thoughts = OutputTokensDetails(thinking_tokens=self._num_thought_tokens)
        return MessageUsage(
            input_tokens=self._num_prompt_tokens - self._num_cached_tokens,
            cache_read_input_tokens=self._num_cached_tokens,
            output_tokens=self._num_tokens,
            output_tokens_details=thoughts if self._shape.counts_thoughts else None,
        )


def _call_id(call_id: str) -> str:
    """An id of our own in Anthropic's style; one that the model wrote is as it wrote it."""
    if call_id.startswith(_OUR_CALLS):
        return _THEIR_CALLS + call_id.removeprefix(_OUR_CALLS)
    return call_id
