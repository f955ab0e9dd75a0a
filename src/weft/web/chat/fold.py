"""An answer in one piece: the sum of the events that a stream would send."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, assert_never

from weft.core.values.types import PositionLogprobs
from weft.text.parsers.parts import Arguments, Content, Part, Reasoning, ToolCall
from weft.web.chat.turn import Began, Ended, TurnDelta, TurnEvent, TurnReason


@dataclass(slots=True)
class WholeCall:
    """A tool call; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class WholeAnswer:
    """One of the `n` answers. `reasoning` and `content` are None if the answer has none."""

    index: int
    reasoning: str | None = None
    content: str | None = None
    calls: list[WholeCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_reasoning_tokens: int = 0
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: TurnReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class WholeTurn:
    """The complete result of a turn; answers are ordered by index."""

    prompt: str
    prompt_token_ids: list[int]
    answers: list[WholeAnswer]
    num_cached_tokens: int
    prompt_logprobs: Sequence[PositionLogprobs | None] | None
    kv_transfer_params: dict[str, Any] | None = None


async def fold(events: AsyncGenerator[TurnEvent, None]) -> WholeTurn:
    """Reads a turn to its end."""
    collectors: dict[int, _Collector] = {}
    began: Began | None = None
    ended: Ended | None = None
    async with aclosing(events):
        async for event in events:
            match event:
                case Began():
                    began = event
                case TurnDelta():
                    collectors.setdefault(event.index, _Collector(event.index)).add(event)
                case Ended():
                    ended = event
                case _:
                    assert_never(event)
    assert began is not None, "a turn without a beginning"
    assert ended is not None, "a turn without an end"
    return WholeTurn(
        prompt=began.prompt,
        prompt_token_ids=began.prompt_token_ids,
        answers=[collectors[index].whole() for index in sorted(collectors)],
        num_cached_tokens=ended.num_cached_tokens,
        prompt_logprobs=ended.prompt_logprobs,
        kv_transfer_params=ended.kv_transfer_params,
    )


class _Collector:
    """Collects the parts of an answer, which are joined once at the end."""

    def __init__(self, index: int) -> None:
        self._answer = WholeAnswer(index)
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: dict[int, tuple[ToolCall, list[str]]] = {}

    def add(self, delta: TurnDelta) -> None:
        answer = self._answer
        for part in delta.parts:
            self._add_part(part)
        answer.token_ids += delta.token_ids
        answer.num_reasoning_tokens += delta.num_reasoning_tokens
        if delta.logprobs is not None:
            answer.logprobs = answer.logprobs or []
            answer.logprobs += delta.logprobs
        if delta.finish_reason is not None:
            answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason

    def whole(self) -> WholeAnswer:
        self._answer.reasoning = "".join(self._reasoning) if self._reasoning else None
        self._answer.content = "".join(self._content) if self._content else None
        self._answer.calls = [
            WholeCall(call.id or "", call.name, "".join(arguments))
            for _, (call, arguments) in sorted(self._calls.items())
        ]
        return self._answer

    def _add_part(self, part: Part) -> None:
        match part:
            case Reasoning(text):
                self._reasoning.append(text)
            case Content(text):
                self._content.append(text)
            case ToolCall(index):
                self._calls[index] = (part, [])
            case Arguments(index, text):
                self._calls[index][1].append(text)
            case _:
                assert_never(part)
