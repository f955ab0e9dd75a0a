"""Calls whose parameters are plain text between tags, converted to JSON."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.text.parsers.forms.arguments import (
    Format,
    Member,
    const,
    either,
    is_plain,
    json_value,
    listed,
    members_of,
    one_of,
    sequence,
    values_of,
)
from weft.text.parsers.forms.form import NAME, ParseContext
from weft.text.parsers.forms.literals import json_string
from weft.text.parsers.forms.values import ANY_KIND, TEXT_KIND, is_text, kinds_of, typed_json
from weft.text.parsers.streams import CutOff, Malformed, Markers, Reading, Sink

_KEY = re.compile(r"[^<>\"\s]*")
_SAMPLE_KEY, _SAMPLE_VALUE = "city", "Paris"


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one family. The family's opening marker is the tag that begins a call, up to the name."""

    name_end: str
    key_start: str
    key_ends: tuple[str, ...]
    value_end: str
    call_end: str
    value_start: str = ""
    # The template writes each value on its own lines: one line break on each side does not belong to the value.
    is_padded: bool = False
    # Types of a value by the end of its key's tag; None: the parameter's schema decides.
    kinds_by_key_end: Mapping[str, frozenset[str]] | None = None


class TaggedCalls:
    """Tool calls in tags. A text argument is emitted while it is generated; other values when they end."""

    __slots__ = ("_key_ends", "_members", "_name_end", "_value_ends", "_value_start", "tags")

    def __init__(self, tags: Tags) -> None:
        self.tags = tags
        self._name_end = Markers((tags.name_end,)) if tags.name_end else None
        self._members = Markers((tags.key_start, tags.call_end))
        self._key_ends = Markers(tags.key_ends)
        self._value_start = Markers((tags.value_start,)) if tags.value_start else None
        # Some models leave out a value's end tag before the end tag of the call.
        self._value_ends = Markers((tags.value_end, tags.call_end))

    def read(self, context: ParseContext) -> Reading[None]:
        buffer = context.buffer
        yield from buffer.skip_space()
        name = yield from buffer.take_while(NAME)
        if self._name_end is not None:
            yield from buffer.expect(self._name_end)
        yield from buffer.skip_space()
        mark = yield from buffer.expect(self._members)
        context.announce(name)
        context.collector.arguments("{")
        try:
            yield from self._read_members(context, mark, _properties(context.schemas.get(name)))
        except CutOff:
            raise
        except Malformed:
            context.collector.arguments("}")
            raise
        context.collector.arguments("}")

    def sample_of(self, example: str) -> str:
        """Returns the example's arguments including the white space before each parameter."""
        before, _, rest = example.partition(self.tags.key_start)
        value, end, _ = rest.partition(self.tags.value_end)
        space = before[len(before.rstrip()) :]
        return f"{space}{self.tags.key_start}{value}{end}" if end else ""

    def write(self, schema: Mapping[str, Any], sample: str) -> Format | None:
        """Returns the format of arguments: texts as they are, other values as JSON."""
        members = members_of(schema)
        if members is None or not all(_KEY.fullmatch(member.key or "<") for member in members):
            return None
        written = [self._write_member(member, sample) for member in members]
        return listed(members, written, "")

    def _write_member(self, member: Member, sample: str) -> Format | None:
        """Returns the format of one parameter; None if it could not be parsed back unambiguously."""
        before, _, rest = sample.partition(_SAMPLE_KEY)
        between, _, after = rest.partition(_SAMPLE_VALUE)
        schema, ends = member.schema, self.tags.kinds_by_key_end
        if ends is None:
            frame = _Frame(f"{before}{member.key}{between}", after)
            return either(self._ways(frame, schema, kinds_of(schema)))
        frames = {kinds: _Frame(f"{before}{member.key}{end}", after) for end, kinds in ends.items()}
        text, is_text_only = frames[TEXT_KIND], is_text(kinds_of(schema))
        whole = self._text(text, schema) if is_text_only or _takes_all_texts(schema) else None
        return (
            whole
            if whole and is_text_only
            else one_of([*([whole] if whole else []), frames[ANY_KIND].json(schema)])
        )

    def _ways(
        self, frame: "_Frame", schema: Mapping[str, Any], kinds: frozenset[str]
    ) -> list[Format | None]:
        """The formats for a value of each of `kinds`; None for a kind that cannot be written."""
        choices = schema.get("anyOf")
        if isinstance(choices, list) and choices and is_plain(schema, "anyOf"):
            rest = {key: value for key, value in schema.items() if key != "anyOf"}
            documents = [one | rest for one in choices if isinstance(one, dict)]
            return [way for one in documents for way in self._ways(frame, one, kinds)]
        own = kinds_of(schema)
        if is_text(kinds) or values_of(schema):
            return [self._text(frame, schema, kinds)]
        is_bare = is_plain(schema, "format")
        if "string" not in own or (kinds == ANY_KIND and not is_bare):
            # Without a declared type, quoted text is read as JSON.
            return [frame.json(schema)]
        return [frame.around({"type": "any_text"}) if is_bare else None]

    def _text(
        self, frame: "_Frame", schema: Mapping[str, Any], kinds: frozenset[str] = TEXT_KIND
    ) -> Format | None:
        """The format of a value that is written as text; None if it would be parsed back differently, or its schema
        cannot be enforced.
        """
        values = values_of(schema)
        if values and is_plain(schema, "enum", "const"):
            texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
            is_same = all(
                _reads_as(value, text, kinds) and not self._has_mark(text)
                for value, text in zip(values, texts, strict=True)
            )
            whole = [const(f"{frame.start}{text}{frame.end}") for text in texts]
            return either(whole) if is_same else None
        if _takes_all_texts(schema):
            return frame.around({"type": "any_text"})
        if is_plain(schema, "format", "minLength", "maxLength"):
            counts = f"{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}"
            return frame.around({"type": "regex", "pattern": f"[^<]{counts}"})
        return None

    def _has_mark(self, text: str) -> bool:
        return any(mark in text for mark in self._value_ends.literals)

    def _read_members(
        self, context: ParseContext, mark: str, properties: Mapping[str, Any]
    ) -> Reading[None]:
        separator = ""
        while mark != self.tags.call_end:
            yield from context.buffer.skip_space()
            key = yield from context.buffer.take_while(_KEY)
            yield from context.buffer.skip_space()
            key_end = yield from context.buffer.expect(self._key_ends)
            if self._value_start is not None:
                yield from context.buffer.skip_space()
                yield from context.buffer.expect(self._value_start)
            kinds = kinds_of(properties.get(key))
            if self.tags.kinds_by_key_end is not None:
                kinds = self.tags.kinds_by_key_end[key_end]
            context.collector.arguments(f"{separator}{json_string(key)}:")
            mark = yield from self._read_value(context, kinds)
            separator = ","
            if mark == self.tags.value_end:
                yield from context.buffer.skip_space()
                mark = yield from context.buffer.expect(self._members)

    def _read_value(self, context: ParseContext, kinds: frozenset[str]) -> Reading[str]:
        """Passes on a value as JSON; returns the marker that ended it."""
        if is_text(kinds):
            return (yield from self._read_text(context))
        pieces: list[str] = []
        mark = yield from context.buffer.until(self._value_ends, pieces.append)
        if mark is None:
            raise CutOff
        text = "".join(pieces)
        if self.tags.is_padded:
            text = text.removeprefix("\n").removesuffix("\n")
        context.collector.arguments(typed_json(text, kinds))
        return mark

    def _read_text(self, context: ParseContext) -> Reading[str]:
        context.collector.arguments('"')
        sink = _escaped(context.collector.arguments)
        padding = _Padding(sink) if self.tags.is_padded else None
        mark = yield from context.buffer.until(self._value_ends, padding or sink)
        if mark is None:
            raise CutOff
        context.collector.arguments('"')
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


@dataclass(frozen=True, slots=True)
class _Frame:
    """The text before and after a value."""

    start: str
    end: str

    def around(self, content: Format) -> Format:
        return {"type": "tag", "begin": self.start, "content": content, "end": self.end}

    def json(self, schema: Mapping[str, Any]) -> Format:
        return sequence(const(self.start), json_value(schema), const(self.end))


def _takes_all_texts(schema: Mapping[str, Any]) -> bool:
    """True if every text fits the schema."""
    choices = schema.get("anyOf")
    if isinstance(choices, list) and is_plain(schema, "anyOf"):
        return any(isinstance(one, Mapping) and _takes_all_texts(one) for one in choices)
    return is_plain(schema, "format") and "string" in kinds_of(schema)


def _reads_as(value: object, text: str, kinds: frozenset[str]) -> bool:
    read: object = json.loads(json_string(text) if is_text(kinds) else typed_json(text, kinds))
    return read == value and type(read) is type(value)


def _properties(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    properties = None if schema is None else schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}
