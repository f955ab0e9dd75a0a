"""Finds the end of a JSON value in text that arrives in pieces, looking at each character once."""

import enum
import re

from weft.text.parsers.streams import CutOff, Malformed, Reading, Sink, TextBuffer

# Python's JSON reader fails at some hundreds of levels; no tool needs nearly as many.
MAX_DEPTH = 128

_CLOSERS = {"{": "}", "[": "]"}
_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_AFTER_SCALAR = re.compile(r'[\s,:;\[\]{}"<`]')


class _Inside(enum.Enum):
    NOTHING = enum.auto()
    NESTED = enum.auto()
    STRING = enum.auto()
    ESCAPE = enum.auto()
    SCALAR = enum.auto()
    NONSENSE = enum.auto()


class JsonScanner:
    """Follows brackets and strings of one value to its end; does not check that it is valid JSON."""

    __slots__ = ("_closers", "_inside")

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._inside = _Inside.NOTHING

    @property
    def is_broken(self) -> bool:
        """True if a bracket closed another kind, or nesting is too deep."""
        return self._inside is _Inside.NONSENSE

    @property
    def is_scalar(self) -> bool:
        """True if the value is a number or a name, which the end of the text also ends."""
        return self._inside is _Inside.SCALAR

    def push(self, text: str, start: int = 0) -> int | None:
        """Returns where the value that continues at `start` ends in `text`; None if it continues beyond it."""
        at: int | None = start
        while at is not None and at < len(text):
            match self._inside:
                case _Inside.NOTHING:
                    at = self._begin(text[at], at)
                case _Inside.SCALAR:
                    after = _AFTER_SCALAR.search(text, at)
                    return None if after is None else after.start()
                case _Inside.ESCAPE:
                    self._inside = _Inside.STRING
                    at += 1
                case _Inside.STRING:
                    at = self._in_string(text, at)
                case _Inside.NESTED:
                    at = self._in_brackets(text, at)
                case _Inside.NONSENSE:
                    return at
            if self._inside is _Inside.NESTED and not self._closers:
                return at
        return None

    def _begin(self, first: str, at: int) -> int:
        if first == '"':
            self._inside = _Inside.STRING
        elif first in _CLOSERS:
            self._inside = _Inside.NESTED
            self._closers.append(_CLOSERS[first])
        elif first.isalnum() or first == "-":
            self._inside = _Inside.SCALAR
        else:
            return self._break(at)
        return at + 1

    def _in_string(self, text: str, at: int) -> int | None:
        found = _IN_STRING.match(text, at)
        assert found is not None, "it matches nothing too"
        if found.end() == len(text):
            return None
        self._inside = _Inside.ESCAPE if text[found.end()] == "\\" else _Inside.NESTED
        return found.end() + 1

    def _in_brackets(self, text: str, at: int) -> int | None:
        found = _STRUCTURE.search(text, at)
        if found is None:
            return None
        mark = found.group()
        if mark == '"':
            self._inside = _Inside.STRING
        elif mark in _CLOSERS:
            if len(self._closers) == MAX_DEPTH:
                return self._break(found.start())
            self._closers.append(_CLOSERS[mark])
        elif self._closers.pop() != mark:
            return self._break(found.start())
        return found.end()

    def _break(self, at: int) -> int:
        self._inside = _Inside.NONSENSE
        return at


def read_json(buffer: TextBuffer, sink: Sink) -> Reading[None]:
    """Passes the text of the next JSON value to `sink` while the text arrives. `sink` gets text before the value is
    known to be valid: the function then raises `Malformed` for invalid JSON, or `CutOff` if the text ends inside the
    value.
    """
    scanner = JsonScanner()
    is_whole = yield from buffer.scan(scanner.push, sink)
    if scanner.is_broken:
        raise Malformed
    if not is_whole and not scanner.is_scalar:
        raise CutOff
