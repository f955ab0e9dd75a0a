"""An answer in one piece: the fold of the events that a stream would have told."""

from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from weft.schema.anthropic import (
    BlockAnswer,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    StreamEvent,
    TextAnswer,
    TextDelta,
    ThinkingAnswer,
    ThinkingDelta,
    ToolUseAnswer,
)
from weft.web.anthropic.partial_json import completed


@dataclass(slots=True)
class _Block:
    """A block as it began, and what was added to it."""

    begun: BlockAnswer
    pieces: list[str] = field(default_factory=list)
    signature: str = ""


class AnswerFold:
    """Takes the events of one stream, in order."""

    def __init__(self) -> None:
        self._start: MessageAnswer | None = None
        self._end: MessageDelta | None = None
        self._blocks: list[_Block] = []

    def add(self, event: StreamEvent) -> None:
        """The next event."""
        match event:
            case MessageStart(message=message):
                self._start = message
            case BlockStart(content_block=block):
                self._blocks.append(_Block(block))
            case BlockDelta():
                self._add_delta(event)
            case MessageDelta():
                self._end = event
            case Ping() | BlockStop() | MessageStop():
                pass
            case _:
                assert_never(event)

    def answer(self) -> MessageAnswer:
        """The message, when all events are in."""
        assert self._start is not None, "a message without a beginning"
        assert self._end is not None, "a message without an end"
        return msgspec.structs.replace(
            self._start,
            content=[_whole(block) for block in self._blocks],
            stop_reason=self._end.delta.stop_reason,
            stop_sequence=self._end.delta.stop_sequence,
            usage=self._end.usage,
        )

    def _add_delta(self, event: BlockDelta) -> None:
        block = self._blocks[event.index]
        match event.delta:
            case TextDelta(text=text) | ThinkingDelta(thinking=text):
                block.pieces.append(text)
            case InputJsonDelta(partial_json=text):
                block.pieces.append(text)
            case SignatureDelta(signature=signature):
                block.signature = signature
            case _:
                assert_never(event.delta)


def _whole(block: _Block) -> BlockAnswer:
    text = "".join(block.pieces)
    match block.begun:
        case TextAnswer():
            return TextAnswer(text=text)
        case ThinkingAnswer():
            return ThinkingAnswer(thinking=text, signature=block.signature)
        case ToolUseAnswer(id=call_id, name=name):
            # Cut off at a limit, it is as much of an object as there is.
            made = msgspec.Raw(completed(text).encode())
            return ToolUseAnswer(id=call_id, name=name, input=made)
        case _:
            assert_never(block.begun)
