"""Reads one answer from its start: reasoning, then text with calls in it.

Text that looks like a tool call but is malformed becomes content, character for character, unless the call was already
announced. An announced call is never withdrawn. A call that is cut off keeps the arguments received so far. A malformed
call keeps the arguments before the error, with a closing brace if the parser itself writes the JSON. The text between
the error and the closing marker becomes content.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.errors import ConfigError
from weft.text.parsers.families import ReasoningFamily, ToolFamily
from weft.text.parsers.forms.form import NAME, ParseContext
from weft.text.parsers.forms.harmony import read_harmony
from weft.text.parsers.parts import Content, OutputParser, Part
from weft.text.parsers.streams import Malformed, Markers, PartCollector, Reading, TextBuffer


def make_parser(
    reasoning: ReasoningFamily | None,
    tool: ToolFamily | None,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    starts_in_reasoning: bool | None = None,
    num_earlier_calls: int = 0,
    end_markers: Sequence[str] = (),
) -> OutputParser:
    """The parser of one answer of a model of these families.

    `tools` are those of the request: their schemas decide the types of arguments that are not written as JSON.
    `starts_in_reasoning`:
    whether the prompt left the reasoning open, or closed it; None if it says nothing.
    `num_earlier_calls` is the first number for call ids that count through the whole conversation. `end_markers` are
    special
    tokens that end a turn, where the text is decoded with special tokens: they are left out.
    """
    if reasoning is None and tool is None and not end_markers:
        return TextParser()
    families = [family for family in (reasoning, tool) if family is not None]
    first_id = num_earlier_calls if tool is not None and tool.counts_ids else None
    context = ParseContext(TextBuffer(), PartCollector(first_id), _schemas(tools))
    if not any(family.is_harmony for family in families):
        reading = read_answer(context, reasoning, tool, is_open=starts_in_reasoning)
    elif all(family.is_harmony for family in families):
        reading = read_harmony(context, is_open=starts_in_reasoning)
    else:
        raise ConfigError(
            "the harmony format holds reasoning and calls together: its parsers, openai_gptoss and "
            "openai, go with each other only"
        )
    return AnswerParser(context, reading, end_markers)


class AnswerParser:
    """An `OutputParser` that removes `end_markers` from the text, and passes the rest to a reader."""

    __slots__ = ("_context", "_filter", "_reading")

    def __init__(
        self, context: ParseContext, reading: Reading[None], end_markers: Sequence[str] = ()
    ) -> None:
        self._context = context
        self._reading = reading
        self._filter = _MarkerFilter(end_markers) if end_markers else None

    def feed(self, text: str) -> list[Part]:
        self._context.buffer.add(text if self._filter is None else self._filter.push(text))
        next(self._reading, None)
        return self._context.collector.take()

    def finish(self) -> list[Part]:
        if self._filter is not None:
            self._context.buffer.add(self._filter.flush())
        self._context.buffer.end()
        next(self._reading, None)
        return self._context.collector.take()


class TextParser:
    """Parser of answers without reasoning and tool calls, at a tenth of `AnswerParser`'s cost per token."""

    __slots__ = ("_spaces",)

    def __init__(self) -> None:
        # White space at the beginning of the answer; None after the beginning.
        self._spaces: list[str] | None = []

    def feed(self, text: str) -> list[Part]:
        if self._spaces is None:
            return [Content(text)] if text else []
        self._spaces.append(text)
        return [] if not text or text.isspace() else self.finish()

    def finish(self) -> list[Part]:
        text, self._spaces = "".join(self._spaces or ()), None
        return [Content(text)] if text else []


class _MarkerFilter:
    """Removes markers from text that arrives in pieces."""

    __slots__ = ("_held", "_markers")

    def __init__(self, literals: Sequence[str]) -> None:
        self._markers = Markers(literals)
        self._held = ""

    def push(self, text: str) -> str:
        return self._pass(text, is_ended=False)

    def flush(self) -> str:
        return self._pass("", is_ended=True)

    def _pass(self, text: str, *, is_ended: bool) -> str:
        text = self._held + text
        pieces: list[str] = []
        start = 0
        while True:
            end, marker = self._markers.find(text, start, is_ended=is_ended)
            pieces.append(text[start:end])
            if marker is None:
                self._held = text[end:]
                return "".join(pieces)
            start = end + len(marker)


def read_answer(
    context: ParseContext,
    reasoning: ReasoningFamily | None,
    tool: ToolFamily | None,
    *,
    is_open: bool | None,
) -> Reading[None]:
    """Reads reasoning, if the family has it and the prompt has not closed it; then text and calls."""
    before, marker = "", None
    if reasoning is not None and is_open is not False:
        before, marker = yield from read_reasoning(context, reasoning, is_open=is_open)
    tags = () if reasoning is None else reasoning.answer_tags
    answer = _TextAndCalls(context, tool, tags)
    if marker is not None and not answer.knows(marker):
        # For these models the marker ends the reasoning even if no tool parser reads their calls.
        context.collector.content(marker)
        marker = None
    yield from answer.read(before, marker)


def read_reasoning(
    context: ParseContext, family: ReasoningFamily, *, is_open: bool | None
) -> Reading[tuple[str, str | None]]:
    """Reads the reasoning. Returns what it consumed of the answer: white space, and the marker of a call."""
    space = yield from context.buffer.skip_space()
    start = yield from context.buffer.take_any(Markers(family.starts))
    if start is not None:
        # White space on either side belongs to the marker.
        yield from context.buffer.skip_space()
    elif is_open or family.may_omit_start:
        context.collector.reasoning(space)
    else:
        return space, None
    ends = Markers((*family.ends, *family.implicit_ends))
    end = yield from context.buffer.until(ends, context.collector.reasoning)
    if end in family.implicit_ends:
        return "", end
    yield from context.buffer.skip_space()
    return "", None


class _TextAndCalls:
    """Reads the answer after the reasoning: text, and calls if the family has a format for them."""

    __slots__ = ("_closers", "_context", "_family", "_marks", "_openers", "_sections", "_tags")

    def __init__(
        self, context: ParseContext, family: ToolFamily | None, tags: tuple[str, ...]
    ) -> None:
        self._context = context
        self._family = family
        self._tags = frozenset(tags)
        self._sections = frozenset(() if family is None else family.sections)
        self._openers = Markers(() if family is None else (*family.openers, *family.sections))
        self._closers = frozenset(() if family is None else family.closers)
        self._marks = Markers((*self._openers.literals, *self._closers, *self._tags))

    def knows(self, marker: str) -> bool:
        """True if a marker has a meaning in this family; other markers are text."""
        return marker in self._marks.literals

    def read(self, space: str, marker: str | None) -> Reading[None]:
        """Reads to the end.

        `space` and `marker` were consumed from the start of the text already. White space at the start and after a
        call is held back: before another call and after the last one it is only layout.
        """
        buffer, collector = self._context.buffer, self._context.collector
        is_start = True
        while True:
            if marker is None:
                space += yield from buffer.skip_space()
                marker = yield from buffer.take_any(self._marks)
            if marker is None and is_start:
                marker = yield from self._peek_start()
            if marker is None:
                is_over = (yield from buffer.peek()) == ""
                if not (is_over and collector.num_calls):
                    collector.content(space)
                space = ""
                marker = yield from buffer.until(self._marks, collector.content)
            if marker is None:
                return
            space = yield from self._read_marked(space, marker)
            marker, is_start = None, False

    def _peek_start(self) -> Reading[str | None]:
        """Returns an empty marker if the answer begins with a call that needs none."""
        first = yield from self._context.buffer.peek()
        starts = "" if self._family is None else self._family.starts
        return "" if first and first in starts else None

    def _read_marked(self, space: str, marker: str) -> Reading[str]:
        """Reads the part that begins with `marker`; returns white space after it that is undecided."""
        buffer, collector = self._context.buffer, self._context.collector
        if marker in self._tags:
            yield from buffer.skip_space()
            return ""
        if marker in self._closers:
            if not collector.num_calls:
                collector.content(space + marker)
            return ""
        buffer.mark(space + marker)
        while marker in self._sections:
            # Some models repeat a word or the call's name between two markers.
            yield from buffer.skip_space()
            yield from buffer.take_while(NAME)
            yield from buffer.skip_space()
            inner = yield from buffer.take_any(self._openers)
            if inner is None:
                collector.content(buffer.take_marked())
                return ""
            marker = inner
        form = None if self._family is None else self._family.form
        assert form is not None, "only families with a form have openers"
        try:
            yield from form.read(self._context)
        except Malformed:
            # If the call was announced to the reader, the rest is dropped; otherwise all of it is content.
            collector.content(buffer.take_marked())
        buffer.take_marked()
        return ""


def _schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Parameter schemas by tool name, from either shape: with a `function` member, or flat."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        schema = function.get("parameters", function.get("input_schema"))
        if isinstance(schema, Mapping):
            schemas[function["name"]] = schema
    return schemas
