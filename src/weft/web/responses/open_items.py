"""Items of a response while they come: each begins, grows and ends in its own events."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

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
    OutputPart,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from weft.schema.usage import TokenLogprob
from weft.web.responses.items import new_id

Numbers = Iterator[int]


class OpenItem(ABC):
    """An item that is not done, and the texts it has so far. `numbers` are those of the response's next events."""

    _prefix: ClassVar[str]

    def __init__(self, numbers: Numbers, output_index: int) -> None:
        self._numbers = numbers
        self._index = output_index
        self._id = new_id(self._prefix)
        self._in_part: dict[str, Any] = {"item_id": self._id, "content_index": 0}
        self._texts: list[str] = []

    def begin(self) -> Iterator[StreamEvent]:
        """It is there, with nothing in it."""
        item = self.item("in_progress")
        yield self._event(ItemAdded, item=item)
        if (part := self._part()) is not None:
            yield self._event(PartAdded, **self._in_part, part=part)

    def end(self, status: str) -> Iterator[StreamEvent]:
        """It is done, completed or incomplete."""
        yield self._text_done("".join(self._texts))
        if (part := self._part()) is not None:
            yield self._event(PartDone, **self._in_part, part=part)
        item = self.item(status)
        yield self._event(ItemDone, item=item)

    @abstractmethod
    def item(self, status: str) -> OutputItem:
        """The item as it is now; one that is in progress is empty."""

    def _event(self, kind: Callable[..., StreamEvent], **fields: Any) -> StreamEvent:
        """The response's next event."""
        return kind(sequence_number=next(self._numbers), output_index=self._index, **fields)

    def _part(self) -> OutputPart | None:
        """The item's one part, for those that have parts."""
        return None

    @abstractmethod
    def _text_done(self, text: str) -> StreamEvent: ...


class OpenMessage(OpenItem):
    """A message of one text."""

    _prefix = "msg"

    def __init__(self, numbers: Numbers, output_index: int) -> None:
        super().__init__(numbers, output_index)
        self._tokens: list[TokenLogprob] = []

    def add(self, text: str, tokens: Sequence[TokenLogprob]) -> StreamEvent:
        """More of the text, and the tokens that made it where they are requested."""
        self._texts.append(text)
        self._tokens += tokens
        return self._event(TextDelta, **self._in_part, delta=text, logprobs=_event_logprobs(tokens))

    def item(self, status: str) -> OutputItem:
        content = [] if status == "in_progress" else [self._part()]
        return OutputMessage(id=self._id, status=status, content=content)

    def _part(self) -> OutputText:
        return OutputText(text="".join(self._texts), logprobs=list(self._tokens))

    def _text_done(self, text: str) -> StreamEvent:
        return self._event(
            TextDone, **self._in_part, text=text, logprobs=_event_logprobs(self._tokens)
        )


class OpenReasoning(OpenItem):
    """Reasoning, in full."""

    _prefix = "rs"

    def add(self, text: str) -> StreamEvent:
        """More of it."""
        self._texts.append(text)
        return self._event(ReasoningDelta, **self._in_part, delta=text)

    def item(self, status: str) -> OutputItem:
        content = [] if status == "in_progress" else [self._part()]
        return ReasoningItem(id=self._id, status=status, content=content)

    def _part(self) -> ReasoningText:
        return ReasoningText(text="".join(self._texts))

    def _text_done(self, text: str) -> StreamEvent:
        return self._event(ReasoningDone, **self._in_part, text=text)


class OpenCall(OpenItem):
    """A function call."""

    _prefix = "fc"

    def __init__(self, numbers: Numbers, output_index: int, *, name: str, call_id: str) -> None:
        super().__init__(numbers, output_index)
        self._name = name
        self._call_id = call_id

    def add(self, text: str) -> StreamEvent:
        """More of its arguments."""
        self._texts.append(text)
        return self._event(ArgumentsDelta, item_id=self._id, delta=text)

    def item(self, status: str) -> OutputItem:
        return FunctionCallItem(
            id=self._id,
            call_id=self._call_id,
            name=self._name,
            arguments="".join(self._texts),
            status=status,
        )

    def _text_done(self, text: str) -> StreamEvent:
        return self._event(ArgumentsDone, item_id=self._id, arguments=text)


def _event_logprobs(tokens: Sequence[TokenLogprob]) -> list[EventTokenLogprob]:
    """Log-probabilities in the form of events."""
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
