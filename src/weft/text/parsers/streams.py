"""Input and output of a parser: `TextBuffer` holds unread text, and `PartCollector` holds parts that the caller has not
taken.

A reader is a generator that yields when it needs more text. So the code of a reader has the structure of the format,
and needs no explicit state between pieces of text.
"""

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

from weft.text.parsers.parts import Arguments, Content, Part, Reasoning, ToolCall

_Value = TypeVar("_Value")
Reading: TypeAlias = Generator[None, None, _Value]
Sink: TypeAlias = Callable[[str], None]

_SPACE = re.compile(r"\s*")


class Malformed(Exception):
    """The text violates the format."""


class CutOff(Malformed):
    """The text ended within the format."""


class Markers:
    """A set of literals to look for. The literal that starts first in the text wins; of two literals that start at the
    same place, the shorter one.
    """

    __slots__ = ("_prefixes", "_search", "literals", "longest")

    def __init__(self, literals: Iterable[str]) -> None:
        self.literals = tuple(sorted(set(literals), key=len))
        self.longest = len(self.literals[-1]) if self.literals else 1
        self._prefixes = {text[:size] for text in self.literals for size in range(1, len(text))}
        self._search = re.compile("|".join(map(re.escape, self.literals)) or r"(?!)").search

    def find(self, text: str, start: int, *, is_ended: bool) -> tuple[int, str | None]:
        """Returns how far `text` is free of markers from `start`, and the marker found there, once decided."""
        if not self.literals:
            return len(text), None
        match = self._search(text, start)
        undecided = len(text) if is_ended else self._start_of_prefix(text, start)
        if match is not None and match.start() <= undecided:
            return match.start(), match.group()
        return undecided, None

    def may_start_with(self, text: str) -> bool:
        """True if a marker is longer than `text` and begins with it."""
        return text == "" or text in self._prefixes

    def _start_of_prefix(self, text: str, start: int) -> int:
        """Returns where the longest tail of `text` begins that may become a marker."""
        for at in range(max(start, len(text) - self.longest + 1), len(text)):
            if text[at:] in self._prefixes:
                return at
        return len(text)


class TextBuffer:
    """Holds the text that a reader has not consumed yet.

    While a reader waits for text, the buffer holds at most the start of a marker. A reader that must hold more text
    takes it from the buffer, so that no character is searched repeatedly.
    """

    __slots__ = ("_at", "_marked", "_text", "is_ended")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._marked: list[str] | None = None
        self.is_ended = False

    def add(self, text: str) -> None:
        """Adds text at the end."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Marks the end of the text."""
        self.is_ended = True

    def mark(self, text: str = "") -> None:
        """Starts recording the consumed text; the record begins with `text`."""
        self._marked = [text]

    def take_marked(self) -> str:
        """Returns the text taken since `mark`, and removes the mark."""
        marked, self._marked = self._marked or [], None
        return "".join(marked)

    def peek(self) -> Reading[str]:
        """The next character, or nothing at the end of the text."""
        while self._at == len(self._text) and not self.is_ended:
            yield
        return self._text[self._at : self._at + 1]

    def take_one(self) -> Reading[str]:
        """Takes the next character; raises `CutOff` at the end of the text."""
        if (yield from self.peek()) == "":
            raise CutOff
        return self._take(self._at + 1)

    def take_while(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Takes all text that matches `pattern`, which must be a repeated set of characters."""
        pieces: list[str] = []
        while True:
            match = pattern.match(self._text, self._at)
            assert match is not None, "the pattern matches nothing too"
            pieces.append(self._take(match.end()))
            if self._at < len(self._text) or self.is_ended:
                return "".join(pieces)
            yield

    def skip_space(self) -> Reading[str]:
        """Takes white space, if there is any."""
        return (yield from self.take_while(_SPACE))

    def take_any(self, markers: Markers) -> Reading[str | None]:
        """Takes one of `markers` if it comes next; otherwise returns None."""
        while True:
            for marker in markers.literals:
                if self._text.startswith(marker, self._at):
                    return self._take(self._at + len(marker))
            rest = self._text[self._at : self._at + markers.longest]
            if self.is_ended or not markers.may_start_with(rest):
                return None
            yield

    def expect(self, markers: Markers) -> Reading[str]:
        """Takes one of `markers`, which must come next; raises `CutOff` if the text ends first."""
        marker = yield from self.take_any(markers)
        if marker is not None:
            return marker
        rest = self._text[self._at : self._at + markers.longest]
        if not (self.is_ended and markers.may_start_with(rest)):
            raise Malformed
        if self._at + len(rest) < len(self._text):
            raise Malformed
        self._take(len(self._text))
        raise CutOff

    def until(self, markers: Markers, sink: Sink) -> Reading[str | None]:
        """Passes the text before the next marker to `sink`, and takes the marker; None if there is no marker."""
        while True:
            end, marker = markers.find(self._text, self._at, is_ended=self.is_ended)
            if end > self._at:
                sink(self._take(end))
            if marker is not None:
                return self._take(self._at + len(marker))
            if self.is_ended:
                return None
            yield

    def scan(self, scanner: Callable[[str, int], int | None], sink: Sink) -> Reading[bool]:
        """Passes text to `sink` up to the end that `scanner` finds; False if the text ends first."""
        while True:
            end = scanner(self._text, self._at)
            taken = self._take(len(self._text) if end is None else end)
            if taken:
                sink(taken)
            if end is not None or self.is_ended:
                return end is not None
            yield

    def _take(self, end: int) -> str:
        taken = self._text[self._at : end]
        self._at = end
        if self._marked is not None:
            self._marked.append(taken)
        return taken


class PartCollector:
    """Collects parts until they are taken; adjacent parts of one kind are joined.

    With `first_id`, a call without an id gets `functions.NAME:N`, counted from there.
    """

    __slots__ = ("_first_id", "_kind", "_parts", "_texts", "num_calls")

    def __init__(self, first_id: int | None = None) -> None:
        self.num_calls = 0
        self._first_id = first_id
        self._parts: list[Part] = []
        self._texts: list[str] = []
        self._kind: type[Reasoning | Content | Arguments] = Content

    def reasoning(self, text: str) -> None:
        """Adds a piece of the reasoning."""
        self._add(Reasoning, text)

    def content(self, text: str) -> None:
        """Adds a piece of the content."""
        self._add(Content, text)

    def arguments(self, text: str) -> None:
        """Adds a piece of the latest call's arguments."""
        self._add(Arguments, text)

    def call(self, name: str, call_id: str | None = None) -> None:
        """Adds the start of a call."""
        if call_id is None and self._first_id is not None:
            call_id = f"functions.{name}:{self._first_id + self.num_calls}"
        self._join()
        self._parts.append(ToolCall(self.num_calls, name, call_id))
        self.num_calls += 1

    def take(self) -> list[Part]:
        """Returns the parts since the last call."""
        self._join()
        parts, self._parts = self._parts, []
        return parts

    def _add(self, kind: type[Reasoning | Content | Arguments], text: str) -> None:
        if kind is not self._kind:
            self._join()
            self._kind = kind
        if text:
            self._texts.append(text)

    def _join(self) -> None:
        text = "".join(self._texts)
        self._texts.clear()
        if not text:
            return
        if self._kind is Arguments:
            self._parts.append(Arguments(self.num_calls - 1, text))
        else:
            self._parts.append(Reasoning(text) if self._kind is Reasoning else Content(text))
