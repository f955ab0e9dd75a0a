"""Converts a turn's events to the chunks of a chat completion."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.aio.scores import write_scores
from weft.core.values.logprobs import num_scores
from weft.core.values.types import PositionLogprobs
from weft.schema.chat import (
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    FunctionDelta,
    ToolCallDelta,
)
from weft.schema.usage import Usage
from weft.text.parsers.parts import Arguments, Content, Part, Reasoning, ToolCall
from weft.web.chat.run import TurnSink, run_turn
from weft.web.chat.turn import Began, Ended, Turn, TurnDelta, TurnEvent
from weft.web.http.endpoint import Events
from weft.web.http.sse import DONE, EventOfText, data_event
from weft.web.inference.call import AnswerDetails, Heading, to_usage
from weft.web.inference.logprobs import LogprobWriter
from weft.web.served import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """Form of an answer, streamed or not. `echo` is text that precedes the answer."""

    head: Heading
    details: AnswerDetails
    role: str
    num_answers: int
    echo: str
    has_forced_call: bool
    has_prompt_text: bool
    logprobs: LogprobWriter


def chat_stream(served: Served, turn: Turn, shape: ChatShape) -> Events:
    """The whole stream, `[DONE]` included."""
    writer = PromptTextWriter(shape) if shape.has_prompt_text else ChunkWriter(shape)
    sink = TurnSink(writer.encoded) if turn.params.logprobs is None else None
    return Events(_chat_events(run_turn(served, turn, sink=sink), writer), sink=sink)


async def _chat_events(
    events: AsyncGenerator[TurnEvent, None], writer: "ChunkWriter"
) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Began):
                # The first chunk of each answer may have all ids of the prompt, so they are sent one by one.
                for first in writer.first(event):
                    yield data_event(first)
                continue
            if isinstance(event, TurnDelta) and event.logprobs is not None:
                chunks = await write_scores(
                    writer.num_scores_of(event), partial(writer.encoded, event)
                )
            else:
                chunks = writer.encoded(event)
            for chunk in chunks:
                yield chunk
    yield DONE


@dataclass(slots=True)
class _Progress:
    """State of one answer, and the parts that wait for its next chunk."""

    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    plain: EventOfText | None = None  # set once there was such an event


class ChunkWriter:
    """Converts events to chunks. Parts without visible text wait for the next chunk."""

    def __init__(self, shape: ChatShape) -> None:
        self._shape = shape
        self._progress: defaultdict[int, _Progress] = defaultdict(_Progress)
        self._num_prompt_tokens = 0
        details = shape.details
        self._has_running_usage = details.has_running_usage
        self._has_plain = not (details.has_token_ids or details.has_running_usage)

    def num_scores_of(self, event: TurnDelta) -> int:
        """Number of logprobs in an event's chunk: many if the client lagged behind."""
        return num_scores(self._progress[event.index].logprobs) + num_scores(event.logprobs)

    def encoded(self, event: TurnDelta | Ended) -> list[bytes]:
        """The encoded chunks of an event."""
        if isinstance(event, Ended):
            return [data_event(self._last(event))] if self._shape.details.has_usage else []
        plain = self._plain_event(event)
        return list(map(data_event, self._delta(event))) if plain is None else [plain]

    def _plain_event(self, event: TurnDelta) -> bytes | None:
        """The encoded event of a delta that is only text, the usual case; None for others."""
        if (
            not self._has_plain
            or event.finish_reason is not None
            or event.logprobs is not None
            or len(event.parts) != 1
        ):
            return None
        part = event.parts[0]
        progress = self._progress[event.index]
        if not isinstance(part, Content) or progress.logprobs:
            return None
        progress.num_tokens += len(event.token_ids)
        progress.num_reasoning_tokens += event.num_reasoning_tokens
        if progress.plain is None:
            progress.plain = EventOfText(partial(self._text_chunk, event.index))
        return progress.plain.of(part.text)

    def _text_chunk(self, index: int, text: str) -> ChatChunk:
        return self._chunk(ChatChunkChoice(index=index, delta=to_delta([Content(text)])))

    def first(self, event: Began) -> Iterator[ChatChunk]:
        """The first chunks of all answers."""
        self._num_prompt_tokens = len(event.prompt_token_ids)
        ids = event.prompt_token_ids if self._shape.details.has_token_ids else None
        for index in range(self._shape.num_answers):
            choice = ChatChunkChoice(
                index=index, delta=ChatDelta(role=self._shape.role, content="")
            )
            yield self._chunk(choice, prompt_token_ids=ids)
        if not self._shape.echo:
            return
        for index in range(self._shape.num_answers):
            yield self._chunk(
                ChatChunkChoice(index=index, delta=ChatDelta(content=self._shape.echo))
            )

    def _delta(self, event: TurnDelta) -> Iterator[ChatChunk]:
        progress = self._progress[event.index]
        progress.num_tokens += len(event.token_ids)
        progress.num_reasoning_tokens += event.num_reasoning_tokens
        progress.logprobs += event.logprobs or ()
        has_ids = self._shape.details.has_token_ids
        is_end = event.finish_reason is not None
        if not (event.parts or is_end or (has_ids and event.token_ids)):
            return
        rows, progress.logprobs = progress.logprobs, []
        yield self._chunk(
            ChatChunkChoice(
                index=event.index,
                delta=to_delta(event.parts),
                logprobs=self._shape.logprobs.chat(rows) if rows else None,
                finish_reason=event.finish_reason,
                stop_reason=event.stop_reason if is_end else UNSET,
                token_ids=event.token_ids if has_ids else UNSET,
            )
        )

    def _last(self, event: Ended) -> ChatChunk:
        head = self._shape.head
        usage = to_usage(
            self._shape.details,
            num_prompt_tokens=self._num_prompt_tokens,
            num_completion_tokens=sum(progress.num_tokens for progress in self._progress.values()),
            num_cached_tokens=event.num_cached_tokens,
            num_reasoning_tokens=sum(
                progress.num_reasoning_tokens for progress in self._progress.values()
            ),
        )
        return ChatChunk(
            id=head.id, created=head.created, model=head.model, choices=[], usage=usage
        )

    def _chunk(
        self,
        choice: ChatChunkChoice,
        *,
        prompt_token_ids: list[int] | UnsetType | None = UNSET,
    ) -> ChatChunk:
        head = self._shape.head
        return ChatChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[choice],
            usage=self._running_usage(choice.index) if self._has_running_usage else UNSET,
            prompt_token_ids=prompt_token_ids,
        )

    def _running_usage(self, index: int) -> Usage:
        """Usage of one answer so far."""
        progress = self._progress[index]
        return to_usage(
            self._shape.details,
            num_prompt_tokens=self._num_prompt_tokens,
            num_completion_tokens=progress.num_tokens,
            num_reasoning_tokens=progress.num_reasoning_tokens,
        )


class PromptTextWriter(ChunkWriter):
    """A writer whose first chunk has the text of the prompt."""

    def first(self, event: Began) -> Iterator[ChatChunk]:
        first, *rest = super().first(event)
        yield msgspec.structs.replace(first, prompt_text=event.prompt)
        yield from rest


def to_delta(parts: list[Part]) -> ChatDelta:
    """Returns all parts in one delta: the header of a tool call and its first arguments share an entry."""
    content = reasoning = ""
    calls: dict[int, list[ToolCall | Arguments]] = {}
    for part in parts:
        if isinstance(part, Content):
            content += part.text
        elif isinstance(part, Reasoning):
            reasoning += part.text
        else:
            calls.setdefault(part.index, []).append(part)
    return ChatDelta(
        content=content or UNSET,
        reasoning=reasoning or UNSET,
        reasoning_content=reasoning or UNSET,
        tool_calls=list(starmap(_call_delta, calls.items())) or UNSET,
    )


def _call_delta(index: int, parts: list[ToolCall | Arguments]) -> ToolCallDelta:
    text = "".join(part.text for part in parts if isinstance(part, Arguments))
    header = next((part for part in parts if isinstance(part, ToolCall)), None)
    if header is None:
        return ToolCallDelta(index=index, function=FunctionDelta(arguments=text))
    return ToolCallDelta(
        index=index,
        id=header.id or UNSET,
        type="function",
        function=FunctionDelta(name=header.name, arguments=text),
    )
