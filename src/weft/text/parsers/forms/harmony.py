"""Harmony, the channels of gpt-oss: every message has a header that says what its text is."""

import re

from weft.text.parsers.forms.arguments import Format
from weft.text.parsers.forms.form import Desk
from weft.text.parsers.tape import Markers, Reading, Sink

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_BODY_ENDS = Markers((_START, _CHANNEL, "<|end|>", "<|call|>", "<|return|>"))
_HEADER_MARKS = Markers((*_BODY_ENDS.literals, _MESSAGE, "<|constrain|>"))
# The prompt ends inside a header, behind the role; an answer that goes on otherwise has no headers.
_HEADER_STARTS = Markers((*_HEADER_MARKS.literals, "to=functions."))

# How a model thinks before a call, and how its next message begins: for the tag that forces one.
THOUGHT_TAG: Format = {
    "type": "tag",
    "begin": f"{_CHANNEL}analysis{_MESSAGE}",
    "content": {"type": "any_text"},
    "end": "<|end|>",
}
TURN_START = f"{_START}assistant"

_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")
_NAMED_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def read_harmony(desk: Desk, *, is_open: bool | None) -> Reading[None]:
    """`analysis` is thoughts, a message to `functions.NAME` a call, everything else the answer."""
    tape = desk.tape
    header: str | None = f"{_CHANNEL}analysis" if is_open else ""
    if not is_open:
        space = yield from tape.skip_space()
        mark = yield from tape.take_any(_HEADER_STARTS)
        if mark is None:
            desk.outlet.content(space)
        if mark not in (None, _MESSAGE):
            header = yield from _read_header(desk, mark or "")
    while header is not None:
        mark = yield from _read_body(desk, header)
        if mark is None:
            return
        header = yield from _read_header(desk, mark)


def _read_header(desk: Desk, mark: str) -> Reading[str | None]:
    """The text between `mark` and the message; None if none comes."""
    pieces = [mark]
    while True:
        found = yield from desk.tape.until(_HEADER_MARKS, pieces.append)
        if found is None:
            return None
        if found == _MESSAGE:
            return "".join(pieces)
        pieces.append(found)
        if found not in (_CHANNEL, "<|constrain|>"):
            pieces.clear()


def _read_body(desk: Desk, header: str) -> Reading[str | None]:
    """Pass a message's text on; the mark that ended it."""
    called = _RECIPIENT.search(header)
    if called is not None:
        return (yield from _read_call(desk, called.group(1)))
    channel = _NAMED_CHANNEL.search(header)
    is_thought = channel is not None and channel.group(1) == "analysis"
    sink: Sink = desk.outlet.reasoning if is_thought else desk.outlet.content
    return (yield from desk.tape.until(_BODY_ENDS, sink))


def _read_call(desk: Desk, name: str) -> Reading[str | None]:
    desk.announce(name)
    yield from desk.tape.skip_space()
    has_arguments = False

    def sink(text: str) -> None:
        nonlocal has_arguments
        has_arguments = True
        desk.outlet.arguments(text)

    mark = yield from desk.tape.until(_BODY_ENDS, sink)
    if mark is not None and not has_arguments:
        desk.outlet.arguments("{}")
    return mark
