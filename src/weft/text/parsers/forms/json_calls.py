"""Calls as JSON objects with a name and arguments: one, a list, or several one after another."""

import re
from dataclasses import dataclass

from weft.text.parsers.forms.form import (
    Desk,
    JsonArguments,
    decode_string,
    give_arguments,
    read_arguments,
    skip_fence,
)
from weft.text.parsers.json_scan import read_json
from weft.text.parsers.tape import Malformed, Markers, Reading, Tape

_OPEN = Markers("{")
_LIST = Markers("[")
_JSON = Markers(("json",))
_COLON = Markers(":")
_NEXT = Markers(",}")
_CLOSE = Markers("}")
_BETWEEN = re.compile(r"[\s,;]*")
# Models close more brackets than they opened more often than they mean something by it.
_SPARE = re.compile(r"[\s\]}]*")


@dataclass(frozen=True, slots=True)
class JsonCalls(JsonArguments):
    """`{"name": ..., "arguments": {...}}`, the keys in any order, `parameters` as good as `arguments`.

    With `needs_arguments`, an object that has not just a call's keys is none: answers may be JSON too.
    With `is_fenced` the calls may stand in a Markdown code block, opened or not.
    """

    needs_arguments: bool = False
    is_fenced: bool = False
    name_key: str = "name"
    argument_keys: frozenset[str] = frozenset({"arguments", "parameters"})

    def read(self, desk: Desk) -> Reading[None]:
        tape = desk.tape
        yield from tape.skip_space()
        if self.is_fenced:
            yield from tape.take_any(_JSON)
            yield from tape.skip_space()
        if (yield from tape.take_any(_LIST)) is not None:
            yield from tape.skip_space()
        while True:
            yield from tape.expect(_OPEN)
            yield from self._read_object(desk)
            yield from tape.take_while(_BETWEEN)
            if (yield from tape.peek()) != "{":
                break
            tape.keep()
        yield from tape.take_while(_SPARE)
        if self.is_fenced:
            yield from skip_fence(tape)

    def _read_object(self, desk: Desk) -> Reading[None]:
        """One call, from behind its opening brace."""
        name: str | None = None
        call_id: str | None = None
        held: str | None = None
        while (key := (yield from _read_key(desk.tape))) is not None:
            if key in self.argument_keys and name is not None:
                yield from read_arguments(desk, name, call_id)
                yield from _skip_members(desk.tape)
                return
            value = yield from _read_whole(desk.tape)
            if key in self.argument_keys:
                held = value
            elif key == self.name_key:
                name = decode_string(value)
            elif key == "id":
                call_id = _to_id(value)
            elif self.needs_arguments and key != "type":
                raise Malformed
            if (yield from _read_separator(desk.tape)) == "}":
                break
        if name is None or (held is None and self.needs_arguments):
            raise Malformed
        give_arguments(desk, "{}" if held is None else held, name, call_id)


def _read_key(tape: Tape) -> Reading[str | None]:
    """The next key and its colon; None at the end of the object."""
    yield from tape.skip_space()
    if (yield from tape.peek()) != '"':
        yield from tape.expect(_CLOSE)
        return None
    pieces: list[str] = []
    yield from read_json(tape, pieces.append)
    yield from tape.skip_space()
    yield from tape.expect(_COLON)
    yield from tape.skip_space()
    return decode_string("".join(pieces))


def _read_whole(tape: Tape) -> Reading[str]:
    pieces: list[str] = []
    yield from read_json(tape, pieces.append)
    return "".join(pieces)


def _read_separator(tape: Tape) -> Reading[str]:
    yield from tape.skip_space()
    return (yield from tape.expect(_NEXT))


def _skip_members(tape: Tape) -> Reading[None]:
    """The members behind the arguments, which say nothing that is needed."""
    while (yield from _read_separator(tape)) == ",":
        if (yield from _read_key(tape)) is None:
            return
        yield from _read_whole(tape)


def _to_id(value: str) -> str | None:
    return (decode_string(value) or None) if value.startswith('"') else None
