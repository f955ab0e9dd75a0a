"""One answer of a turn as it comes: text to parts, ids for tool calls, the reason it ended."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from weft.core.types import CompletionOutput, FinishReason
from weft.text.parsers.parts import Arguments, Content, OutputParser, Part, Reasoning, ToolCall
from weft.web.chat.thoughts import ThoughtCounter
from weft.web.chat.tools import is_forced
from weft.web.chat.turn import NamedTool, Turn, TurnDelta, TurnReason

# An error is raised, not told.
_REASONS: Mapping[FinishReason, TurnReason] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.REPETITION: "repetition",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the caller wants to see of what the parser finds."""

    has_reasoning: bool
    is_first_call_only: bool
    is_named_call: bool
    # An answer that has to be calls holds no other text, unless the end cut one before its name.
    has_content: bool = True
    call_id_prefix: str = "chatcmpl-tool-"

    @classmethod
    def of(cls, turn: Turn) -> "Wishes":
        """Those of a turn."""
        return cls(
            has_reasoning=turn.include_reasoning,
            is_first_call_only=not turn.parallel_tool_calls,
            is_named_call=isinstance(turn.tool_choice, NamedTool),
            has_content=not is_forced(turn.tool_choice),
            call_id_prefix=turn.call_id_prefix,
        )


class AnswerReader:
    """Turns one answer's outputs, each with what is new, into deltas."""

    def __init__(
        self, parser: OutputParser, wishes: Wishes, thoughts: ThoughtCounter | None = None
    ) -> None:
        self._parser = parser
        self._wishes = wishes
        self._thoughts = thoughts
        self._has_called = False

    def read(self, output: CompletionOutput) -> TurnDelta:
        """The delta that an output makes; it may have no parts."""
        found = self._parser.feed(output.text) if output.text else []
        if output.is_finished:
            found = [*found, *self._parser.finish()]
        parts = [kept for part in found if (kept := self._kept(part)) is not None]
        return TurnDelta(
            index=output.index,
            parts=parts,
            token_ids=output.token_ids,
            num_reasoning_tokens=self._thoughts.count(output.token_ids) if self._thoughts else 0,
            logprobs=output.logprobs,
            finish_reason=self._reason(output.finish_reason),
            stop_reason=output.stop_reason,
        )

    def _kept(self, part: Part) -> Part | None:
        """The part as the caller is to see it; None where not at all."""
        if isinstance(part, Reasoning):
            return part if self._wishes.has_reasoning else None
        if isinstance(part, Content):
            return part if self._wishes.has_content else None
        if isinstance(part, ToolCall | Arguments):
            if self._wishes.is_first_call_only and part.index > 0:
                return None
            if isinstance(part, ToolCall):
                self._has_called = True
                return part if part.id else msgspec.structs.replace(part, id=self._new_call_id())
        return part

    def _reason(self, reason: FinishReason | None) -> TurnReason | None:
        """The engine's reason, unless it stopped to have its calls made.

        A call that was cut off by a limit is not to be made, so "length" stays what it is.
        """
        if reason is None:
            return None
        if reason is FinishReason.STOP and self._has_called and not self._wishes.is_named_call:
            return "tool_calls"
        return _REASONS[reason]

    def _new_call_id(self) -> str:
        """An id for a tool call to which the model gave none."""
        return self._wishes.call_id_prefix + secrets.token_hex(16)
