"""Calls whose parameters stand between tags, each as plain text: JSON is made of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.text.parsers.forms.form import NAME, Desk
from weft.text.parsers.forms.literals import json_string
from weft.text.parsers.forms.values import is_text, kinds_of, typed_json
from weft.text.parsers.tape import CutOff, Malformed, Markers, Reading, Sink

_KEY = re.compile(r"[^<>\"\s]*")


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one family. The call's own first tag is the family's opening marker, up to the name."""

    name_end: str
    key_start: str
    key_ends: tuple[str, ...]
    value_end: str
    call_end: str
    value_start: str = ""
    # The template writes values on lines of their own: one line break on each side is not the value's.
    is_padded: bool = False
    # What the end of a key says of its value; for the others the parameter's schema is asked.
    kinds_by_key_end: Mapping[str, frozenset[str]] | None = None


class TaggedCalls:
    """One call in tags. A value typed as text is passed on while it is written, others when they end."""

    __slots__ = ("_key_ends", "_members", "_name_end", "_value_ends", "_value_start", "tags")

    def __init__(self, tags: Tags) -> None:
        self.tags = tags
        self._name_end = Markers((tags.name_end,)) if tags.name_end else None
        self._members = Markers((tags.key_start, tags.call_end))
        self._key_ends = Markers(tags.key_ends)
        self._value_start = Markers((tags.value_start,)) if tags.value_start else None
        # Some models forget a value's end tag before the call's.
        self._value_ends = Markers((tags.value_end, tags.call_end))

    def read(self, desk: Desk) -> Reading[None]:
        """See `Form.read`."""
        tape = desk.tape
        yield from tape.skip_space()
        name = yield from tape.take_while(NAME)
        if self._name_end is not None:
            yield from tape.expect(self._name_end)
        yield from tape.skip_space()
        mark = yield from tape.expect(self._members)
        desk.announce(name)
        desk.outlet.arguments("{")
        try:
            yield from self._read_members(desk, mark, _properties(desk.schemas.get(name)))
        except CutOff:
            raise
        except Malformed:
            desk.outlet.arguments("}")
            raise
        desk.outlet.arguments("}")

    def _read_members(self, desk: Desk, mark: str, properties: Mapping[str, Any]) -> Reading[None]:
        separator = ""
        while mark != self.tags.call_end:
            yield from desk.tape.skip_space()
            key = yield from desk.tape.take_while(_KEY)
            yield from desk.tape.skip_space()
            key_end = yield from desk.tape.expect(self._key_ends)
            if self._value_start is not None:
                yield from desk.tape.skip_space()
                yield from desk.tape.expect(self._value_start)
            kinds = kinds_of(properties.get(key))
            if self.tags.kinds_by_key_end is not None:
                kinds = self.tags.kinds_by_key_end[key_end]
            desk.outlet.arguments(f"{separator}{json_string(key)}:")
            mark = yield from self._read_value(desk, kinds)
            separator = ","
            if mark == self.tags.value_end:
                yield from desk.tape.skip_space()
                mark = yield from desk.tape.expect(self._members)

    def _read_value(self, desk: Desk, kinds: frozenset[str]) -> Reading[str]:
        """Pass on a value as JSON; the mark that ended it."""
        if is_text(kinds):
            return (yield from self._read_text(desk))
        pieces: list[str] = []
        mark = yield from desk.tape.until(self._value_ends, pieces.append)
        if mark is None:
            raise CutOff
        text = "".join(pieces)
        if self.tags.is_padded:
            text = text.removeprefix("\n").removesuffix("\n")
        desk.outlet.arguments(typed_json(text, kinds))
        return mark

    def _read_text(self, desk: Desk) -> Reading[str]:
        desk.outlet.arguments('"')
        sink = _escaped(desk.outlet.arguments)
        padding = _Padding(sink) if self.tags.is_padded else None
        mark = yield from desk.tape.until(self._value_ends, padding or sink)
        if mark is None:
            raise CutOff
        desk.outlet.arguments('"')
        return mark


class _Padding:
    """Passes text on without one line break at its start and one at its end."""

    __slots__ = ("_held", "_is_first", "_sink")

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held = ""
        self._is_first = True

    def __call__(self, text: str) -> None:
        if self._is_first:
            text = text.removeprefix("\n")
            self._is_first = False
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        self._sink(text.removesuffix("\n"))


def _escaped(sink: Sink) -> Sink:
    return lambda text: sink(json_string(text)[1:-1])


def _properties(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    properties = None if schema is None else schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}
