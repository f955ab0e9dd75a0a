"""Thoughts and calls in the model's own format: what a turn makes of an answer that a test wrote."""

import json
from dataclasses import replace

import pytest

from tests.web.serving import ECHO, QWEN, SCRIPT, serving, weather_tool
from weft.core.errors import BadRequest
from weft.core.values.types import RequestOptions, SamplingParams, StructuredOutputsParams
from weft.web.chat.fold import fold
from weft.web.chat.run import run_turn
from weft.web.chat.turn import NamedTool, Tool, Turn
from weft.web.options import ApiOptions

# A template that can tell its model not to think; what it ends with keeps the prompt from doing so.
THINKS = "{# enable_thinking #}" + SCRIPT + "A:"
THOUGHT = "<think>Hm.</think>"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"unit": "c"}}\n</tool_call>'
TOOLS = (Tool(name="get_weather", parameters=weather_tool()["function"]["parameters"]),)


def turn(says, **changes):
    """A turn whose answer is `says`."""
    params = {"temperature": 0.0, "max_tokens": 300, **changes.pop("params", {})}
    return Turn(
        options=RequestOptions(request_id="r"),
        messages=({"role": "user", "content": says},),
        params=SamplingParams(**params),
        **changes,
    )


async def answers(asked, options=QWEN, template=SCRIPT):
    """The answers of a turn, told as a stream."""
    async with serving(ECHO, options=options, template=template) as served:
        return (await fold(run_turn(served, asked))).answers


async def answer(asked, options=QWEN, template=SCRIPT):
    """The one answer of a turn."""
    (only,) = await answers(asked, options, template)
    return only


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_reasoning_content_and_calls_are_separated(is_streamed):
    """Each token of reasoning is counted, marks included; a made call ends with "tool_calls"."""
    said = f"{THOUGHT}\n\nSure.{CALL}"
    for one in await answers(
        turn(said, tools=TOOLS, is_streamed=is_streamed, params={"n": 2, "seed": 1})
    ):
        assert one.reasoning == "Hm."
        assert one.content == "Sure."
        assert [(call.name, json.loads(call.arguments)) for call in one.calls] == [
            ("get_weather", {"unit": "c"})
        ]
        assert one.num_reasoning_tokens == len(THOUGHT)
        assert one.finish_reason == "tool_calls"


async def test_a_call_that_was_cut_off_is_not_to_be_made():
    """The length limit stays the reason."""
    one = await answer(turn(CALL, tools=TOOLS, params={"max_tokens": len(CALL) - 20}))
    assert len(one.calls) == 1
    assert one.finish_reason == "length"


async def test_calls_are_looked_for_only_where_the_model_may_make_some():
    """Without tools, and with tool_choice "none", their marks are text."""
    assert (await answer(turn(CALL))).content == CALL
    assert (await answer(turn(CALL, tools=TOOLS, tool_choice="none"))).content == CALL


async def test_one_call_is_kept_where_calls_are_not_parallel():
    """The first."""
    one = await answer(turn(CALL + CALL, tools=TOOLS, parallel_tool_calls=False))
    assert len(one.calls) == 1


async def test_reasoning_can_be_left_out():
    """They are counted all the same: they were paid for."""
    one = await answer(turn(f"{THOUGHT}Hi", include_reasoning=False))
    assert (one.reasoning, one.content) == (None, "Hi")
    assert one.num_reasoning_tokens == len(THOUGHT)


@pytest.mark.parametrize("choice", ["required", NamedTool("get_weather")])
async def test_a_forced_call_waits_for_the_end_of_the_thought(choice):
    """The grammar begins behind it."""
    one = await answer(turn(THOUGHT, tools=TOOLS, tool_choice=choice), template=THINKS)
    assert one.reasoning == "Hm."
    assert one.num_reasoning_tokens == len(THOUGHT)
    (call, *_) = one.calls
    assert json.loads(call.arguments)["unit"] in {"c", "f"}


async def test_a_forced_call_waits_for_no_thought_that_need_not_come():
    """A constraint that a model could escape by not thinking would be none."""
    one = await answer(turn(THOUGHT, tools=TOOLS, tool_choice=NamedTool("get_weather")))
    assert one.reasoning is None
    assert json.loads(one.calls[0].arguments)["unit"] in {"c", "f"}


async def test_a_constraint_waits_for_the_thought_that_the_prompt_opened():
    """Whatever the template says beside it."""
    says = "Hm.</think>"
    params = {"structured_outputs": StructuredOutputsParams(choice=["yes", "no"])}
    one = await answer(turn(says, params=params), template=SCRIPT + "<think>\n")
    assert one.reasoning == "Hm."
    assert one.content in {"yes", "no"}


async def test_a_prompt_that_closed_the_reasoning_gets_content_at_once():
    """Even marks of reasoning are content then."""
    one = await answer(turn("Hi"), template=SCRIPT + "<think>\n\n</think>\n\n")
    assert one.reasoning is None
    assert one.content.startswith("Hi")
    assert one.num_reasoning_tokens == 0


@pytest.mark.parametrize(
    ("text", "is_thought"), [("<think>So", True), (THOUGHT + "So", False), ("So", False)]
)
async def test_a_message_that_is_continued_tells_whether_it_thinks(text, is_thought):
    """By its own text, which the prompt ends with."""
    one = await answer(
        turn(text, add_generation_prompt=False, continue_final_message=True),
        options=ApiOptions(reasoning_parser="deepseek_r1"),
    )
    assert (one.reasoning is not None) == is_thought


async def test_a_budget_ends_the_thought():
    """Its end is written for the model; without reasoning there is nothing to end."""
    endless = "<think>" + "Hm. " * 50
    one = await answer(turn(endless, params={"thinking_token_budget": 20}), template=THINKS)
    assert one.reasoning is not None
    assert one.num_reasoning_tokens == 20 + len("</think>")
    with pytest.raises(BadRequest) as caught:
        await answer(turn(endless, params={"thinking_token_budget": 20}), options=ApiOptions())
    assert caught.value.parameter == "thinking_token_budget"


async def test_special_tokens_are_text_where_the_parser_reads_them():
    """They are asked of the engine, and those that end a turn are left out again."""
    options = ApiOptions(tool_call_parser="mistral")
    said = 'Sure.[TOOL_CALLS]get_weather[ARGS]{"unit": "c"}<|endoftext|>'
    ignoring = {"ignore_eos": True, "max_tokens": len(said)}
    one = await answer(turn(said, tools=TOOLS, params=ignoring), options=options)
    assert [call.name for call in one.calls] == ["get_weather"]
    assert one.content == "Sure."


async def test_ids_of_forced_calls_are_counted_where_the_model_counts_them():
    """From the number of calls that the conversation holds."""
    asked = turn("x", tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    earlier = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = ({"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [earlier]})
    one = await answer(
        replace(asked, messages=history), options=ApiOptions(tool_call_parser="kimi_k2")
    )
    assert [call.id for call in one.calls] == ["functions.get_weather:1"]
