"""Calls as a name followed by the arguments as a JSON object."""

import re
from dataclasses import dataclass, field

from weft.text.parsers.forms.form import (
    NAME,
    JsonArguments,
    ParseContext,
    read_arguments,
    skip_fence,
)
from weft.text.parsers.forms.json_calls import JsonCalls
from weft.text.parsers.streams import Markers, Reading

_ID = re.compile(r"[\w-]*")


@dataclass(frozen=True, slots=True)
class NamedCalls(JsonArguments):
    """Reads calls of the form NAME {...}, with a family's markers. If given, `before` must come before the name and one
    of `after` behind it, if they are given. `id_mark` and an
    id may follow the name. `has_id_names`: the name is `functions.NAME:N`, which is the call's id too.
    `is_fenced`: the arguments may stand in a Markdown code block.
    """

    before: Markers = field(default_factory=lambda: Markers(()))
    after: Markers = field(default_factory=lambda: Markers(()))
    id_mark: Markers = field(default_factory=lambda: Markers(()))
    has_id_names: bool = False
    is_after_optional: bool = False
    is_fenced: bool = False

    def read(self, context: ParseContext) -> Reading[None]:
        buffer = context.buffer
        yield from buffer.skip_space()
        if self.before.literals:
            yield from buffer.expect(self.before)
        name = yield from buffer.take_while(NAME)
        call_id: str | None = None
        yield from buffer.skip_space()
        if (yield from buffer.take_any(self.id_mark)) is not None:
            call_id = (yield from buffer.take_while(_ID)) or None
        if self.is_after_optional or not self.after.literals:
            yield from buffer.take_any(self.after)
        else:
            yield from buffer.expect(self.after)
        yield from buffer.skip_space()
        if self.is_fenced:
            yield from skip_fence(buffer)
        if self.has_id_names:
            name, call_id = _split_id(name)
        yield from read_arguments(context, name, call_id)
        if self.is_fenced:
            yield from skip_fence(buffer)


@dataclass(frozen=True, slots=True)
class NamedOrJsonCalls(JsonArguments):
    """Either form, chosen by the first character: a name, or the bracket that opens JSON."""

    named: NamedCalls
    json: JsonCalls

    def read(self, context: ParseContext) -> Reading[None]:
        yield from context.buffer.skip_space()
        is_json = (yield from context.buffer.peek()) in ("[", "{")
        yield from (self.json if is_json else self.named).read(context)


def _split_id(written: str) -> tuple[str, str | None]:
    """Name and id of `functions.NAME:N`; any other text is a name without an id."""
    name, found, number = written.rpartition(":")
    if not found or not number.isdecimal():
        return written.removeprefix("functions."), None
    return name.removeprefix("functions."), written
