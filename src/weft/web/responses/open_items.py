"""Items of a response while they come: each begins, grows and ends in its own events."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from weft.schema.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    EventLogprob,
    EventTokenLogprob,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    StreamEvent,
    TextDelta,
    TextDone,
)
from weft.schema.response_object import (
    FunctionCallItem,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from weft.schema.usage import TokenLogprob
from weft.web.responses.items import new_id

Numbers = Iterator[int]


class OpenItem(Protocol):
    """An item that is not done. `numbers` are those of the response's next events."""

    def begin(self) -> Iterator[StreamEvent]:
        """It is there, with nothing in it."""
        ...

    def end(self, status: str) -> Iterator[StreamEvent]:
        """It is done, completed or incomplete."""
        ...

    def item(self, status: str) -> OutputItem:
        """The item as it is now."""
        ...


class OpenMessage:
    """A message of one text."""

    def __init__(self, numbers: Numbers, output_index: int) -> None:
        self._numbers = numbers
        self._index = output_index
        self._id = new_id("msg")
        self._texts: list[str] = []
        self._tokens: list[TokenLogprob] = []

    def begin(self) -> Iterator[StreamEvent]:
        item = OutputMessage(id=self._id, status="in_progress", content=[])
        yield ItemAdded(sequence_number=next(self._numbers), output_index=self._index, item=item)
        yield PartAdded(
            sequence_number=next(self._numbers),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            part=OutputText(text=""),
        )

    def add(self, text: str, tokens: Sequence[TokenLogprob]) -> StreamEvent:
        """More of the text, and the tokens that made it where they are told."""
        self._texts.append(text)
        self._tokens += tokens
        return TextDelta(
            sequence_number=next(self._numbers),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            delta=text,
            logprobs=_told(tokens),
        )

    def end(self, status: str) -> Iterator[StreamEvent]:
        yield TextDone(
            sequence_number=next(self._numbers),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            text="".join(self._texts),
            logprobs=_told(self._tokens),
        )
        yield PartDone(
            sequence_number=next(self._numbers),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            part=self._part(),
        )
        yield ItemDone(
            sequence_number=next(self._numbers), output_index=self._index, item=self.item(status)
        )

    def item(self, status: str) -> OutputItem:
        return OutputMessage(id=self._id, status=status, content=[self._part()])

    def _part(self) -> OutputText:
        return OutputText(text="".join(self._texts), logprobs=list(self._tokens))


class OpenReasoning:
    """Thoughts."""

    def __init__(self, numbers: Numbers, output_index: int) -> None:
        self._numbers = numbers
        self._index = output_index
        self._id = new_id("rs")
        self._texts: list[str] = []

    def begin(self) -> Iterator[StreamEvent]:
        item = ReasoningItem(id=self._id, status="in_progress", content=[])
        yield ItemAdded(sequence_number=next(self._numbers), output_index=self._index, item=item)
        yield PartAdded(
            sequence_number=next(self._numbers),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            part=ReasoningText(text=""),
        )

    def add(self, text: str) -> StreamEvent:
        """More of them."""
        self._texts.append(text)
        return ReasoningDelta(
            sequence_number=next(self._numbers),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            delta=text,
        )

    def end(self, status: str) -> Iterator[StreamEvent]:
        text = "".join(self._texts)
        yield ReasoningDone(
            sequence_number=next(self._numbers),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            text=text,
        )
        yield PartDone(
            sequence_number=next(self._numbers),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            part=ReasoningText(text=text),
        )
        yield ItemDone(
            sequence_number=next(self._numbers), output_index=self._index, item=self.item(status)
        )

    def item(self, status: str) -> OutputItem:
        content = [ReasoningText(text="".join(self._texts))]
        return ReasoningItem(id=self._id, status=status, content=content)


class OpenCall:
    """A function call."""

    def __init__(self, numbers: Numbers, output_index: int, *, name: str, call_id: str) -> None:
        self._numbers = numbers
        self._index = output_index
        self._id = new_id("fc")
        self._name = name
        self._call_id = call_id
        self._texts: list[str] = []

    def begin(self) -> Iterator[StreamEvent]:
        yield ItemAdded(
            sequence_number=next(self._numbers),
            output_index=self._index,
            item=self.item("in_progress"),
        )

    def add(self, text: str) -> StreamEvent:
        """More of its arguments."""
        self._texts.append(text)
        return ArgumentsDelta(
            sequence_number=next(self._numbers),
            item_id=self._id,
            output_index=self._index,
            delta=text,
        )

    def end(self, status: str) -> Iterator[StreamEvent]:
        yield ArgumentsDone(
            sequence_number=next(self._numbers),
            item_id=self._id,
            output_index=self._index,
            arguments="".join(self._texts),
        )
        yield ItemDone(
            sequence_number=next(self._numbers), output_index=self._index, item=self.item(status)
        )

    def item(self, status: str) -> OutputItem:
        return FunctionCallItem(
            id=self._id,
            call_id=self._call_id,
            name=self._name,
            arguments="".join(self._texts),
            status=status,
        )


def _told(tokens: Sequence[TokenLogprob]) -> list[EventTokenLogprob]:
    """Log-probabilities as events tell them."""
    return [
        EventTokenLogprob(
            token=token.token,
            logprob=token.logprob,
            top_logprobs=[
                EventLogprob(token=other.token, logprob=other.logprob)
                for other in token.top_logprobs
            ],
        )
        for token in tokens
    ]
