"""Chooses the parser of an answer by names, chat template or prompt."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from weft.core.errors import ConfigError
from weft.text.parsers.answer import make_parser
from weft.text.parsers.families import ReasoningFamily, ToolFamily
from weft.text.parsers.parts import OutputParser
from weft.text.parsers.reasoning_families import REASONING_PARSERS
from weft.text.parsers.tool_families import TOOL_PARSERS

__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "choose_reasoning_parser",
    "choose_tool_parser",
    "make_output_parser",
    "starts_in_reasoning",
]


_Family = TypeVar("_Family")


def make_output_parser(
    *,
    reasoning: str | None,
    tool: str | None,
    tools: Sequence[Mapping[str, Any]] = (),
    starts_in_reasoning: bool | None = None,
    num_earlier_calls: int = 0,
    end_markers: Sequence[str] = (),
) -> OutputParser:
    """The parser of one answer, by the names of the families; see `make_parser`."""
    return make_parser(
        _named("reasoning_parser", REASONING_PARSERS, reasoning),
        _named("tool_call_parser", TOOL_PARSERS, tool),
        tools=tools,
        starts_in_reasoning=starts_in_reasoning,
        num_earlier_calls=num_earlier_calls,
        end_markers=end_markers,
    )


def choose_tool_parser(template_source: str) -> str | None:
    """Returns the name of the tool family whose call format a chat template uses; None for an unknown format."""
    return _first_match(template_source, TOOL_PARSERS)


def choose_reasoning_parser(template_source: str) -> str | None:
    """Returns the name of the reasoning family whose format a chat template uses; None if the template has no
    reasoning.
    """
    return _first_match(template_source, REASONING_PARSERS)


def starts_in_reasoning(prompt_text: str, family: ReasoningFamily) -> bool | None:
    """Returns True if a rendered prompt leaves reasoning open, False if it closes it, None if neither."""
    # Only the end of the prompt counts: earlier turns and user texts may contain the markers too.
    prompt = prompt_text.rstrip()
    if prompt.endswith(family.starts):
        return True
    return False if prompt.endswith((*family.ends, *family.answer_tags[:1])) else None


def _first_match(
    source: str, families: Mapping[str, ToolFamily] | Mapping[str, ReasoningFamily]
) -> str | None:
    for name, family in families.items():
        marks = family.template_marks
        if marks and all(mark in source for mark in marks):
            return name
    return None


def _named(flag: str, families: Mapping[str, _Family], name: str | None) -> _Family | None:
    if name is None:
        return None
    if name not in families:
        raise ConfigError(f"{flag}: {name!r} is unknown; must be {', '.join(sorted(families))}")
    return families[name]
