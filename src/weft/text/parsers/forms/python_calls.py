"""Calls in Python syntax: `[name(key=value, ...), ...]`, with literals only."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.text.parsers.forms.arguments import (
    Format,
    Member,
    const,
    is_plain,
    json_value,
    listed,
    members_of,
    one_of,
    sequence,
    values_of,
)
from weft.text.parsers.forms.form import NAME, ParseContext
from weft.text.parsers.forms.literals import json_string, read_literal, to_json
from weft.text.parsers.streams import CutOff, Malformed, Markers, Reading, TextBuffer

_KEY = re.compile(r"\w*")
_LIST = Markers("[")
_LIST_END = Markers("]")
_OPEN = Markers("(")
_CLOSE = Markers(")")
_EQUALS = Markers("=")
_NEXT = Markers(",)")
_BETWEEN = re.compile(r"[\s,;]*")
_STARTS_NAME = re.compile(r"[\w.-]")

_SAMPLE = "city='Paris'"
# Strings in single quotes, in addition to JSON's: models write both.
_SINGLE_QUOTED = {"type": "regex", "pattern": r"""'([^'\\\n]|\\['"\\nrt])*'"""}
_WORDS = {"boolean": ("True", "False", "true", "false"), "null": ("None", "null")}


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Reads calls; each argument is passed on when its value is complete. With `needs_list`, brackets are required."""

    needs_list: bool = False

    def read(self, context: ParseContext) -> Reading[None]:
        buffer = context.buffer
        yield from buffer.skip_space()
        take = buffer.expect if self.needs_list else buffer.take_any
        is_list = (yield from take(_LIST)) is not None
        yield from buffer.skip_space()
        while True:
            yield from self._read_call(context)
            yield from buffer.take_while(_BETWEEN)
            if not _STARTS_NAME.match((yield from buffer.peek())):
                break
            buffer.mark()
        if is_list:
            yield from buffer.take_any(_LIST_END)

    def sample_of(self, example: str) -> str:
        return _SAMPLE if _SAMPLE in example else ""

    def write(self, schema: Mapping[str, Any], sample: str) -> Format | None:
        """Returns the format of arguments: JSON, or Python literals where the values are simple."""
        del sample
        members = members_of(schema)
        if members is None or not all(_KEY.fullmatch(member.key) for member in members):
            return None
        return listed(members, list(map(_write_member, members)), ", ")

    def _read_call(self, context: ParseContext) -> Reading[None]:
        buffer = context.buffer
        name = yield from buffer.take_while(NAME)
        yield from buffer.expect(_OPEN)
        yield from buffer.skip_space()
        key = yield from _read_key(buffer)
        context.announce(name)
        context.collector.arguments("{")
        try:
            separator = ""
            while key is not None:
                value = _to_json((yield from read_literal(buffer)))
                mark = yield from buffer.expect(_NEXT)
                context.collector.arguments(f"{separator}{json_string(key)}:{value}")
                separator = ","
                key = None if mark == ")" else (yield from _read_key(buffer))
        except CutOff:
            raise
        except Malformed:
            context.collector.arguments("}")
            raise
        context.collector.arguments("}")


def _to_json(value: str) -> str:
    """A literal as JSON; any other text becomes a string, for the tool to interpret."""
    try:
        return to_json(value)
    except Malformed:
        return json_string(value.strip())


def _read_key(buffer: TextBuffer) -> Reading[str | None]:
    """The next argument's name, up to the equals sign; None at the closing bracket."""
    yield from buffer.skip_space()
    if (yield from buffer.take_any(_CLOSE)) is not None:
        return None
    key = yield from buffer.take_while(_KEY)
    yield from buffer.skip_space()
    yield from buffer.expect(_EQUALS)
    if not key:
        raise Malformed
    return key


def _write_member(member: Member) -> Format | None:
    ways = _ways(member.schema)
    return sequence(const(f"{member.key}="), one_of(ways)) if member.key else None


def _ways(schema: Mapping[str, Any]) -> list[Format]:
    """The ways to write a value."""
    choices = schema.get("anyOf")
    if isinstance(choices, list) and is_plain(schema, "anyOf"):
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return [way for one in choices if isinstance(one, dict) for way in _ways(one | rest)]
    match schema.get("type"):
        case [*kinds] if is_plain(schema):
            return [way for kind in kinds for way in _ways({"type": kind})]
        case "boolean" | "null" as kind if is_plain(schema):
            return [const(word) for word in _WORDS[kind]]
        case "string" if is_plain(schema):
            return [json_value(schema), _SINGLE_QUOTED]
        case "string" if is_plain(schema, "enum"):
            return [json_value(schema), *map(const, _quoted(values_of(schema)))]
        case "array" if is_plain(schema, "items") and isinstance(schema.get("items"), Mapping):
            return [json_value(schema), _list_of(schema["items"])]
        case _:
            return [json_value(schema)]


def _list_of(items: Mapping[str, Any]) -> Format:
    tags = [{"type": "tag", "begin": "", "content": way, "end": ""} for way in _ways(items)]
    values = {"type": "tags_with_separator", "tags": tags, "separator": ", "}
    return sequence(const("["), values, const("]"))


def _quoted(values: list[Any]) -> list[str]:
    return [repr(value) for value in values if isinstance(value, str)]
