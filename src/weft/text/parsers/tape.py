"""The text of an answer that is written but not read yet, and how readers take it.

A reader is a generator: it yields where it needs more text and goes on when there is some. So the
code of a format follows the format, and no reader keeps a state of its own between pieces.
"""

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

_Value = TypeVar("_Value")
Reading: TypeAlias = Generator[None, None, _Value]
Sink: TypeAlias = Callable[[str], None]

_SPACE = re.compile(r"\s*")


class Malformed(Exception):
    """The text is not what the format says."""


class CutOff(Malformed):
    """The text ended in the middle of what the format says."""


class Markers:
    """A set of literals to look for. The one that starts first wins; of two that do, the shorter."""

    __slots__ = ("_prefixes", "_search", "literals", "longest")

    def __init__(self, literals: Iterable[str]) -> None:
        self.literals = tuple(sorted(set(literals), key=len))
        self.longest = len(self.literals[-1]) if self.literals else 1
        self._prefixes = {text[:size] for text in self.literals for size in range(1, len(text))}
        self._search = re.compile("|".join(map(re.escape, self.literals)) or r"(?!)").search

    def find(self, text: str, start: int, *, is_ended: bool) -> tuple[int, str | None]:
        """How far `text` is free of markers from `start` on, and the marker there, if it is decided."""
        match = self._search(text, start)
        undecided = len(text) if is_ended else self._start_of_prefix(text, start)
        if match is not None and match.start() <= undecided:
            return match.start(), match.group()
        return undecided, None

    def may_start_with(self, text: str) -> bool:
        """Whether some marker is longer than `text` and begins with it."""
        return text == "" or text in self._prefixes

    def _start_of_prefix(self, text: str, start: int) -> int:
        """Where the longest tail of `text` that may become a marker begins."""
        for at in range(max(start, len(text) - self.longest + 1), len(text)):
            if text[at:] in self._prefixes:
                return at
        return len(text)


class Tape:
    """Text goes in at one end as it comes, and out at the other as it is understood.

    What stays inside while a reader waits is at most the start of a marker: readers that must hold
    more take it and keep it themselves, so that no character is looked at again and again.
    """

    __slots__ = ("_at", "_kept", "_text", "is_ended")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._kept: list[str] | None = None
        self.is_ended = False

    def add(self, text: str) -> None:
        """Put more text behind what is there."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """No more text comes."""
        self.is_ended = True

    def keep(self, text: str = "") -> None:
        """Remember what is taken from here on, as if `text` had been taken already."""
        self._kept = [text]

    def forget(self) -> str:
        """What was taken since `keep`, which is remembered no longer."""
        kept, self._kept = self._kept or [], None
        return "".join(kept)

    def peek(self) -> Reading[str]:
        """The next character, or nothing at the end of the text."""
        while self._at == len(self._text) and not self.is_ended:
            yield
        return self._text[self._at : self._at + 1]

    def take_one(self) -> Reading[str]:
        """Take the next character, which must come."""
        if (yield from self.peek()) == "":
            raise CutOff
        return self._take(self._at + 1)

    def take_while(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Take all that matches `pattern`, which is a set of characters any number of times."""
        pieces: list[str] = []
        while True:
            match = pattern.match(self._text, self._at)
            assert match is not None, "the pattern matches nothing too"
            pieces.append(self._take(match.end()))
            if self._at < len(self._text) or self.is_ended:
                return "".join(pieces)
            yield

    def skip_space(self) -> Reading[str]:
        """Take white space, if there is any."""
        return (yield from self.take_while(_SPACE))

    def take_any(self, markers: Markers) -> Reading[str | None]:
        """Take one of `markers` if it comes next."""
        while True:
            for marker in markers.literals:
                if self._text.startswith(marker, self._at):
                    return self._take(self._at + len(marker))
            rest = self._text[self._at : self._at + markers.longest]
            if self.is_ended or not markers.may_start_with(rest):
                return None
            yield

    def expect(self, markers: Markers) -> Reading[str]:
        """Take one of `markers`, which must come next; `CutOff` if the text ends before it is whole."""
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
        """Give `sink` the text before the next marker, and take the marker; None if none comes."""
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
        """Give `sink` text up to where `scanner` sees the end; False if the text ends before that."""
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
        if self._kept is not None:
            self._kept.append(taken)
        return taken
