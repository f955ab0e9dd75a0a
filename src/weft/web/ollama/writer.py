"""Converts a turn's events to pieces of Ollama's answers; an answer in one piece is the sum of the pieces."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.errors import Unavailable
from weft.core.values.types import PositionLogprobs
from weft.schema.ollama import Timings, WrittenCall, WrittenFunction
from weft.schema.usage import TokenLogprob
from weft.text.parsers.parts import Arguments, Content, Part, Reasoning, ToolCall
from weft.web.chat.partial_json import completed
from weft.web.chat.turn import Began, Ended, TurnDelta, TurnEvent
from weft.web.inference.logprobs import LogprobWriter


@dataclass(slots=True)
class Piece:
    """A part of an answer. `end` is set in the last piece."""

    content: str = ""
    thinking: str = ""
    calls: list[WrittenCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    end: Timings | None = None

    def add(self, other: "Piece") -> None:
        """Appends the next piece."""
        self.content += other.content
        self.thinking += other.thinking
        self.calls += other.calls
        if not isinstance(other.logprobs, UnsetType):
            before = [] if isinstance(self.logprobs, UnsetType) else self.logprobs
            self.logprobs = [*before, *other.logprobs]
        self.end = other.end


class PieceWriter:
    """Converts events to pieces. A tool call is in one piece, once the model has written all of it.

    Logprobs of tokens without visible text are in the next piece.
    """

    def __init__(self, logprobs: LogprobWriter | None) -> None:
        self._logprobs = logprobs
        self._rows: list[PositionLogprobs] = []
        self._began_ns = time.perf_counter_ns()
        self._first_ns = self._began_ns
        self._num_prompt_tokens = 0
        self._num_tokens = 0
        self._num_calls = 0
        self._open: tuple[ToolCall, list[str]] | None = None
        self._reason = "stop"

    def pieces(self, event: TurnEvent) -> Iterator[Piece]:
        """The pieces that an event makes."""
        match event:
            case Began():
                self._first_ns = time.perf_counter_ns()
                self._num_prompt_tokens = len(event.prompt_token_ids)
            case TurnDelta():
                yield from self._delta(event)
            case Ended():
                yield Piece(calls=self._closed(), logprobs=self._scores(), end=self._end())
            case _:
                assert_never(event)

    def _delta(self, event: TurnDelta) -> Iterator[Piece]:
        self._num_tokens += len(event.token_ids)
        self._rows += event.logprobs or ()
        if event.finish_reason is not None:
            self._finish(event.finish_reason)
        piece = Piece()
        for part in event.parts:
            self._add(piece, part)
        if piece.content or piece.thinking or piece.calls:
            piece.logprobs = self._scores()
            yield piece

    def _add(self, piece: Piece, part: Part) -> None:
        match part:
            case Content(text):
                piece.content += text
            case Reasoning(text):
                piece.thinking += text
            case ToolCall():
                piece.calls += self._closed()
                self._open = part, []
            case Arguments(text=text):
                assert self._open is not None, "arguments follow a call"
                self._open[1].append(text)
            case _:
                assert_never(part)

    def _closed(self) -> list[WrittenCall]:
        """The call that was open, if any. Arguments that were cut off at a limit are closed to a valid object."""
        if self._open is None:
            return []
        (call, texts), self._open = self._open, None
        made = WrittenCall(
            id=call.id or "",
            function=WrittenFunction(
                index=self._num_calls,
                name=call.name,
                arguments=msgspec.Raw(completed("".join(texts)).encode()),
            ),
        )
        self._num_calls += 1
        return [made]

    def _scores(self) -> list[TokenLogprob] | UnsetType:
        rows: Sequence[PositionLogprobs]
        rows, self._rows = self._rows, []
        return UNSET if self._logprobs is None or not rows else self._logprobs.tokens(rows)

    def _finish(self, reason: str) -> None:
        if reason == "abort":
            # The API has no reason for an abort, and the answer is incomplete.
            raise Unavailable("the request was aborted on the server")
        self._reason = "length" if reason == "length" else "stop"

    def _end(self) -> Timings:
        now = time.perf_counter_ns()
        return Timings(
            done_reason=self._reason,
            total_duration=now - self._began_ns,
            load_duration=0,  # the model is always loaded
            prompt_eval_count=self._num_prompt_tokens,
            prompt_eval_duration=self._first_ns - self._began_ns,
            eval_count=self._num_tokens,
            eval_duration=now - self._first_ns,
        )


def now() -> str:
    """The present time, as Ollama writes times."""
    return to_text(time.time())


def to_text(unix_s: float) -> str:
    """Unix time, as Ollama writes times."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")
