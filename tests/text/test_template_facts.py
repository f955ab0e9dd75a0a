"""Facts of templates: found by what templates do, as those do that models were published with."""

import pytest

from tests.text.template_patterns import InProcess, distinct_facts, pattern, published_facts
from weft.text.templates.chat import ChatTemplate
from weft.text.templates.template_facts import TemplateFacts

# Names that are content in one branch and calls in another, as in Mistral's templates.
NAMES = """{% for message in messages %}{% if message["role"] == "user" %}[INST]{{ message["content"] + "" }}
{%- elif message.tool_calls is defined or message["role"] == "tool_calls" %}
{%- if message.tool_calls is defined %}{% set calls = message.tool_calls %}
{%- else %}{% set calls = message.content %}{% endif %}
{%- for call in calls %}{{ call | tojson }}{% endfor %}{% endif %}{% endfor %}"""

# Content that is read in a macro, as in those of Qwen 3.5.
MACRO = """{% macro show(content) %}{% if content is string %}{{ content }}{% else %}
{%- for part in content %}{% if part.type == "image" %}<img>{% else %}{{ part.text }}{% endif %}{% endfor %}
{%- endif %}{% endmacro %}{% for message in messages %}{{ show(message.content) }}{% endfor %}"""

# The first part alone, as in those of LLaVA.
FIRST = "{% for message in messages %}{{ message.content[0].text + '' }}{% endfor %}"

ALL_ROLES = frozenset({"system", "user", "assistant", "tool"})


@pytest.mark.parametrize("facts", distinct_facts().values(), ids=distinct_facts().keys())
def test_facts_are_what_a_template_does(facts):
    """For every combination of facts that a published template has, a template of ours has it too."""
    assert InProcess(pattern(facts)).facts == facts


def test_the_table_has_the_templates_that_people_use():
    """Parts, short ids, argument text, one call at once: each is a fact of some template."""
    table = published_facts()
    assert len(table) > 100
    assert table["Qwen3.5-4B"].part_roles == ALL_ROLES
    assert not table["Qwen3.5-4B"].takes_late_system
    assert table["mistralai-Mistral-Nemo-Instruct-2407"].needs_short_ids
    assert not table["mistralai-Mistral-Nemo-Instruct-2407"].part_roles
    assert table["deepseekv3"].takes_argument_text
    assert not table["meta-llama-Llama-3.1-8B-Instruct"].takes_parallel_calls
    assert not table["google-gemma-2-2b-it"].takes_system


@pytest.mark.parametrize(
    ("source", "roles", "textless"),
    [
        (NAMES, frozenset(), frozenset()),
        (MACRO, ALL_ROLES, frozenset()),
        (FIRST, frozenset(), ALL_ROLES),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", frozenset(), frozenset()),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", frozenset(), frozenset()),
    ],
)
def test_parts_are_wanted_where_they_are_written_as_text(source, roles, textless):
    """Neither a loop over the name of contents nor a macro around them says whether they may be lists."""
    facts = InProcess(source).facts
    assert (facts.part_roles, facts.textless_roles) == (roles, textless)


def test_a_template_may_keep_lists_of_its_own():
    """Kimi K2's count calls in a list, and llama.cpp's for DeepSeek R1 write a filter's values as JSON."""
    source = """{% set seen = namespace(ids=[]) %}{% for m in messages %}{% set _ = seen.ids.append(m.role) %}
{%- endfor %}{{ seen.ids | map('upper') | tojson }}"""
    assert InProcess(source).render([{"role": "user", "content": "x"}]) == '["USER"]'


def test_a_template_cannot_change_what_others_read():
    """Its messages and tools are copies of its rendering's own."""
    changing = "{% for t in tools %}{% set _ = t.function.clear() %}{% endfor %}{{ messages }}"
    with ChatTemplate(changing, {}) as template:
        template.facts(has_tools=True)
    with ChatTemplate("{{ tools | tojson }}{{ messages }}", {}) as template:
        assert template.facts(has_tools=True).writes_tools


def test_a_template_that_always_raises_has_the_facts_of_one_that_takes_no_form():
    """Nothing is known of it; its own error is what a request gets."""
    facts = InProcess("{{ raise_exception('no') }}").facts
    assert facts.part_roles == frozenset()
    assert not facts.writes_tools
    assert TemplateFacts().writes_tools
