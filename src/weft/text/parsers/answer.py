"""Reads one answer from its start: thoughts, then text with calls in it.

What is no call after all is text, with its exact characters, as long as no call was announced. One that
was stands: cut off, it keeps the arguments that came; broken, those that came before the break, with a
closing brace where we make the JSON ourselves. What follows a break, up to the closing mark, is text.
"""

from collections.abc import Sequence

from weft.text.parsers.families import ReasoningFamily, ToolFamily
from weft.text.parsers.forms.form import NAME, Desk
from weft.text.parsers.parts import Part
from weft.text.parsers.tape import Malformed, Markers, Reading


class AnswerParser:
    """An `OutputParser` that feeds a reader. `end_markers` are taken out of the text before that."""

    __slots__ = ("_desk", "_filter", "_reading")

    def __init__(self, desk: Desk, reading: Reading[None], end_markers: Sequence[str] = ()) -> None:
        self._desk = desk
        self._reading = reading
        self._filter = _MarkerFilter(end_markers)

    def feed(self, text: str) -> list[Part]:
        self._desk.tape.add(self._filter.push(text))
        next(self._reading, None)
        return self._desk.outlet.take()

    def finish(self) -> list[Part]:
        self._desk.tape.add(self._filter.flush())
        self._desk.tape.end()
        next(self._reading, None)
        return self._desk.outlet.take()


class _MarkerFilter:
    """Takes markers out of text that comes in pieces."""

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
    desk: Desk,
    reasoning: ReasoningFamily | None,
    tool: ToolFamily | None,
    *,
    is_open: bool | None,
) -> Reading[None]:
    """Thoughts, if the family has any and the prompt has not closed them; then text and calls."""
    before, marker = "", None
    if reasoning is not None and is_open is not False:
        before, marker = yield from read_reasoning(desk, reasoning, is_open=is_open)
    tags = () if reasoning is None else reasoning.answer_tags
    answer = _TextAndCalls(desk, tool, tags)
    if marker is not None and not answer.knows(marker):
        # It ends the thoughts of these models also where nobody looks for their calls.
        desk.outlet.content(marker)
        marker = None
    yield from answer.read(before, marker)


def read_reasoning(
    desk: Desk, family: ReasoningFamily, *, is_open: bool | None
) -> Reading[tuple[str, str | None]]:
    """Read the thoughts. What it took of the answer: white space, and the mark of a call."""
    space = yield from desk.tape.skip_space()
    start = yield from desk.tape.take_any(Markers(family.starts))
    if start is not None:
        # White space belongs to the mark, on either side of it.
        yield from desk.tape.skip_space()
    elif is_open or family.may_omit_start:
        desk.outlet.reasoning(space)
    else:
        return space, None
    ends = Markers((*family.ends, *family.implicit_ends))
    end = yield from desk.tape.until(ends, desk.outlet.reasoning)
    if end in family.implicit_ends:
        return "", end
    yield from desk.tape.skip_space()
    return "", None


class _TextAndCalls:
    """The answer proper: text, in which calls are looked for if there is a family for them."""

    __slots__ = ("_closers", "_desk", "_family", "_marks", "_openers", "_sections", "_tags")

    def __init__(self, desk: Desk, family: ToolFamily | None, tags: tuple[str, ...]) -> None:
        self._desk = desk
        self._family = family
        self._tags = frozenset(tags)
        self._sections = frozenset(() if family is None else family.sections)
        self._openers = Markers(() if family is None else (*family.openers, *family.sections))
        self._closers = frozenset(() if family is None else family.closers)
        self._marks = Markers((*self._openers.literals, *self._closers, *self._tags))

    def knows(self, marker: str) -> bool:
        """Whether a mark means something to this family; any other is text."""
        return marker in self._marks.literals

    def read(self, space: str, marker: str | None) -> Reading[None]:
        """Read to the end. `space` and `marker` were taken from the start of the text already.

        White space at the start and behind a call waits: before another call and after the last it is
        only layout.
        """
        tape, outlet = self._desk.tape, self._desk.outlet
        is_start = True
        while True:
            if marker is None:
                space += yield from tape.skip_space()
                marker = yield from tape.take_any(self._marks)
            if marker is None and is_start:
                marker = yield from self._peek_start()
            if marker is None:
                is_over = (yield from tape.peek()) == ""
                if not (is_over and outlet.num_calls):
                    outlet.content(space)
                space = ""
                marker = yield from tape.until(self._marks, outlet.content)
            if marker is None:
                return
            space = yield from self._read_marked(space, marker)
            marker, is_start = None, False

    def _peek_start(self) -> Reading[str | None]:
        """An empty mark if the answer begins with a call that needs none."""
        first = yield from self._desk.tape.peek()
        starts = "" if self._family is None else self._family.starts
        return "" if first and first in starts else None

    def _read_marked(self, space: str, marker: str) -> Reading[str]:
        """Read what begins with `marker`; the white space that is undecided behind it."""
        tape, outlet = self._desk.tape, self._desk.outlet
        if marker in self._tags:
            yield from tape.skip_space()
            return ""
        if marker in self._closers:
            if not outlet.num_calls:
                outlet.content(space + marker)
            return ""
        tape.keep(space + marker)
        while marker in self._sections:
            # Some write a word or the call's name once more between two marks.
            yield from tape.skip_space()
            yield from tape.take_while(NAME)
            yield from tape.skip_space()
            inner = yield from tape.take_any(self._openers)
            if inner is None:
                outlet.content(tape.forget())
                return ""
            marker = inner
        form = None if self._family is None else self._family.form
        assert form is not None, "only families with a form have openers"
        try:
            yield from form.read(self._desk)
        except Malformed:
            # Nothing is kept of a call that was announced; of one that was not, everything is.
            outlet.content(tape.forget())
        tape.forget()
        return ""
