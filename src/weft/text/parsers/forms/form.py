"""The `Form` protocol, and code that forms share: names, announcements of calls, arguments."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from weft.text.parsers.forms.arguments import JSON_SAMPLE, Format, json_value
from weft.text.parsers.json_scan import read_json
from weft.text.parsers.streams import Malformed, Markers, PartCollector, Reading, TextBuffer

# Characters of function names: letters, digits and some signs, but never white space or the start of a marker.
NAME = re.compile(r"[\w.:/$-]*")

_FENCE = Markers(("```",))
_LANGUAGE = Markers(("json",))


@dataclass(frozen=True, slots=True)
class ParseContext:
    """Context of a form: text in, parts out, and the parameter schemas by tool."""

    buffer: TextBuffer
    collector: PartCollector
    schemas: Mapping[str, Mapping[str, Any]]

    def announce(self, name: str, call_id: str | None = None) -> None:
        """Announces that a call begins. From here on its text cannot become content any more."""
        if not name:
            raise Malformed
        self.buffer.take_marked()
        self.collector.call(name, call_id)


class Form(Protocol):
    """Reads the calls that begin where a family's opening marker ended.

    Raises `Malformed` or `CutOff` if the text does not have this form. Calls that were announced before the error
    remain; the text that the buffer has recorded since the last announced call is not a call.
    """

    def read(self, context: ParseContext) -> Reading[None]:
        """Read to the end of the call or calls."""

    def sample_of(self, example: str) -> str:
        """Returns the arguments in a family's example call, whose only argument is the city of Paris."""

    def write(self, schema: Mapping[str, Any], sample: str) -> Format | None:
        """Returns the format of arguments with this schema, in the style of `sample`; None if it cannot be followed."""


class JsonArguments:
    """For forms whose arguments are a JSON object: the format for structural tags."""

    __slots__ = ()

    def sample_of(self, example: str) -> str:
        return JSON_SAMPLE if JSON_SAMPLE in example else ""

    def write(self, schema: Mapping[str, Any], sample: str) -> Format | None:
        """Returns the format of arguments in JSON, which follows every schema."""
        del sample
        return json_value(schema)


def read_arguments(context: ParseContext, name: str, call_id: str | None = None) -> Reading[None]:
    """Announces a call, and passes on the JSON object that follows, as the model writes it."""
    if (yield from context.buffer.peek()) == "{":
        context.announce(name, call_id)
        yield from read_json(context.buffer, context.collector.arguments)
        return
    pieces: list[str] = []
    yield from read_json(context.buffer, pieces.append)
    give_arguments(context, "".join(pieces), name, call_id)


def give_arguments(
    context: ParseContext, value: str, name: str, call_id: str | None = None
) -> None:
    """Announces a call, and passes on its complete arguments.

    Models write an object, a string with the object's JSON, or null for no arguments.
    """
    if value.startswith('"'):
        value = decode_string(value).strip() or "{}"
        _check_object(value)
    elif value == "null":
        value = "{}"
    elif not value.startswith("{"):
        raise Malformed
    context.announce(name, call_id)
    context.collector.arguments(value)


def skip_fence(buffer: TextBuffer) -> Reading[None]:
    """Skips the marker of a Markdown code block, if it comes next."""
    yield from buffer.skip_space()
    if (yield from buffer.take_any(_FENCE)) is not None:
        yield from buffer.take_any(_LANGUAGE)
        yield from buffer.skip_space()


def decode_string(text: str) -> str:
    """The text of a JSON string; raises `Malformed` if it is invalid or cannot be encoded."""
    try:
        value = json.loads(text, strict=False)
        value.encode()
    except (ValueError, AttributeError) as error:
        raise Malformed from error
    assert isinstance(value, str), "only strings have `encode`"
    return value


def _check_object(text: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed from error
    if not isinstance(value, dict):
        raise Malformed
