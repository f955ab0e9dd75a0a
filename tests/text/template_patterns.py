"""Small chat templates of our own, made to have given facts, and the facts of templates that models came with."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from weft.text.templates.history import normalise_messages
from weft.text.templates.template import TemplateRefusal, make_environment, render
from weft.text.templates.template_facts import TemplateFacts, find_facts

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
PUBLISHED = Path(__file__).parent / "published_templates.json"

_PATTERN = """
{%- for tool in tools or [] if facts.writes_tools %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}
  {%- set role, content = message.role, message.content %}
  {%- set before = messages[loop.index0 - 1].role if loop.index0 else 'start' %}
  {%- if role == 'system' and (
      not facts.takes_system
      or (before == 'system' and not facts.takes_two_systems)
      or (before not in ['start', 'system'] and not facts.takes_late_system)
  ) %}{{ raise_exception('a system text may not stand here') }}{% endif %}
  {%- if role == 'user' and (
      (before == 'user' and not facts.takes_two_users)
      or (before == 'tool' and not facts.takes_user_after_result)
  ) %}{{ raise_exception('a user text may not stand here') }}{% endif %}
  {%- set calls = message.tool_calls or [] %}
  {%- if (facts.needs_null_content and content is not none) or not facts.writes_calls %}
    {%- set calls = [] %}
  {%- endif %}
  {%- if calls | length > 1 and not facts.takes_parallel_calls %}
    {{- raise_exception('one call at once') }}
  {%- endif %}
  {%- for call in calls %}
    {%- if facts.needs_short_ids and (call.id | length != 9 or not call.id.isalnum()) %}
      {{- raise_exception('ids have nine letters and digits') }}
    {%- endif %}
    {%- if facts.takes_argument_text %}[{{ call.function.name + call.function.arguments }}]
    {%- else %}{% for key, value in call.function.arguments | items %}[{{ key }}={{ value }}]{% endfor %}
    {%- endif %}
  {%- endfor %}
  {%- if content is none or (role == 'tool' and not facts.takes_results) %}
  {%- elif role in facts.textless_roles and role not in facts.part_roles %}{{ content[0].text }}
  {%- elif role in facts.textless_roles %}{% for part in content %}{{ part.text }}{% endfor %}
  {%- elif content is string %}{{ content }}
  {%- elif role in facts.part_roles %}{% for part in content %}{{ part.text }}{% endfor %}
  {%- else %}{{ 'text: ' + content }}
  {%- endif %}
{% endfor %}"""


def pattern(facts: TemplateFacts) -> str:
    """A template with these facts."""
    return "{%- set facts = " + json.dumps(msgspec.to_builtins(facts)) + " %}" + _PATTERN


def published_facts() -> dict[str, TemplateFacts]:
    """The facts of templates that were published with models, by the models' names."""
    rows = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return {row["name"]: msgspec.convert(row["facts"], TemplateFacts) for row in rows}


def distinct_facts() -> dict[str, TemplateFacts]:
    """Each combination of facts that a published template has, by the first model that has it."""
    names: dict[TemplateFacts, str] = {}
    for name, facts in published_facts().items():
        names.setdefault(facts, name)
    return {name: facts for facts, name in names.items()}


class InProcess:
    """A template without the process that `ChatTemplate` keeps for it: for many small renderings."""

    def __init__(self, source: str) -> None:
        self._template = make_environment(datetime.now).from_string(source)
        self.facts = find_facts(self._render_or_none, has_tools=True)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of messages in OpenAI's form."""
        return self._render(normalise_messages(messages, self.facts), TOOLS)

    def _render(self, messages: object, tools: object) -> str:
        return render(self._template, {"messages": messages, "tools": tools}, 100_000)

    def _render_or_none(self, messages: object, tools: object) -> str | None:
        try:
            return self._render(messages, tools)
        except (jinja2.TemplateError, TemplateRefusal, TypeError):
            return None
