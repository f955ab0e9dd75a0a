"""/v1/messages against real engines: answers, streams, counts, and what is refused."""

import json
from dataclasses import replace

import pytest

from tests.web.anthropic.calls import HELLO, count, create, stream, weather_tool
from tests.web.serving import ECHO, QWEN, RANDOM, SCRIPT, TINY, serving
from weft.core.errors import BadRequest, ContextLengthExceeded, NotFound
from weft.web.anthropic.writer import SIGNATURE
from weft.web.options import ApiOptions

THOUGHT = "<think>Hm.</think>"
CALL = '<tool_call>\n{"name": "f", "arguments": {"unit": "c"}}\n</tool_call>'
TOOLS = [weather_tool("f")]


def says(text, **fields):
    """A body whose answer is `text`, where the template is `SCRIPT`."""
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 300, **fields}


def texts_of(events, kind):
    """The pieces of one kind of delta, by block."""
    pieces = {}
    for event in events:
        delta = event.get("delta", {})
        if delta.get("type") == kind:
            value = next(value for key, value in delta.items() if key != "type")
            pieces[event["index"]] = pieces.get(event["index"], "") + value
    return pieces


async def test_reasoning_text_and_calls_are_blocks_in_order(scripted):
    """In one piece: signed reasoning, text, and calls with their input as an object."""
    made = await create(scripted, **says(f"{THOUGHT}\n\nSure.{CALL}\n{CALL}", tools=TOOLS))
    reasoning, said, *calls = made["content"]
    assert reasoning == {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}
    assert said == {"type": "text", "text": "Sure."}
    assert [(call["type"], call["name"], call["input"]) for call in calls] == [
        ("tool_use", "f", {"unit": "c"})
    ] * 2
    assert all(call["id"].startswith("toolu_") for call in calls)
    assert (made["type"], made["role"], made["stop_reason"]) == ("message", "assistant", "tool_use")
    assert made["id"] == "msg_r1"
    assert made["usage"]["output_tokens_details"] == {"thinking_tokens": len(THOUGHT)}


async def test_a_stream_tells_the_same():
    """The same blocks, reasons and counts; ids of calls are drawn."""
    async with serving(ECHO, options=QWEN, template=SCRIPT, enable_prefix_caching=False) as served:
        body = says(f"{THOUGHT}\n\nSure.{CALL}\n{CALL}", tools=TOOLS)
        whole = await create(served, **body)
        events = await stream(served, **body)
    assert texts_of(events, "thinking_delta") == {0: "Hm."}
    assert texts_of(events, "text_delta") == {1: "Sure."}
    inputs = texts_of(events, "input_json_delta")
    assert [json.loads(text) for text in inputs.values()] == [{"unit": "c"}] * 2
    assert list(inputs) == [2, 3]
    assert events[-2]["usage"] == whole["usage"]
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert events[-1] == {"type": "message_stop"}


async def test_reasoning_can_be_left_out(scripted):
    """Their place stays; the text is the same."""
    body = says(f"{THOUGHT}Hi", thinking={"type": "adaptive", "display": "omitted"})
    made = await create(scripted, **body)
    assert [block.get("thinking", block.get("text")) for block in made["content"]] == ["", "Hi"]


@pytest.mark.parametrize(
    ("thinking", "is_open"),
    [
        (None, False),
        ({"type": "enabled", "budget_tokens": 2}, True),
        ({"type": "adaptive"}, True),
        ({"type": "disabled"}, False),
    ],
)
async def test_the_template_is_told_whether_to_think(tiny, thinking, is_open):
    """The small model's prompt closes its reasoning unless it is requested; the count shows it."""
    plain = await count(tiny)
    number = await count(tiny, thinking=thinking)
    assert (number < plain) == is_open


async def test_reasoning_ends_when_its_budget_is_spent():
    """The model goes on with its answer, whatever it had still in mind."""
    options = ApiOptions(reasoning_parser="qwen3")
    thinking = {"type": "enabled", "budget_tokens": 3}
    async with serving(TINY, options=options, max_model_len=2048) as served:
        made = await create(served, thinking=thinking, max_tokens=60)
    reasoning, said = made["content"]
    assert (reasoning["type"], said["type"]) == ("thinking", "text")
    assert 0 < made["usage"]["output_tokens_details"]["thinking_tokens"] < 20


async def test_a_budget_is_taken_where_no_reasoning_is_found(templated):
    """Nothing is there for it to bound."""
    body = says("Hi", thinking={"type": "enabled", "budget_tokens": 3})
    assert (await create(templated, **body))["content"] == [{"type": "text", "text": "Hi"}]


async def test_effort_reaches_the_template():
    """In the three levels that templates know."""
    template = "{{ reasoning_effort }}"
    async with serving(ECHO, template=template) as served:
        made = [
            (await create(served, output_config={"effort": effort}))["content"][0]["text"]
            for effort in ("low", "high", "max")
        ]
    assert made == ["low", "high", "high"]


async def test_stop_sequences_are_reported(templated):
    """The one that was found, which is not part of the text."""
    made = await create(templated, **says("one, two", stop_sequences=["x", ", "]))
    assert made["content"][0]["text"] == "one"
    assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", ", ")


async def test_other_ends_have_their_words(templated):
    """The end of a turn, and of the tokens."""
    ended = await create(templated, **says("one"))
    cut = await create(templated, **says("one", max_tokens=1))
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 1)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "f"}])
async def test_a_call_that_has_to_be_made_is_made(choice):
    """Without a parser, whatever the model; input follows the schema."""
    async with serving(RANDOM) as served:
        request = {"tools": TOOLS, "max_tokens": 200, "top_k": 50}
        made = await create(
            served, **request, tool_choice={**choice, "disable_parallel_tool_use": True}
        )
    (call,) = made["content"]
    assert (call["type"], call["name"]) == ("tool_use", "f")
    assert call["input"]["unit"] in {"c", "f"}
    assert made["stop_reason"] == "tool_use"


async def test_a_call_that_is_cut_off_is_as_much_as_there_is():
    """Its input stays an object."""
    async with serving(RANDOM) as served:
        choice = {"type": "tool", "name": "f"}
        made = await create(served, tools=TOOLS, tool_choice=choice, max_tokens=4)
    assert made["content"][0]["input"] == {}
    assert made["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("name", ["output_config", "output_format"])
async def test_an_answer_follows_its_schema(name):
    """By the newer name and the older one."""
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}
    request = {name: form if name == "output_format" else {"format": form}}
    async with serving(RANDOM) as served:
        made = await create(served, max_tokens=100, **request)
    assert json.loads(made["content"][0]["text"])["a"] in {1, 2}


async def test_the_last_message_of_an_assistant_is_continued(tiny):
    """The answer holds what is new."""
    said = [*HELLO, {"role": "assistant", "content": "Sure: "}]
    open_end = await count(tiny, messages=said)
    closed = await count(tiny, messages=[*said, *HELLO])
    made = await create(tiny, messages=said)
    assert open_end < closed
    assert not made["content"][0]["text"].startswith("Sure")


async def test_cached_tokens_are_counted_apart():
    """Of the same prompt, the second time; both parts together are the prompt."""
    text = "Tell me something. " * 8
    async with serving(ECHO, block_size=16) as served:
        body = says(text, max_tokens=1)
        total = await count(served, messages=body["messages"])
        first, second = [(await create(served, **body))["usage"] for _ in range(2)]
        start = (await stream(served, **body))[0]["message"]["usage"]
    assert (first["input_tokens"], first["cache_read_input_tokens"]) == (total, 0)
    assert second["cache_read_input_tokens"] > 0
    assert second["input_tokens"] + second["cache_read_input_tokens"] == total
    assert start["cache_read_input_tokens"] == second["cache_read_input_tokens"]


async def test_a_count_is_that_of_the_prompt(tiny):
    """System prompt and tools included, whether or not a parser is there, and beyond the context."""
    fields = {"system": "Be brief.", "tools": TOOLS, "tool_choice": {"type": "none"}}
    counted = await count(tiny, **fields)
    made = await create(tiny, **fields, max_tokens=1)
    assert counted == made["usage"]["input_tokens"] + made["usage"]["cache_read_input_tokens"]
    assert await count(tiny) < counted == await count(tiny, **{**fields, "tool_choice": None})
    assert await count(tiny, messages=[{"role": "user", "content": "a b " * 3000}]) > 1024


ROWS = [
    ("messages", {"messages": []}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -1}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 9}),
    ("top_p", {"top_p": 0}),
    ("top_k", {"top_k": -2}),
    ("stop_sequences", {"stop_sequences": [""]}),
    ("stop_sequences", {"stop_sequences": ["a"] * 10_000}),
    ("thinking", {"thinking": {"type": "between_tools"}}),
    ("thinking", {"thinking": {"type": "enabled"}}),
    ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 0}}),
    ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 8}}),
    ("thinking", {"thinking": {"type": "adaptive", "budget_tokens": 4}}),
    ("thinking", {"thinking": {"type": "disabled", "display": "omitted"}}),
    ("tools", {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
    ("tools", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("tools", {"tools": [{"type": "computer_20251124", "name": "computer"}]}),
    ("tools", {"tools": [{"name": "f"}]}),
    ("tools", {"tools": [{"input_schema": {}}]}),
    (
        "tools",
        {
            "tools": [weather_tool(), weather_tool(description="x")],
            "tool_choice": {"type": "any"},
        },
    ),
    ("tools", {"tools": [weather_tool("a b")]}),
    ("tools", {"tools": [weather_tool(input_schema={"type": "string"})]}),
    ("tool_choice", {"tools": TOOLS}),  # "auto", and no parser
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "sometimes"}}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "tool"}}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "any", "name": "f"}}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("output_config.format", {"output_config": {"format": {"type": "json_schema"}}}),
    (
        "output_config.format",
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": 1}}}},
    ),
    ("output_format", {"output_format": {"type": "json_object"}}),
    (
        "output_format",
        {
            "output_format": {"type": "json_schema", "schema": {}},
            "output_config": {"format": {"type": "json_schema", "schema": {}}},
        },
    ),
]


async def test_bad_parameters_are_refused_by_name(echoing):
    """Every row, streamed and not, in the words of this API; nothing is left in the engine."""
    for parameter, fields in ROWS:
        for send in (create, stream):
            with pytest.raises(BadRequest) as caught:
                await send(echoing, **fields)
            assert caught.value.parameter == parameter, (fields, str(caught.value))
            assert parameter in str(caught.value), fields
            assert len(str(caught.value)) < 500
    assert echoing.client.num_active_requests == 0


async def test_a_version_that_is_not_spoken_is_refused(echoing):
    """Its events have other names; betas mean nothing by themselves."""
    assert await create(echoing, headers={"anthropic-beta": "x,y"})
    assert await create(echoing, headers={"anthropic-version": "2023-06-01"})
    assert await create(echoing, headers={"anthropic-version": "2026-10-21"})
    with pytest.raises(BadRequest, match="2023-06-01"):
        await create(echoing, headers={"anthropic-version": "2023-01-01"})


async def test_strangers_and_long_prompts():
    """An unknown model, and an answer for which there is no room."""
    async with serving(ECHO, max_model_len=64) as served:
        with pytest.raises(NotFound):
            await create(served, model="x")
        with pytest.raises(NotFound):
            await count(served, model="x")
        with pytest.raises(ContextLengthExceeded):
            await create(served, max_tokens=64)


async def test_a_model_without_a_template_holds_no_conversations(echoing):
    """Neither answers nor counts."""
    bare = replace(echoing, chat_template=None)
    for send in (create, stream, count):
        with pytest.raises(BadRequest, match="template"):
            await send(bare)
