"""Calls that the caller demands, made by the shipped model and by models that do not know what they write."""

import json
import random
import re
from dataclasses import replace

import pytest

from tests.web.serving import ECHO, QWEN, RANDOM, TINY, serving, weather_tool
from training.tiny import toolbox
from training.tiny.document import is_held_out
from weft.core.errors import BadRequest
from weft.core.values.types import RequestOptions, SamplingParams
from weft.text.parsers.table import TOOL_PARSERS
from weft.text.parsers.tool_families import ALIASES
from weft.web.chat.fold import fold
from weft.web.chat.run import run_turn
from weft.web.chat.turn import NamedTool, Tool, Turn
from weft.web.options import ApiOptions

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PAIR = (
    Tool(name="get_weather", description="The weather in a city.", parameters=CITY),
    Tool(name="get_time", description="The time in a city.", parameters=CITY),
)
NAMED = NamedTool("get_weather")
FAMILIES = sorted(TOOL_PARSERS.keys() - ALIASES.keys())


@pytest.fixture
async def calling():
    """What a server serves whose model calls tools."""
    async with serving(TINY, options=QWEN) as served:
        yield served


def turn(says="What is the weather in Paris?", tools=PAIR, choice="required", **changes):
    """A turn that has to end in a call."""
    params = {"temperature": 0.0, "max_tokens": 300, **changes.pop("params", {})}
    return Turn(
        options=RequestOptions(request_id="r"),
        messages=({"role": "user", "content": says},),
        params=SamplingParams(**params),
        tools=tools,
        tool_choice=choice,
        **changes,
    )


async def answer(served, asked):
    """The one answer, the same whole and streamed but for the ids, which are drawn."""
    streamed = await fold(run_turn(served, asked))
    whole = await fold(run_turn(served, replace(asked, is_streamed=False)))
    for one in (*streamed.answers, *whole.answers):
        for call in one.calls:
            call.id = call.id if call.id.startswith("functions.") else ""
    assert streamed.answers == whole.answers
    return whole.answers[0]


def calls_of(one):
    """Names and arguments."""
    return [(call.name, json.loads(call.arguments)) for call in one.calls]


def questions(count):
    """Questions for one tool of some, with arguments that the model never saw together."""
    rng = random.Random(7)
    while count:
        tools = toolbox.draw_tools(rng)
        call = toolbox.make_call(rng, rng.choice(tools))
        if is_held_out(call.key):
            count -= 1
            yield tuple(Tool(**tool.schema) for tool in tools), call


@pytest.mark.parametrize("choice", ["required", "named"])
async def test_the_shipped_model_calls_as_well_when_it_has_to(choice):
    """Held-out questions: of those that it answers by itself, a call it must make is lost in none or one."""
    right = {"auto": 0, choice: 0}
    async with serving(TINY, options=QWEN, max_model_len=2048) as served:
        for tools, call in questions(16):
            for wanted in right:
                made = NamedTool(call.name) if wanted == "named" else wanted
                whole = await fold(run_turn(served, turn(call.question, tools, made)))
                right[wanted] += calls_of(whole.answers[0]) == [(call.name, call.arguments)]
    assert right["auto"] >= 12
    assert right[choice] >= right["auto"] - 1


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_forced_call_is_the_call_of_its_own_choice(calling, choice):
    """In the same number of tokens: it ends after one."""
    free = await answer(calling, turn(choice="auto"))
    forced = await answer(calling, turn(choice=choice))
    assert calls_of(free) == [("get_weather", {"city": "Paris"})]
    assert forced.token_ids == free.token_ids
    assert forced.calls == free.calls
    assert forced.finish_reason == ("tool_calls" if choice == "required" else "stop")


async def test_a_named_function_is_the_one_that_is_called(calling):
    """Also where the question asks for another."""
    one = await answer(calling, turn(choice=NamedTool("get_time")))
    assert calls_of(one) == [("get_time", {"city": "Paris"})]


async def test_a_forced_call_comes_behind_the_thought(calling):
    """With the white space that the model puts between them."""
    one = await answer(calling, turn(template_kwargs={"enable_thinking": True}))
    assert one.reasoning
    assert one.num_reasoning_tokens > 0
    assert calls_of(one) == [("get_weather", {"city": "Paris"})]


@pytest.mark.parametrize("options", [QWEN, ApiOptions()], ids=["own format", "array"])
@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_call_that_is_cut_leaves_nothing_in_the_content(choice, options):
    """Wherever the limit falls: a name that was told stays, and the reason is the length."""
    async with serving(TINY, options=options) as served:
        for limit in range(1, 14):
            asked = turn(choice=choice, params={"max_tokens": limit}, is_streamed=False)
            (one,) = (await fold(run_turn(served, asked))).answers
            assert not one.content
            assert [call.name for call in one.calls] in ([], ["get_weather"])
            assert one.finish_reason == "length" or one.calls


async def test_a_bias_changes_nothing_about_what_is_taken(calling):
    """Two tools, one call, and a bias beside it."""
    for bias in ({5: -100.0}, {"5": 100.0}, {4089: -100.0}, {4092: -100.0}):
        params = {"logit_bias": bias, "max_tokens": 60}
        one = await answer(calling, turn(params=params, parallel_tool_calls=False))
        assert [call.name for call in one.calls] == ["get_weather"]


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_model_that_knows_no_format_writes_its_familys(family):
    """One call of the tool that is named, with arguments that fit, whatever the weights are."""
    options = ApiOptions(tool_call_parser=family)
    function = weather_tool()["function"]
    tools = (Tool(name="get_weather", parameters=function["parameters"]), *PAIR[1:])
    async with serving(RANDOM, options=options) as served:
        params = {"temperature": 1.0, "seed": 3, "max_tokens": 700}
        one = await answer(served, turn(tools=tools, choice=NAMED, params=params))
    assert one.finish_reason == "stop"
    ((name, arguments),) = calls_of(one)
    assert name == "get_weather"
    assert arguments["unit"] in {"c", "f"}
    assert 1 <= arguments["days"] <= 9


async def test_a_schema_that_a_format_cannot_keep_to_is_forced_as_json():
    """Tags have no means for a pattern; the call keeps to it all the same."""
    plate = {"type": "string", "pattern": "^[A-Z]{2}[0-9]$"}
    parameters = {
        "properties": {"plate": plate},
        "required": ["plate"],
        "additionalProperties": False,
    }
    tool = Tool(name="find", parameters={"type": "object", **parameters})
    async with serving(RANDOM, options=ApiOptions(tool_call_parser="qwen3_coder")) as served:
        one = await answer(served, turn(tools=(tool,), parallel_tool_calls=False))
    ((name, arguments),) = calls_of(one)
    assert name == "find"
    assert re.fullmatch("[A-Z]{2}[0-9]", arguments["plate"])


@pytest.mark.parametrize("options", [QWEN, ApiOptions()], ids=["own format", "array"])
async def test_tools_that_cannot_be_forced_are_refused_as_tools(options):
    """The caller never sent the constraint that was made from them."""
    far = {"type": "object", "properties": {"a": {"$ref": "http://example.org/x"}}}
    large = {"type": "object", "properties": {f"p{n}": {"const": "x" * 90} for n in range(200)}}
    async with serving(ECHO, options=options) as served:
        for parameters, count in ((far, 1), (large, 5)):
            tools = tuple(Tool(name=f"f{n}", parameters=parameters) for n in range(count))
            with pytest.raises(BadRequest, match="cannot be forced") as caught:
                await answer(served, turn(tools=tools))
            assert caught.value.parameter == "tools"
