"""Round trips: the calls that a parser reads go back into templates, which write them for the next turn."""

import pytest

from tests.text.parsers.taking_apart import take_apart
from tests.text.template_patterns import InProcess, distinct_facts, pattern
from weft.text.parsers.table import TOOL_PARSERS

TABLE = distinct_facts()
# Forms of ids: of our servers, by API, and of Mistral's models.
IDS = ["chatcmpl-tool-0123456789abcdef0123456789abcdef", "call_0123", "toolu_0123", "aB3dE5gH9"]


def conversation(family, call_id):
    """A conversation in which a model of the family has called once, as its parser read the call."""
    parts = take_apart(TOOL_PARSERS[family].example, tool=family)
    (call,) = [part for part in parts if part[0] == "call"]
    function = {"name": call[1], "arguments": call[2]}
    return [
        {"role": "user", "content": "How is the weather in Rome?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": "18 degrees"},
        {"role": "user", "content": "And tomorrow?"},
    ]


CONVERSATIONS = {
    f"{family} {call_id}": conversation(family, call_id)
    for family in TOOL_PARSERS
    for call_id in IDS
}


@pytest.mark.parametrize("facts", TABLE.values(), ids=TABLE.keys())
def test_calls_of_every_family_go_back_into_every_template(facts):
    """Call, result, next turn: the call's argument and its result stand in the next prompt."""
    template = InProcess(pattern(facts))
    texts = {name: template.render(talk) for name, talk in CONVERSATIONS.items()}
    words = ("Paris", "18 degrees", "tomorrow")
    assert [name for name, text in texts.items() if any(word not in text for word in words)] == []
