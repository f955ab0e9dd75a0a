"""Calls as Python writes them: `[name(key=value, ...), ...]`, with literals only."""

import re
from dataclasses import dataclass

from weft.text.parsers.forms.form import NAME, Desk
from weft.text.parsers.forms.literals import json_string, read_literal, to_json
from weft.text.parsers.tape import CutOff, Malformed, Markers, Reading, Tape

_KEY = re.compile(r"\w*")
_LIST = Markers("[")
_LIST_END = Markers("]")
_OPEN = Markers("(")
_CLOSE = Markers(")")
_EQUALS = Markers("=")
_NEXT = Markers(",)")
_BETWEEN = re.compile(r"[\s,;]*")
_STARTS_NAME = re.compile(r"[^\W\d]")


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Each argument is passed on when its value is whole. With `needs_list`, brackets are a must."""

    needs_list: bool = False

    def read(self, desk: Desk) -> Reading[None]:
        """See `Form.read`."""
        tape = desk.tape
        yield from tape.skip_space()
        take = tape.expect if self.needs_list else tape.take_any
        is_list = (yield from take(_LIST)) is not None
        yield from tape.skip_space()
        while True:
            yield from self._read_call(desk)
            yield from tape.take_while(_BETWEEN)
            if not _STARTS_NAME.match((yield from tape.peek())):
                break
            tape.keep()
        if is_list:
            yield from tape.take_any(_LIST_END)

    def _read_call(self, desk: Desk) -> Reading[None]:
        tape = desk.tape
        name = yield from tape.take_while(NAME)
        yield from tape.expect(_OPEN)
        yield from tape.skip_space()
        key = yield from _read_key(tape)
        desk.announce(name)
        desk.outlet.arguments("{")
        try:
            separator = ""
            while key is not None:
                value = _to_json((yield from read_literal(tape)))
                mark = yield from tape.expect(_NEXT)
                desk.outlet.arguments(f"{separator}{json_string(key)}:{value}")
                separator = ","
                key = None if mark == ")" else (yield from _read_key(tape))
        except CutOff:
            raise
        except Malformed:
            desk.outlet.arguments("}")
            raise
        desk.outlet.arguments("}")


def _to_json(value: str) -> str:
    """A value that is no literal is passed on as text: the tool may make more of it than we can."""
    try:
        return to_json(value)
    except Malformed:
        return json_string(value.strip())


def _read_key(tape: Tape) -> Reading[str | None]:
    """The next argument's name, up to the equals sign; None at the closing bracket."""
    yield from tape.skip_space()
    if (yield from tape.take_any(_CLOSE)) is not None:
        return None
    key = yield from tape.take_while(_KEY)
    yield from tape.skip_space()
    yield from tape.expect(_EQUALS)
    if not key:
        raise Malformed
    return key
