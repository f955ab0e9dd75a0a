"""Harmony, the channels of gpt-oss: every message has a header that gives the kind of its text."""

import re

from weft.text.parsers.forms.arguments import Format
from weft.text.parsers.forms.form import ParseContext
from weft.text.parsers.streams import Markers, Reading, Sink

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_BODY_ENDS = Markers((_START, _CHANNEL, "<|end|>", "<|call|>", "<|return|>"))
_HEADER_MARKS = Markers((*_BODY_ENDS.literals, _MESSAGE, "<|constrain|>"))
# The prompt ends inside a header, after the role; an answer that does not continue the header has no headers.
_HEADER_STARTS = Markers((*_HEADER_MARKS.literals, "to=functions."))

# Text of the reasoning before a call, and start of the next message: used by the tag that forces a call.
REASONING_TAG: Format = {
    "type": "tag",
    "begin": f"{_CHANNEL}analysis{_MESSAGE}",
    "content": {"type": "any_text"},
    "end": "<|end|>",
}
TURN_START = f"{_START}assistant"

_RECIPIENT = re.compile(r"to=functions\.([\w.:/$-]+)")
_NAMED_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def read_harmony(context: ParseContext, *, is_open: bool | None) -> Reading[None]:
    """`analysis` is reasoning, a message to `functions.NAME` a call, everything else the answer."""
    buffer = context.buffer
    header: str | None = f"{_CHANNEL}analysis" if is_open else ""
    if not is_open:
        space = yield from buffer.skip_space()
        mark = yield from buffer.take_any(_HEADER_STARTS)
        if mark is None:
            context.collector.content(space)
        if mark not in (None, _MESSAGE):
            header = yield from _read_header(context, mark or "")
    while header is not None:
        mark = yield from _read_body(context, header)
        if mark is None:
            return
        header = yield from _read_header(context, mark)


def _read_header(context: ParseContext, mark: str) -> Reading[str | None]:
    """The text between `mark` and the message; None if no message follows."""
    pieces = [mark]
    while True:
        found = yield from context.buffer.until(_HEADER_MARKS, pieces.append)
        if found is None:
            return None
        if found == _MESSAGE:
            return "".join(pieces)
        pieces.append(found)
        if found not in (_CHANNEL, "<|constrain|>"):
            pieces.clear()


def _read_body(context: ParseContext, header: str) -> Reading[str | None]:
    """Passes a message's text on; returns the marker that ended it."""
    called = _RECIPIENT.search(header)
    if called is not None:
        return (yield from _read_call(context, called.group(1)))
    channel = _NAMED_CHANNEL.search(header)
    is_reasoning = channel is not None and channel.group(1) == "analysis"
    sink: Sink = context.collector.reasoning if is_reasoning else context.collector.content
    return (yield from context.buffer.until(_BODY_ENDS, sink))


def _read_call(context: ParseContext, name: str) -> Reading[str | None]:
    context.announce(name)
    yield from context.buffer.skip_space()
    has_arguments = False

    def sink(text: str) -> None:
        nonlocal has_arguments
        has_arguments = True
        context.collector.arguments(text)

    mark = yield from context.buffer.until(_BODY_ENDS, sink)
    if mark is not None and not has_arguments:
        context.collector.arguments("{}")
    return mark
