"""A turn against real engines: its events, their fold, and what is refused before the first."""

import json
from contextlib import aclosing

import pytest

from tests.doubles.loop_probe import check_pauses
from tests.web.serving import ECHO, is_compact, serving, weather_tool
from weft.core.errors import BadRequest, ContextLengthExceeded
from weft.core.values.types import RequestOptions, SamplingParams, StructuredOutputsParams
from weft.web.chat.fold import fold
from weft.web.chat.run import run_turn
from weft.web.chat.tools import MAX_FORCED_CALLS
from weft.web.chat.turn import Began, Ended, NamedTool, Tool, Turn, TurnDelta
from weft.web.options import ApiOptions

HELLO = ({"role": "user", "content": "hello"},)


def tool(name="get_weather", **changes):
    """A tool with references inside its schema."""
    function = weather_tool(name)["function"]
    fields = {"description": function["description"], "parameters": function["parameters"]}
    return Tool(name=name, **{**fields, **changes})


def turn(messages=HELLO, **changes):
    """A short turn."""
    params = changes.pop("params", {})
    return Turn(
        options=RequestOptions(request_id="r", **changes.pop("options", {})),
        messages=messages,
        params=SamplingParams(**{"max_tokens": 200, "temperature": 1.0, "seed": 3, **params}),
        **changes,
    )


async def test_events_come_in_order(served):
    """Began once and first, Ended once and last, each answer's reason in its last delta."""
    events = [event async for event in run_turn(served, turn(params={"n": 2, "max_tokens": 4}))]
    assert isinstance(events[0], Began)
    assert isinstance(events[-1], Ended)
    deltas = events[1:-1]
    assert all(isinstance(delta, TurnDelta) for delta in deltas)
    for index in (0, 1):
        own = [delta for delta in deltas if delta.index == index]
        assert [delta.finish_reason for delta in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == "length"
        assert sum(len(delta.token_ids) for delta in own) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"params": {"n": 3, "logprobs": 2, "max_tokens": 9}},
        {"tools": (tool(), tool("other")), "tool_choice": "required"},
        {"tools": (tool(),), "tool_choice": NamedTool("get_weather")},
        {"params": {"structured_outputs": StructuredOutputsParams(regex="[a-z]{3,9}")}},
    ],
)
async def test_an_answer_in_one_piece_is_the_fold_of_the_stream(changes):
    """Only the ids of calls, which are drawn, may differ."""
    async with serving(enable_prefix_caching=False) as served:
        streamed = await fold(run_turn(served, turn(**changes)))
        whole = await fold(run_turn(served, turn(is_streamed=False, **changes)))
    for answer in [*streamed.answers, *whole.answers]:
        for call in answer.calls:
            assert call.id.startswith("chatcmpl-tool-")
            call.id = ""
    assert streamed == whole


async def test_required_calls_follow_their_schemas(served):
    """Compact JSON that the tool's own schema takes, references resolved, and the reason "tool_calls"."""
    asked = turn(tools=(tool(), tool("other")), tool_choice="required")
    whole = await fold(run_turn(served, asked))
    (answer,) = whole.answers
    assert answer.finish_reason in {"tool_calls", "length"}
    assert answer.content is None
    for call in answer.calls[:-1] or answer.calls:
        arguments = json.loads(call.arguments)
        assert call.name in {"get_weather", "other"}
        assert arguments["unit"] in {"c", "f"}
        assert 1 <= arguments["days"] <= 9
        assert is_compact(call.arguments)


async def test_one_call_where_calls_are_not_parallel(served):
    """The grammar allows no second one."""
    asked = turn(tools=(tool(),), tool_choice="required", parallel_tool_calls=False)
    whole = await fold(run_turn(served, asked))
    (answer,) = whole.answers
    assert answer.finish_reason == "tool_calls"
    assert len(answer.calls) == 1


async def test_a_model_that_does_not_stop_calling_is_stopped():
    """Forced calls are counted: one that knows no end has one, and a whole answer."""
    async with serving(max_model_len=2048) as served:
        asked = turn(
            tools=(tool(parameters=None),), tool_choice="required", params={"max_tokens": 1500}
        )
        whole = await fold(run_turn(served, asked))
    (answer,) = whole.answers
    assert 1 <= len(answer.calls) <= MAX_FORCED_CALLS
    assert answer.finish_reason == "tool_calls"


async def test_a_named_call_ends_with_stop(served):
    """The caller asked for it by name: that it was made is no news."""
    asked = turn(tools=(tool(),), tool_choice=NamedTool("get_weather"))
    whole = await fold(run_turn(served, asked))
    (answer,) = whole.answers
    assert answer.finish_reason == "stop"
    assert [call.name for call in answer.calls] == ["get_weather"]
    assert is_compact(answer.calls[0].arguments)


async def test_tools_without_parameters_take_an_empty_object(served):
    """Nothing else fits them."""
    asked = turn(tools=(tool(parameters=None),), tool_choice="required", parallel_tool_calls=False)
    whole = await fold(run_turn(served, asked))
    assert whole.answers[0].calls[0].arguments == "{}"


async def test_the_template_sees_the_tools_unless_told_not_to():
    """With tool_choice "none" they are hidden only where the server says so."""
    template = {"tools": (tool(),), "tool_choice": "none"}
    async with serving("embedded:tiny") as served:
        shown = await fold(run_turn(served, turn(params={"max_tokens": 1}, **template)))
    options = ApiOptions(exclude_tools_when_tool_choice_none=True)
    async with serving("embedded:tiny", options=options) as served:
        hidden = await fold(run_turn(served, turn(params={"max_tokens": 1}, **template)))
    assert "get_weather" in shown.prompt
    assert "get_weather" not in hidden.prompt


async def test_the_final_message_is_continued(served):
    """Without an end of turn after it."""
    messages = ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "Sure: "})
    asked = turn(
        messages,
        add_generation_prompt=False,
        continue_final_message=True,
        params={"max_tokens": 1},
    )
    whole = await fold(run_turn(served, asked))
    assert whole.prompt.endswith("<|im_start|>assistant\nSure: ")


async def test_parts_and_strings_make_the_same_prompt(served):
    """A content of one text part is that text."""
    parts = ({"role": "user", "content": [{"type": "text", "text": "hello"}]},)
    one = await fold(run_turn(served, turn(parts, params={"max_tokens": 1})))
    other = await fold(run_turn(served, turn(params={"max_tokens": 1})))
    assert one.prompt == other.prompt
    assert one.prompt_token_ids == other.prompt_token_ids


@pytest.mark.parametrize(
    "fields",
    [
        {"content": None, "refusal": "I will not."},
        {"content": [{"type": "refusal", "refusal": "I will not."}]},
    ],
)
async def test_a_refusal_is_what_the_assistant_said(served, fields):
    """Clients send earlier answers back as they got them."""
    messages = (*HELLO, {"role": "assistant", **fields}, *HELLO)
    whole = await fold(run_turn(served, turn(messages, params={"max_tokens": 1})))
    assert "<|im_start|>assistant\nI will not.<|im_end|>" in whole.prompt


async def test_an_answer_that_was_cut_off_in_its_reasoning_can_be_sent_back(served):
    """It has no content, and no calls either."""
    cut = {"role": "assistant", "content": None, "reasoning": "Hm", "tool_calls": []}
    asked = turn((*HELLO, cut, *HELLO), params={"max_tokens": 1})
    assert (await fold(run_turn(served, asked))).answers


async def test_a_template_of_gpt_oss_gets_the_reasoning_before_a_call():
    """Under its own name, and only where the call has no content beside it: both together it refuses."""
    template = (
        "{% for message in messages %}{% if message.tool_calls %}"
        "{% if message.content and message.thinking %}{{ raise_exception('both') }}{% endif %}"
        "[{{ message.thinking or message.content }}]"
        "{% for call in message.tool_calls %}{{ call.function.name }}{{ call.function.arguments }}{% endfor %}"
        "{% endif %}{% endfor %}"
    )
    calls = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    called = {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": calls}
    messages = (*HELLO, called, *HELLO, {**called, "content": "Let me see."}, *HELLO)
    async with serving(template=template) as served:
        whole = await fold(run_turn(served, turn(messages, params={"max_tokens": 1})))
    assert whole.prompt == "[Hm.]f{}[Let me see.]f{}"


async def test_a_template_without_developers_reads_them_as_system(served):
    """The newer name must not cost an instruction its role."""
    messages = ({"role": "developer", "content": "Be brief."}, *HELLO)
    whole = await fold(run_turn(served, turn(messages, params={"max_tokens": 1})))
    assert "<|im_start|>system\nBe brief." in whole.prompt


async def test_leaving_early_aborts_the_request():
    """Closing the events ends the engine's work on them."""
    async with serving(ECHO + "?itl_ms=50") as served:
        asked = turn(params={"max_tokens": 900, "ignore_eos": True})
        async with aclosing(run_turn(served, asked)) as events:
            await anext(events)
            assert served.client.num_active_requests == 1
        assert served.client.num_active_requests == 0


def message(**fields):
    """One message in a list."""
    return ({"role": "user", "content": "x", **fields},)


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"messages": ()}, "messages"),
        ({"messages": message(role="oracle")}, "messages"),
        ({"messages": message(role=None)}, "messages"),
        ({"messages": message(content=None)}, "messages"),
        ({"messages": message(content=[{"type": "image_url"}])}, "messages"),
        ({"messages": message(role="assistant", tool_calls=[{"id": "x"}])}, "messages"),
        ({"messages": message(content="\ud800")}, "prompt"),
        ({"template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        (
            {"tools": (tool(), tool(description="another")), "tool_choice": "required"},
            "tools",
        ),
        ({"tools": (tool("a b"),)}, "tools"),
        ({"tools": (tool(""),)}, "tools"),
        ({"tools": (tool(description="x" * 10_000_000),)}, "tools"),
        ({"tools": (tool(parameters={"type": 1}),)}, "tools"),
        ({"tools": (tool(parameters={"type": "string"}),)}, "tools"),
        ({"tools": (tool(parameters={"properties": []}),)}, "tools"),
        ({"tools": (tool(parameters={"x": float("nan")}),)}, "tools"),
        ({"tools": tuple(tool(f"t{n}") for n in range(1025)), "tool_choice": "none"}, "tools"),
        ({"tools": (tool(),), "tool_choice": NamedTool("other")}, "tool_choice"),
        ({"tools": (tool(),)}, "tool_choice"),  # "auto", and no parser
        ({"tool_choice": "required"}, "tool_choice"),
        ({"params": {"n": 200}}, "n"),
        ({"params": {"max_tokens": 0}}, "max_tokens"),
        ({"params": {"max_tokens": 1024}}, "max_tokens"),
        ({"params": {"temperature": 9.0}}, "temperature"),
        ({"options": {"priority": 1}}, "priority"),
        ({"options": {"data_parallel_rank": 7}}, "data_parallel_rank"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 10_000}, "cache_salt"),
        (
            {
                "tools": (tool(),),
                "tool_choice": "required",
                "params": {"structured_outputs": StructuredOutputsParams(regex="a")},
            },
            "tool_choice",
        ),
    ],
)
async def test_what_is_wrong_raises_before_the_first_event(served, changes, parameter):
    """As a `BadRequest` that names the field; the engine never hears of it."""
    with pytest.raises(BadRequest) as caught:
        await anext(run_turn(served, turn(**changes)))
    assert served.client.num_active_requests == 0
    assert caught.value.parameter == parameter


async def test_too_long_for_the_context_says_by_how_much(served):
    """Both counts are in the message."""
    with pytest.raises(ContextLengthExceeded, match=r"1024 tokens, but 10[0-9]{2} were"):
        await anext(run_turn(served, turn(params={"max_tokens": 1020})))


async def test_max_tokens_may_fill_what_the_prompt_leaves():
    """None asks for it, and the exact number is not refused."""
    async with serving(ECHO, max_model_len=64) as served:
        ignoring = {"ignore_eos": True, "temperature": 0.0}
        filled = await fold(run_turn(served, turn(params={"max_tokens": None, **ignoring})))
        room = 64 - len(filled.prompt_token_ids)
        exact = await fold(run_turn(served, turn(params={"max_tokens": room, **ignoring})))
    assert len(filled.answers[0].token_ids) == room
    assert exact.answers == filled.answers


async def test_a_conversation_is_looked_through_once_for_all_answers(scripted):
    """What each of 128 answers is read by holds nobody up, however many messages and tools there are."""
    history = [*HELLO, *({"role": "user", "content": "a"} for _ in range(16_000))]
    tools = [Tool(name=f"f{number}") for number in range(128)]
    asked = turn(history, tools=tools, params={"n": 128, "max_tokens": 1})
    whole = await check_pauses(lambda: fold(run_turn(scripted, asked)))
    assert len(whole.answers) == 128
