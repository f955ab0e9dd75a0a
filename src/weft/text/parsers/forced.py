"""Parsers for answers that a grammar forces to be tool calls in JSON, independent of the model's own format."""

from collections.abc import Sequence

from weft.text.parsers.answer import AnswerParser, read_answer, read_reasoning
from weft.text.parsers.families import ReasoningFamily, ToolFamily
from weft.text.parsers.forms.form import ParseContext
from weft.text.parsers.parts import OutputParser
from weft.text.parsers.streams import Markers, PartCollector, Reading, TextBuffer

_FORCED = ToolFamily(
    starts="[{",
    models="any, under a grammar",
    example='[{"name": "get_weather", "parameters": {"city": "Paris"}}]',
    needs_special_tokens=False,
)


def forced_parser(
    name: str | None = None,
    *,
    reasoning: ReasoningFamily | None = None,
    starts_in_reasoning: bool | None = None,
    end_markers: Sequence[str] = (),
    first_id: int | None = None,
) -> OutputParser:
    """Parses `[{"name": ..., "parameters": {...}}, ...]`, or with `name` the arguments of one call, after optional
    reasoning.

    With `first_id`, ids have the form `functions.NAME:N`, counted from there.
    """
    context = ParseContext(TextBuffer(), PartCollector(first_id), {})
    if name is None:
        reading = read_answer(context, reasoning, _FORCED, is_open=starts_in_reasoning)
    else:
        reading = _read_named(context, name, reasoning, is_open=starts_in_reasoning)
    return AnswerParser(context, reading, end_markers)


def _read_named(
    context: ParseContext, name: str, reasoning: ReasoningFamily | None, *, is_open: bool | None
) -> Reading[None]:
    if reasoning is not None and is_open is not False:
        yield from read_reasoning(context, reasoning, is_open=is_open)
    yield from context.buffer.skip_space()
    if (yield from context.buffer.peek()) == "":
        return
    context.announce(name)
    yield from context.buffer.until(Markers(()), context.collector.arguments)
