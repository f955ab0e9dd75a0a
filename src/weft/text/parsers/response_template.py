"""The families that a model describes itself, in the `response_template` of its tokenizer_config.json.

The format is Hugging Face's. What it says in literal marks is read here; a template that needs patterns
is not, because the time that a stranger's pattern takes on a model's text has no bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.text.parsers.families import ReasoningFamily, ToolFamily
from weft.text.parsers.forms.json_calls import JsonCalls

_THOUGHTS = ("thinking", "reasoning", "reasoning_content")
_KNOWN = frozenset({*_THOUGHTS, "content", "tool_calls"})
_FIELD_KEYS = frozenset(
    "open close repeats optional content content_args transform transform_each".split()
)


@dataclass(frozen=True, slots=True)
class ResponseFamilies:
    """What `make_parser` takes, as a model describes itself."""

    reasoning: ReasoningFamily | None
    tool: ToolFamily | None
    end_markers: tuple[str, ...]


class _Beyond(Exception):
    """The template says something that is not read here."""


def read_response_template(template: object) -> ResponseFamilies | None:
    """What the template describes; None if it uses more than is read here, or is none."""
    fields = template.get("fields") if isinstance(template, Mapping) else None
    if not isinstance(fields, Mapping) or not fields.keys() <= _KNOWN:
        return None
    try:
        content = fields.get("content")
        return ResponseFamilies(
            _reasoning(fields),
            _tool(fields["tool_calls"]) if "tool_calls" in fields else None,
            () if content is None else (*_marks(content, "open"), *_marks(content, "close")),
        )
    except _Beyond:
        return None


def _reasoning(fields: Mapping[str, Any]) -> ReasoningFamily | None:
    found = [fields[name] for name in _THOUGHTS if name in fields]
    if not found:
        return None
    starts, ends = _marks(found[0], "open"), _marks(found[0], "close")
    if len(found) > 1 or not starts or not ends or found[0].get("content", "text") != "text":
        raise _Beyond
    return ReasoningFamily(starts, ends, models="", needs_special_tokens=True)


def _tool(field: object) -> ToolFamily:
    openers, closers = _marks(field, "open"), _marks(field, "close")
    assert isinstance(field, Mapping), "it has marks"
    if not openers or field.get("content") != "json" or field.get("content_args"):
        raise _Beyond
    name_key, arguments_key = _keys(field.get("transform"))
    form = JsonCalls(name_key=name_key, argument_keys=frozenset({arguments_key}))
    return ToolFamily(
        form=form,
        openers=openers,
        closers=closers,
        needs_special_tokens=True,
        models="",
        example="",
    )


def _keys(transform: object) -> tuple[str, str]:
    """Where a call's object has the name and the arguments."""
    function = transform.get("function") if isinstance(transform, Mapping) else None
    if transform is None or function == "{content}":
        return "name", "arguments"
    if not isinstance(function, Mapping) or function.keys() != {"name", "arguments"}:
        raise _Beyond
    return _placeholder(function["name"]), _placeholder(function["arguments"])


def _placeholder(text: object) -> str:
    if isinstance(text, str) and text.startswith("{") and text.endswith("}"):
        key = text[1:-1].removeprefix("content.")
        if key.isidentifier() and key != "content":
            return key
    raise _Beyond


def _marks(field: object, key: str) -> tuple[str, ...]:
    if not isinstance(field, Mapping) or not field.keys() <= _FIELD_KEYS:
        raise _Beyond
    marks = field.get(key, [])
    marks = [marks] if isinstance(marks, str) else marks
    if not isinstance(marks, list) or not all(isinstance(mark, str) and mark for mark in marks):
        raise _Beyond
    return tuple(marks)
