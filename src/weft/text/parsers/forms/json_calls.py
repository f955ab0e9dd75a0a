"""Calls as JSON objects with a name and arguments: one, a list, or several one after another."""

import re
from dataclasses import dataclass

from weft.text.parsers.forms.form import (
    JsonArguments,
    ParseContext,
    decode_string,
    give_arguments,
    read_arguments,
    skip_fence,
)
from weft.text.parsers.json_scan import read_json
from weft.text.parsers.streams import Malformed, Markers, Reading, TextBuffer

_OPEN = Markers("{")
_LIST = Markers("[")
_JSON = Markers(("json",))
_COLON = Markers(":")
_NEXT = Markers(",}")
_CLOSE = Markers("}")
_BETWEEN = re.compile(r"[\s,;]*")
# Models write too many closing brackets by mistake; extra ones are ignored.
_SPARE = re.compile(r"[\s\]}]*")


@dataclass(frozen=True, slots=True)
class JsonCalls(JsonArguments):
    """Calls as `{"name": ..., "arguments": {...}}`, with keys in any order, and `parameters` as an alternative to
    `arguments`.

    With `needs_arguments`, an object with other keys is not a call: answers may be JSON too. With `is_fenced`, the
    calls may be in a Markdown code block, with or without its opening marker.
    """

    needs_arguments: bool = False
    is_fenced: bool = False
    name_key: str = "name"
    argument_keys: frozenset[str] = frozenset({"arguments", "parameters"})

    def read(self, context: ParseContext) -> Reading[None]:
        buffer = context.buffer
        yield from buffer.skip_space()
        if self.is_fenced:
            yield from buffer.take_any(_JSON)
            yield from buffer.skip_space()
        if (yield from buffer.take_any(_LIST)) is not None:
            yield from buffer.skip_space()
        while True:
            yield from buffer.expect(_OPEN)
            yield from self._read_object(context)
            yield from buffer.take_while(_BETWEEN)
            if (yield from buffer.peek()) != "{":
                break
            buffer.mark()
        yield from buffer.take_while(_SPARE)
        if self.is_fenced:
            yield from skip_fence(buffer)

    def _read_object(self, context: ParseContext) -> Reading[None]:
        """Reads a call, starting after its opening brace."""
        name: str | None = None
        call_id: str | None = None
        held: str | None = None
        while (key := (yield from _read_key(context.buffer))) is not None:
            if key in self.argument_keys and name is not None:
                yield from read_arguments(context, name, call_id)
                yield from _skip_members(context.buffer)
                return
            value = yield from _read_whole(context.buffer)
            if key in self.argument_keys:
                held = value
            elif key == self.name_key:
                name = decode_string(value)
            elif key == "id":
                call_id = _to_id(value)
            elif self.needs_arguments and key != "type":
                raise Malformed
            if (yield from _read_separator(context.buffer)) == "}":
                break
        if name is None or (held is None and self.needs_arguments):
            raise Malformed
        give_arguments(context, "{}" if held is None else held, name, call_id)


def _read_key(buffer: TextBuffer) -> Reading[str | None]:
    """Reads the next key and its colon; returns None at the end of the object."""
    yield from buffer.skip_space()
    if (yield from buffer.peek()) != '"':
        yield from buffer.expect(_CLOSE)
        return None
    pieces: list[str] = []
    yield from read_json(buffer, pieces.append)
    yield from buffer.skip_space()
    yield from buffer.expect(_COLON)
    yield from buffer.skip_space()
    return decode_string("".join(pieces))


def _read_whole(buffer: TextBuffer) -> Reading[str]:
    pieces: list[str] = []
    yield from read_json(buffer, pieces.append)
    return "".join(pieces)


def _read_separator(buffer: TextBuffer) -> Reading[str]:
    yield from buffer.skip_space()
    return (yield from buffer.expect(_NEXT))


def _skip_members(buffer: TextBuffer) -> Reading[None]:
    """Skips the members after the arguments."""
    while (yield from _read_separator(buffer)) == ",":
        if (yield from _read_key(buffer)) is None:
            return
        yield from _read_whole(buffer)


def _to_id(value: str) -> str | None:
    return (decode_string(value) or None) if value.startswith('"') else None
