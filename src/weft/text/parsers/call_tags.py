"""Builds the structural tag that forces a model to call tools in the format of its family.

The tag is derived from the family's example call: the texts before, between and after its name and arguments are the
texts that the model has to write around every name and its arguments.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.text.parsers.families import ToolFamily
from weft.text.parsers.forms.arguments import JSON_SAMPLE, Format, const, one_of, sequence
from weft.text.parsers.forms.form import JsonArguments
from weft.text.parsers.forms.harmony import REASONING_TAG, TURN_START
from weft.text.parsers.forms.python_calls import PythonCalls

_NAME = "get_weather"
_NUMBER = ":0"
_ANY_NUMBER = {"type": "regex", "pattern": ":[0-9]{1,4}"}
# White space that models write between their reasoning and a call.
_SPACES = ("", "\n", "\n\n", " ")


@dataclass(frozen=True, slots=True)
class _Layout:
    """The texts around names and arguments."""

    before: str
    middle: str
    sample: str
    after: str
    between: str

    @classmethod
    def of(cls, family: ToolFamily, end_texts: Sequence[str]) -> "_Layout | None":
        """Derives the layout from the family's example. The tokens that end the model's turn are left out: the end of
        the turn replaces them.
        """
        form = family.form or JsonArguments()
        sample = form.sample_of(family.example)
        before, name, rest = family.example.partition(_NAME)
        middle, found, after = rest.partition(sample) if sample else ("", "", "")
        if not (name and found):
            return None
        for text in end_texts:
            after = after.removesuffix(text)
        between = f"{after}\n{before}" if family.between is None else family.between
        return cls(before, middle, sample, after, between)


def call_tag(
    family: ToolFamily,
    schemas: Mapping[str, Mapping[str, Any]],
    *,
    is_parallel: bool,
    has_reasoning: bool = False,
    num_earlier_calls: int = 0,
    end_texts: Sequence[str] = (),
) -> Format | None:
    """Format of one tool call, or several with `is_parallel`; None if the family cannot write the schemas.

    `schemas` are those of the tools' arguments, objects, by the tools' names.
    `has_reasoning`: white space may come first, and of a family that writes its reasoning as it writes
    calls, reasoning. `end_texts` are the tokens that end the model's turn.
    """
    layout = _Layout.of(family, end_texts)
    if layout is None:
        return None
    # In harmony, the end of a call is the end of the turn.
    is_single = family.is_harmony or not is_parallel
    number = const(f":{num_earlier_calls}") if is_single else _ANY_NUMBER
    end = _shared(layout.after, layout.between)
    separator = layout.between.removeprefix(end)
    tags = []
    for name, schema in schemas.items():
        content = _content(family, layout, schema, number)
        if content is None:
            return None
        tags.append({"type": "tag", "begin": name, "content": content, "end": end})
    calls = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": is_single,
    }
    start = _start(family, layout.before, has_reasoning=has_reasoning)
    whole = sequence(start, calls, *_tail(layout.after.removeprefix(end), separator))
    return {"type": "structural_tag", "format": whole}


def write_call(family: ToolFamily, name: str, arguments: Mapping[str, Any]) -> str | None:
    """A call as models of the family write it; None where the arguments are neither JSON nor Python's."""
    layout = _Layout.of(family, ())
    if layout is None or family.is_harmony or family.counts_ids:
        return None
    if isinstance(family.form, PythonCalls):
        written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    elif layout.sample == JSON_SAMPLE:
        written = json.dumps(arguments, ensure_ascii=False)
    else:
        return None
    return f"{layout.before}{name}{layout.middle}{written}{layout.after}"


def _content(
    family: ToolFamily, layout: _Layout, schema: Mapping[str, Any], number: Format
) -> Format | None:
    """Format of the text between the name and the end of the arguments."""
    form = family.form or JsonArguments()
    arguments = form.write(schema, layout.sample)
    if arguments is None:
        return None
    if family.counts_ids:
        return sequence(number, const(layout.middle.removeprefix(_NUMBER)), arguments)
    return sequence(const(layout.middle), arguments)


def _shared(one: str, other: str) -> str:
    """Common beginning of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))]


def _tail(text: str, separator: str) -> list[Format]:
    """Format of the text after the last call.

    The answer may end with the white space that separates calls: otherwise a model that has written this white space
    would be forced to make another call.
    """
    space = separator[: len(separator) - len(separator.lstrip())]
    if text:
        return [const(text)]
    return [one_of([const(""), const(space)])] if space else []


def _start(family: ToolFamily, before: str, *, has_reasoning: bool) -> Format:
    if not has_reasoning:
        return const(before)
    if family.is_harmony:
        return one_of([const(before), sequence(REASONING_TAG, const(TURN_START + before))])
    return one_of([const(space + before) for space in _SPACES])
