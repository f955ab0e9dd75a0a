"""Items of a response while they are generated, each with events for its start, its deltas and its end."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from weft.core.checks.object_ids import new_id
from weft.core.values.types import PositionLogprobs
from weft.schema.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    CustomInputDelta,
    CustomInputDone,
    EventTokenLogprob,
    ItemAdded,
    ItemDone,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    StreamEvent,
    TextDelta,
    TextDone,
)
from weft.schema.response_object import (
    CustomCallItem,
    FunctionCallItem,
    McpApprovalRequestItem,
    McpCallItem,
    OutputItem,
    OutputMessage,
    OutputPart,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from weft.web.inference.logprobs import LogprobWriter, of_pieces
from weft.web.items.client_tools import Called, to_input
from weft.web.mcp.values import CallResult


class EventNumbers(Iterator[int]):
    """The sequence numbers of a response's events; also makes the ids of its items, which name the `store` of the
    response.
    """

    def __init__(self, store: str) -> None:
        self._count = itertools.count()
        self._store = store

    def __next__(self) -> int:
        return next(self._count)

    def new_id(self, prefix: str) -> str:
        """Returns the id of a new item."""
        return new_id(prefix, self._store)


_FIRST_PART = {"content_index": 0}


class OpenItem(ABC):
    """An item that is not done, and the texts it has so far. `numbers` yields the sequence numbers of the response's
    next events. `_delta` is the event type for a new piece of text, and `_done` the event type for the complete text,
    which is in the field `_whole`. `_part_place` has the index fields of the item's single part, if items of this type
    have parts.
    """

    _prefix: ClassVar[str]
    _delta: ClassVar[Callable[..., StreamEvent]]
    _done: ClassVar[Callable[..., StreamEvent]]
    _whole: ClassVar[str] = "arguments"
    _part_place: ClassVar[Mapping[str, int]] = {}

    def __init__(self, numbers: EventNumbers, output_index: int) -> None:
        self._numbers = numbers
        self.index = output_index
        self._id = numbers.new_id(self._prefix)
        self._place: dict[str, Any] = {"item_id": self._id, **self._part_place}
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def begin(self) -> Iterator[StreamEvent]:
        """Announces the empty item."""
        item = self.item("in_progress")
        yield self._event(ItemAdded, item=item)
        if (part := self._part()) is not None:
            yield self._event(PartAdded, **self._place, part=part)

    def add(self, text: str) -> Iterator[StreamEvent]:
        """More of the text."""
        self._texts.append(text)
        yield self._event(self._delta, **self._place, delta=text)

    def end(self, status: str) -> Iterator[StreamEvent]:
        """Announces the end of the item, completed or incomplete."""
        yield self._written()
        if (part := self._part()) is not None:
            yield self._event(PartDone, **self._place, part=part)
        item = self.item(status)
        yield self._event(ItemDone, item=item)

    @abstractmethod
    def item(self, status: str) -> OutputItem:
        """The item in its present state; one in progress is empty."""

    def _event(self, kind: Callable[..., StreamEvent], **fields: Any) -> StreamEvent:
        """The response's next event."""
        return kind(sequence_number=next(self._numbers), output_index=self.index, **fields)

    def _part(self) -> OutputPart | None:
        """The item's one part, for those that have parts."""
        return None

    def _written(self) -> StreamEvent:
        """Announces the complete text."""
        return self._event(self._done, **self._place, **{self._whole: self.text})


class ScoredToken(NamedTuple):
    """A token with its log-probabilities, as JSON: in items, and in events. An answer may have thousands."""

    in_item: bytes
    in_event: bytes


def scored(writer: LogprobWriter, rows: Sequence[PositionLogprobs]) -> list[ScoredToken]:
    """The tokens of these rows."""
    encode, convert = msgspec.json.encode, msgspec.convert
    return [
        ScoredToken(encode(token), encode(convert(token, EventTokenLogprob, from_attributes=True)))
        for token in writer.tokens(rows)
    ]


class OpenMessage(OpenItem):
    """A message with a single text."""

    _prefix, _delta, _done, _whole = "msg", TextDelta, TextDone, "text"
    _part_place = _FIRST_PART

    def __init__(self, numbers: EventNumbers, output_index: int) -> None:
        super().__init__(numbers, output_index)
        self._tokens: list[ScoredToken] = []

    def add(self, text: str, tokens: Sequence[ScoredToken] = ()) -> Iterator[StreamEvent]:
        """Adds text, and its tokens if they are requested."""
        self._texts.append(text)
        self._tokens += tokens
        yield self._event(TextDelta, **self._place, delta=text, logprobs=_in_event(tokens))

    def item(self, status: str) -> OutputItem:
        content = [] if status == "in_progress" else [self._part()]
        return OutputMessage(id=self._id, status=status, content=content)

    def _part(self) -> OutputText:
        return OutputText(
            text=self.text, logprobs=of_pieces([token.in_item for token in self._tokens])
        )

    def _written(self) -> StreamEvent:
        logprobs = _in_event(self._tokens)
        return self._event(TextDone, **self._place, text=self.text, logprobs=logprobs)


class OpenReasoning(OpenItem):
    """Reasoning, in full."""

    _prefix, _delta, _done, _whole = "rs", ReasoningDelta, ReasoningDone, "text"
    _part_place = _FIRST_PART

    def item(self, status: str) -> OutputItem:
        content = [] if status == "in_progress" else [self._part()]
        return ReasoningItem(id=self._id, status=status, content=content)

    def _part(self) -> ReasoningText:
        return ReasoningText(text=self.text)


class OpenCall(OpenItem):
    """A function call."""

    _prefix, _delta, _done = "fc", ArgumentsDelta, ArgumentsDone

    def __init__(
        self, numbers: EventNumbers, output_index: int, *, tool: Called, call_id: str
    ) -> None:
        super().__init__(numbers, output_index)
        self._tool = tool
        self._call_id = call_id

    def item(self, status: str) -> OutputItem:
        return FunctionCallItem(
            id=self._id,
            call_id=self._call_id,
            name=self._tool.name,
            arguments=self.text,
            status=status,
            namespace=self._tool.namespace or msgspec.UNSET,
        )


class OpenCustomCall(OpenCall):
    """A call of a custom tool. The model writes its input as JSON, so its text is known only at the end."""

    _prefix = "ctc"

    def add(self, text: str) -> Iterator[StreamEvent]:
        self._texts.append(text)
        return iter(())

    def end(self, status: str) -> Iterator[StreamEvent]:
        given = to_input(self.text)
        yield self._event(CustomInputDelta, **self._place, delta=given)
        yield self._event(CustomInputDone, **self._place, input=given)
        yield self._event(ItemDone, item=self.item(status))

    def item(self, status: str) -> OutputItem:
        return CustomCallItem(
            id=self._id,
            call_id=self._call_id,
            name=self._tool.name,
            input="" if status == "in_progress" else to_input(self.text),
            status=status,
            namespace=self._tool.namespace or msgspec.UNSET,
        )


class OpenServerCall(OpenItem):
    """A call of a server tool: first written like a function call, then made; it ends with `finish`, not `end`.

    An approved call has all its arguments from the start.
    """

    _prefix, _delta, _done = "mcp", McpArgumentsDelta, McpArgumentsDone

    def __init__(
        self,
        numbers: EventNumbers,
        output_index: int,
        *,
        label: str,
        name: str,
        approval_request_id: str | None = None,
    ) -> None:
        super().__init__(numbers, output_index)
        self.label = label
        self.name = name
        self._approval_request_id = approval_request_id

    def begin(self) -> Iterator[StreamEvent]:
        yield from super().begin()
        yield self._event(McpCallInProgress, item_id=self._id)

    def end(self, status: str) -> Iterator[StreamEvent]:
        """Announces the complete arguments of the call."""
        yield self._written()
        if status != "completed":
            yield from self.finish(None)

    def finish(self, result: CallResult | None) -> Iterator[StreamEvent]:
        """Announces the call's result; None means that the call was not made."""
        if result is not None:
            kind = McpCallCompleted if result.error is None else McpCallFailed
            yield self._event(kind, item_id=self._id)
        yield self._event(ItemDone, item=self.finished(result))

    def finished(self, result: CallResult | None) -> McpCallItem:
        """The complete item."""
        if result is None:
            return self.item("incomplete")
        if result.error is None:
            return msgspec.structs.replace(self.item("completed"), output=result.text)
        return msgspec.structs.replace(self.item("failed"), error=dict(result.error))

    def item(self, status: str) -> McpCallItem:
        return McpCallItem(
            id=self._id,
            server_label=self.label,
            name=self.name,
            arguments=self.text,
            approval_request_id=self._approval_request_id,
            status=status,
        )


class OpenApproval(OpenItem):
    """A call that needs an approval; not shown before it is complete."""

    _prefix = "mcpr"

    def __init__(self, numbers: EventNumbers, output_index: int, *, label: str, name: str) -> None:
        super().__init__(numbers, output_index)
        self._label = label
        self._name = name

    def begin(self) -> Iterator[StreamEvent]:
        return iter(())

    def add(self, text: str) -> Iterator[StreamEvent]:
        self._texts.append(text)
        return iter(())

    def end(self, status: str) -> Iterator[StreamEvent]:
        item = self.item(status)
        yield self._event(ItemAdded, item=item)
        yield self._event(ItemDone, item=item)

    def item(self, status: str) -> McpApprovalRequestItem:
        return McpApprovalRequestItem(
            id=self._id,
            server_label=self._label,
            name=self._name,
            arguments=self.text,
        )


def _in_event(tokens: Sequence[ScoredToken]) -> list[EventTokenLogprob]:
    return of_pieces([token.in_event for token in tokens])
