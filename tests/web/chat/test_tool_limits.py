"""Tools as agents send them: hundreds, with long schemas and long names. Schemas bind forced calls alone."""

import pytest

from weft.core.errors import BadRequest
from weft.web.chat.tools import (
    MAX_TOOL_CHARS,
    MAX_TOOL_DEPTH,
    MAX_TOOLS,
    check_tools,
    template_tools,
)
from weft.web.chat.turn import NamedTool, Tool


def tool(name="f", **parameters):
    """A tool whose parameters are an object with these keywords."""
    return Tool(name=name, parameters={"type": "object", **parameters})


def nested(depth):
    """Parameters of so many levels."""
    schema: dict = {"type": "string"}
    for _ in range(depth // 2 - 1):
        schema = {"type": "object", "properties": {"a": schema}}
    return tool(properties={"a": schema})


LONG = tool(description="x" * 70 * 1024)
REPEATS = tool(properties={"s": {"type": "string", "pattern": "^.{1,65535}$"}})
NOT_HELD = tool(properties={"s": {"not": {"const": "x"}}})
FREE = [
    (tool("a/b"),),
    (tool("server:tool"),),
    (tool("mcp.server.tool"),),
    (tool(), tool(description="another of that name")),
    tuple(tool(f"f{number}") for number in range(MAX_TOOLS)),
    (LONG,),
    (REPEATS,),
    (nested(66),),
    (NOT_HELD,),
    (Tool(name="f", parameters=NOT_HELD.parameters, is_strict=True),),
    (tool(properties=None, required=None),),
]


@pytest.mark.parametrize("tools", FREE, ids=range(len(FREE)))
def test_tools_of_agents_are_taken_where_the_model_chooses(tools):
    """Their schemas are part of the prompt, and nothing else."""
    check_tools(tools, "auto")
    assert len(template_tools(tools)) == len(tools)


@pytest.mark.parametrize(
    "tools",
    [
        (LONG,),
        (REPEATS,),
        (nested(66),),
        (tool(), tool(description="another of that name")),
        (Tool(name="f", parameters=NOT_HELD.parameters, is_strict=True),),
    ],
)
@pytest.mark.parametrize("choice", ["required", NamedTool("f")])
def test_a_forced_call_has_the_bounds_of_a_grammar(tools, choice):
    """It is built of the schemas; where tools are strict they have to be held in full."""
    with pytest.raises(BadRequest) as caught:
        check_tools(tools, choice)
    assert caught.value.parameter == "tools"


@pytest.mark.parametrize(
    "tools",
    [(NOT_HELD,), (tool(), tool()), (tool("g"), LONG)],
    ids=["not held", "the same twice", "another is named"],
)
def test_a_named_call_is_forced_where_its_own_schema_is_in_bounds(tools):
    """What is not held is a note to the model; other tools do not matter."""
    check_tools(tools, NamedTool(tools[0].name))


@pytest.mark.parametrize(
    "tools",
    [
        tuple(tool(f"f{number}") for number in range(MAX_TOOLS + 1)),
        (tool(description="x" * MAX_TOOL_CHARS),),
        (nested(2 * MAX_TOOL_DEPTH),),
        (tool("a b"),),
        (tool("x" * 129),),
        (tool('a"b'),),
    ],
    ids=["too many", "too long", "too deep", "space", "long name", "quote"],
)
def test_bounds_stay(tools):
    """A prompt of tools has an end."""
    with pytest.raises(BadRequest) as caught:
        check_tools(tools, "auto")
    assert caught.value.parameter == "tools"
    assert len(str(caught.value)) < 300


def test_templates_see_no_null_of_go():
    """They write properties without asking whether there are any; data may be null."""
    schema = {"a": {"type": "string", "default": None, "enum": None, "items": None}}
    (shown,) = template_tools([tool(properties=schema, required=None)])
    assert shown["function"]["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "string", "default": None}},
    }
