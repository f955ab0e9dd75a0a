"""A turn's answers: their format, and the reader that converts one answer's text to parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.checks.id_source import random_hex
from weft.core.errors import BadRequest
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.text.content import joined_text
from weft.text.detokenizer import Detokenizer
from weft.text.parsers.answer import make_parser
from weft.text.parsers.families import ReasoningFamily, ToolFamily
from weft.text.parsers.forced import forced_parser
from weft.text.parsers.parts import Arguments, Content, OutputParser, Part, Reasoning, ToolCall
from weft.text.parsers.table import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    starts_in_reasoning,
)
from weft.text.templates.history import short_id
from weft.web.chat.tools import forced_calls, is_forced, is_own_format, template_tools
from weft.web.chat.turn import NamedTool, Turn, TurnDelta, TurnReason
from weft.web.served import Served

# Reasons that are not listed raise an error.
REASONS: Mapping[FinishReason, TurnReason] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.REPETITION: "repetition",
}


class ReasoningCounter:
    """Counts the reasoning tokens of one answer, markers included.

    `is_open` None: the answer's start shows whether there is reasoning.
    """

    def __init__(
        self, family: ReasoningFamily, is_open: bool | None, detokenizer: Detokenizer
    ) -> None:
        self._family = family
        self._ends = (*family.ends, *family.implicit_ends)
        self._longest = max(map(len, self._ends))
        self._is_open = is_open
        self._detokenizer = detokenizer
        # Before the decision: the start of the answer. Afterwards: text that may be the start of an end marker
        self._tail = ""
        self._num_undecided = 0

    def count(self, token_ids: Sequence[int]) -> int:
        """Counts the reasoning tokens among these tokens and earlier undecided ones."""
        if self._is_open is False:
            return 0
        return sum(map(self._count_one, token_ids))

    def _count_one(self, token_id: int) -> int:
        if self._is_open is False:
            return 0
        self._tail += self._detokenizer.push(token_id)
        num_tokens = 1
        if self._is_open is None:
            self._num_undecided += 1
            self._tail = self._tail.lstrip()
            self._is_open = self._decided()
            if not self._is_open:
                return 0
            num_tokens, self._num_undecided = self._num_undecided, 0
        if any(end in self._tail for end in self._ends):
            self._is_open = False
        self._tail = self._tail[-self._longest :]
        return num_tokens

    def _decided(self) -> bool | None:
        """Whether the answer begins with reasoning; None while undecided."""
        if self._tail.startswith(self._family.starts):
            return True
        if any(start.startswith(self._tail) for start in self._family.starts):
            return None
        return self._family.may_omit_start


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """Format of a turn's answers, created once per turn, when the prompt is rendered. `is_open` is True if answers
    begin inside reasoning; None means that the model decides. `end_markers` are special tokens that are removed from
    answers; they appear because the parser needs text with special tokens. `first_id` is the first number in the ids of
    calls, for models that count calls through the conversation. `has_short_ids` is True if the chat template accepts
    only ids of nine letters and digits. `tools` are the turn's tools in the form that templates read.
    """

    turn: Turn
    reasoning: ReasoningFamily | None = None
    tool: ToolFamily | None = None
    is_open: bool | None = None
    end_markers: tuple[str, ...] = ()
    first_id: int | None = None
    has_short_ids: bool = False
    tools: Sequence[Mapping[str, Any]] = ()

    def make_call_id(self) -> str:
        """An id for a call without one, in a form that the template accepts in later turns."""
        if self.has_short_ids:
            return short_id(random_hex(16))
        return self.turn.call_id_prefix + random_hex(16)

    def parser(self) -> OutputParser:
        """Creates a parser for one answer."""
        choice = self.turn.tool_choice
        if self.tool is None and is_forced(choice):
            return forced_parser(
                choice.name if isinstance(choice, NamedTool) else None,
                reasoning=self.reasoning,
                starts_in_reasoning=self.is_open,
                end_markers=self.end_markers,
                first_id=self.first_id,
            )
        return make_parser(
            self.reasoning,
            self.tool,
            tools=self.tools,
            starts_in_reasoning=self.is_open,
            num_earlier_calls=self.first_id or 0,
            end_markers=self.end_markers,
        )

    def counter(self, served: Served, prompt_token_ids: list[int]) -> ReasoningCounter | None:
        """Returns a counter of an answer's reasoning tokens; None if there can be none."""
        if self.reasoning is None or self.is_open is False:
            return None
        detokenizer = served.tokenizer.detokenizer(
            skip_special_tokens=False, prompt_token_ids=prompt_token_ids
        )
        return ReasoningCounter(self.reasoning, self.is_open, detokenizer)

    def engine_arguments(self, params: SamplingParams) -> dict[str, Any]:
        """Returns the reasoning arguments of `generate`: where a constraint begins, and the text that ends a budget."""
        if self.reasoning is None:
            return {}
        if params.structured_outputs is None and params.thinking_token_budget is None:
            return {}
        return {
            "reasoning_ended": self.is_open is not True,
            "reasoning_parser_kwargs": {"end": self.reasoning.reasoning_end},
        }


@dataclass(frozen=True, slots=True)
class Families:
    """Families whose reasoning and calls are parsed in a turn's answers; `calling` is that of the server.

    With `needs_special_tokens` their markers are special tokens, which texts usually omit.
    """

    reasoning: ReasoningFamily | None = None
    tool: ToolFamily | None = None
    calling: ToolFamily | None = None
    needs_special_tokens: bool = False


# Of a turn without tools at a server without parsers.
_NO_FAMILIES = Families()


def choose_families(served: Served, turn: Turn, params: SamplingParams) -> Families:
    """Returns the families of a turn; `params` hold the constraint on forced calls."""
    name = served.options.reasoning_parser
    if name is None and served.options.tool_call_parser is None and not turn.tools:
        return _NO_FAMILIES
    reasoning = None
    if name is not None:
        reasoning = REASONING_PARSERS[name].with_template(_source(served, turn))
    calling = _calling_family(served)
    tool = _tool_family(served, turn, params, calling)
    needs_special_tokens = (reasoning is not None and reasoning.needs_special_tokens) or (
        tool is not None and tool.needs_special_tokens
    )
    return Families(reasoning, tool, calling, needs_special_tokens)


def choose_format(
    served: Served, turn: Turn, prompt: str, params: SamplingParams, families: Families
) -> AnswerFormat:
    """The format of the answers to a rendered prompt; `params` hold the constraints."""
    if families is _NO_FAMILIES:
        return AnswerFormat(turn=turn)
    reasoning, tool, calling = families.reasoning, families.tool, families.calling
    is_open = None
    if reasoning is not None:
        is_open = _is_open(turn, prompt, reasoning)
        is_ruled = params.structured_outputs is not None or params.thinking_token_budget is not None
        # In harmony, a constraint on the calls includes the reasoning before them.
        has_ruled_reasoning = tool is not None and tool.is_harmony and is_forced(turn.tool_choice)
        if is_open is None and is_ruled and not has_ruled_reasoning:
            is_open = _reasons_by_default(served, turn, reasoning)
    if served.client.info.structured_outputs_in_reasoning and params.structured_outputs:
        is_open = False
    has_markers = families.needs_special_tokens and turn.params.skip_special_tokens
    return AnswerFormat(
        turn=turn,
        reasoning=reasoning,
        tool=tool,
        is_open=is_open,
        end_markers=_end_markers(served) if has_markers else (),
        first_id=_num_calls(turn) if calling is not None and calling.counts_ids else None,
        has_short_ids=calling is not None and calling.has_short_ids,
        tools=(template_tools(turn.tools) or ()) if turn.tools else (),
    )


def forced_format(served: Served, turn: Turn) -> StructuredOutputsParams | None:
    """Returns the constraint for a turn that must call tools; None for other turns."""
    family = _calling_family(served)
    # In harmony, the format includes the reasoning, unless the reasoning has begun already or its tokens are counted.
    has_own_reasoning = turn.continue_final_message or turn.params.thinking_token_budget is not None
    if family is not None and family.is_harmony and has_own_reasoning:
        family = None
    return forced_calls(
        turn,
        family,
        has_reasoning=served.options.reasoning_parser is not None,
        num_earlier_calls=_num_calls(turn),
        end_texts=_end_markers(served),
    )


def _source(served: Served, turn: Turn) -> str:
    """The text of the template that the turn is rendered with."""
    own = "" if served.chat_template is None else served.chat_template.source
    return own if turn.chat_template is None else turn.chat_template


def _calling_family(served: Served) -> ToolFamily | None:
    name = served.options.tool_call_parser
    return None if name is None else TOOL_PARSERS[name]


def _tool_family(
    served: Served, turn: Turn, params: SamplingParams, family: ToolFamily | None
) -> ToolFamily | None:
    """The family whose calls are parsed: if the model may write calls, or must write them in its own format."""
    if is_forced(turn.tool_choice):
        return family if is_own_format(params) else None
    if not turn.tools or turn.tool_choice != "auto":
        return None
    if not served.options.enable_auto_tool_choice or family is None:
        raise BadRequest(
            "tool_choice",
            'tool_choice "auto" needs a server with a tool-call parser (--enable-auto-tool-choice '
            "and --tool-call-parser); a named function, required and none work without",
        )
    return family


def _is_open(turn: Turn, prompt: str, family: ReasoningFamily) -> bool | None:
    """True if the prompt, or the text of a continued message, ends inside reasoning; None if unknown."""
    if not turn.continue_final_message:
        return starts_in_reasoning(prompt, family)
    # The rendered prompt ends with the last message's text, which the answer continues.
    text = prompt[-len(joined_text(turn.messages[-1].get("content"))) :]
    is_begun = any(start in text for start in family.starts)
    return is_begun and not any(end in text for end in family.ends)


def _reasons_by_default(served: Served, turn: Turn, family: ReasoningFamily) -> bool:
    """True if a model with optional reasoning reasons although the prompt leaves that open.

    A constraint that waits for an end of reasoning that never comes would have no effect. Templates of models whose
    reasoning can be switched off contain a certain word; these models reason by default.
    """
    return family.may_omit_start or family.is_harmony or "enable_thinking" in _source(served, turn)


def _end_markers(served: Served) -> tuple[str, ...]:
    texts = map(served.tokenizer.added_text, served.client.model_config.eos_token_ids)
    return tuple(text for text in texts if text)


def _num_calls(turn: Turn) -> int:
    """Number of earlier calls; some families number calls through the whole conversation."""
    return sum(len(message.get("tool_calls") or ()) for message in turn.messages)


class AnswerReader:
    """Converts the outputs of one answer to deltas."""

    def __init__(self, form: AnswerFormat, counter: ReasoningCounter | None) -> None:
        self._form = form
        self._parser = form.parser()
        self._turn = form.turn
        # An answer with a forced call has no other text, except when it was cut off before the call's name.
        self._has_content = not is_forced(form.turn.tool_choice)
        self._counter = counter
        self._has_called = False

    def read(self, output: CompletionOutput) -> TurnDelta:
        """The delta of an output; it may have no parts."""
        found = self._parser.feed(output.text) if output.text else []
        reason = output.finish_reason
        if reason is not None:
            found = [*found, *self._parser.finish()]
        parts = [visible for part in found if (visible := self._visible(part)) is not None]
        return TurnDelta(
            index=output.index,
            parts=parts,
            token_ids=output.token_ids,
            num_reasoning_tokens=self._counter.count(output.token_ids) if self._counter else 0,
            logprobs=output.logprobs,
            finish_reason=None if reason is None else self._reason(reason),
            stop_reason=output.stop_reason,
        )

    def _visible(self, part: Part) -> Part | None:
        """The part as the caller gets it; None if it is hidden."""
        if isinstance(part, Content):
            return part if self._has_content else None
        if isinstance(part, Reasoning):
            return part if self._turn.include_reasoning else None
        if isinstance(part, ToolCall | Arguments):
            if part.index > 0 and not self._turn.parallel_tool_calls:
                return None
            if isinstance(part, ToolCall):
                self._has_called = True
                made = part.id or self._form.make_call_id()
                return msgspec.structs.replace(part, id=made)
        return part

    def _reason(self, reason: FinishReason) -> TurnReason:
        """The engine's reason; "tool_calls" if the model stopped after calls.

        A call that was cut off at a limit must not be run, so "length" stays.
        """
        is_named = isinstance(self._turn.tool_choice, NamedTool)
        if reason is FinishReason.STOP and self._has_called and not is_named:
            return "tool_calls"
        return REASONS[reason]
