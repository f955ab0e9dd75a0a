"""The sandbox that chat templates are compiled and run in, with what Hugging Face gives them.

This module does not limit time or memory; `weft.text.templates.render_worker` limits both, in a process that can be
killed.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox


class TemplateRefusal(Exception):
    """The template called `raise_exception`, because it does not accept the messages."""


class OutputTooLong(Exception):
    """The rendered text exceeds the limit."""


def make_environment(now: Callable[[], datetime]) -> jinja2.sandbox.SandboxedEnvironment:
    """An environment in which templates written for `apply_chat_template` render the same text.

    Templates may change lists, as Kimi K2's do: they are their own, or copies that one rendering reads.
    """
    environment = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    # Jinja's own tojson escapes for HTML, which would change the prompt.
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def render(template: jinja2.Template, variables: Mapping[str, Any], max_chars: int) -> str:
    """The rendered text; raises `OutputTooLong` as soon as it exceeds the limit."""
    parts: list[str] = []
    num_chars = 0
    for part in template.generate(variables):
        num_chars += len(part)
        if num_chars > max_chars:
            raise OutputTooLong
        parts.append(part)
    return "".join(parts)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`, which marks a model's text for training; in a prompt it only renders its content."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_filtered,
    )


def _filtered(value: object) -> list[Any]:
    """The values that Jinja's filters (map, select) yield one by one."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _refuse(message: object) -> None:
    raise TemplateRefusal(str(message))
