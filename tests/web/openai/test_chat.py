"""/v1/chat/completions: the exact stream, and that the answer in one piece is its fold."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.busy import PATIENCE_S
from tests.doubles.loop_probe import check_pauses
from tests.web.openai.calls import (
    CHAT,
    HELLO,
    chat,
    chat_chunks,
    flat_chat,
    folded_chat,
    make_call,
)
from tests.web.serving import ECHO, SCRIPT, is_compact, serving, weather_tool
from weft.web.http.exchange import Exchange
from weft.web.http.sse import write_events
from weft.web.openai.chat import create_chat_completion
from weft.web.options import ApiOptions

SEEDED = {"seed": 7, "temperature": 1.0, "max_tokens": 12}


SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 24),
        "stop": st.sampled_from(["e", ["a", "b"]]),
        "include_stop_str_in_output": st.booleans(),
        "return_token_ids": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
        "echo": st.booleans(),
        "temperature": st.sampled_from([0, 0.5, 1]),
        "min_tokens": st.just(1),
        "skip_special_tokens": st.booleans(),
        "parallel_tool_calls": st.booleans(),
        "tool_choice": st.sampled_from(
            ["none", "required", {"type": "function", "function": {"name": "f"}}]
        ),
    },
)
LOGPROBS = st.sampled_from([{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3}])
USAGE = st.sampled_from(
    [
        {},
        {"include_usage": True},
        {"include_usage": True, "continuous_usage_stats": True},
    ]
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shape=SHAPES, logprobs=LOGPROBS, usage=USAGE)
def test_a_stream_says_what_the_answer_says(shape, logprobs, usage, running):
    """Whatever is asked for: the same text, calls, ids, log-probabilities, reasons and counts."""
    served, wait = running
    body = {**SEEDED, **logprobs, "tools": [weather_tool("f")], "tool_choice": "none", **shape}
    whole = wait(chat(served, body))
    stream = wait(chat_chunks(served, {**body, "stream_options": usage}))
    assert folded_chat(stream) == flat_chat(whole)
    totals = [chunk["usage"] for chunk in stream if not chunk["choices"]]
    assert totals == ([whole["usage"]] if usage else [])


async def test_the_sequence_of_a_stream(echoing):
    """Roles first, one final chunk an answer with its last delta, then usage; nulls only where published."""
    stream = await chat_chunks(echoing, max_tokens=2, n=2, stream_options={"include_usage": True})
    head = {key: stream[0][key] for key in ("id", "object", "created", "model")}
    assert head["id"] == "chatcmpl-r1"
    assert head["object"] == "chat.completion.chunk"
    assert all({key: chunk[key] for key in head} == head for chunk in stream)
    assert stream[:2] == [
        {
            **head,
            "choices": [
                {
                    "index": index,
                    "delta": {"role": "assistant", "content": ""},
                    "logprobs": None,
                    "finish_reason": None,
                }
            ],
            "prompt_token_ids": None,
        }
        for index in (0, 1)
    ]
    last = stream[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert all("usage" not in chunk for chunk in stream[:-1])
    ends = [c for chunk in stream[2:-1] for c in chunk["choices"] if c["finish_reason"]]
    assert [end["stop_reason"] for end in ends] == [None, None]
    assert all(end["delta"]["content"] for end in ends)
    assert not any("reasoning" in c["delta"] for chunk in stream[:-1] for c in chunk["choices"])


async def test_the_whole_answer(echoing):
    """Every key that clients of this API and of engines that extend it look for, and no other."""
    whole = await chat(echoing, max_tokens=3)
    (choice,) = whole.pop("choices")
    message = choice.pop("message")
    created = whole.pop("created")
    assert isinstance(created, int)
    assert whole == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "model": "embedded:echo",
        "usage": {
            "prompt_tokens": whole["usage"]["prompt_tokens"],
            "completion_tokens": 3,
            "total_tokens": whole["usage"]["prompt_tokens"] + 3,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "service_tier": None,
        "system_fingerprint": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "kv_transfer_params": None,
    }
    assert choice == {
        "index": 0,
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": None,
    }
    assert message == {
        "role": "assistant",
        "content": message["content"],
        "refusal": None,
        "reasoning": None,
        "reasoning_content": None,
        "tool_calls": [],
    }
    assert message["content"]


async def test_running_usage_counts_each_answer_by_itself(echoing):
    """From zero, with the prompt counted in full."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await chat_chunks(echoing, max_tokens=3, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in stream]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == 3


async def test_the_server_can_force_usage():
    """Without a word from the client."""
    options = ApiOptions(enable_force_include_usage=True)
    async with serving(ECHO, options=options) as served:
        stream = await chat_chunks(served, max_tokens=1)
    assert stream[-1]["usage"]["completion_tokens"] == 1


async def test_cached_tokens_are_told():
    """Also that there are none; the server can keep them to itself."""
    long = [{"role": "user", "content": "hello " * 40}]
    async with serving(ECHO) as served:
        cold = await chat(served, messages=long, max_tokens=1)
        warm = await chat(served, messages=long, max_tokens=1)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    async with serving(ECHO, options=ApiOptions(enable_prompt_tokens_details=False)) as served:
        await chat(served, messages=long, max_tokens=1)
        silent = await chat(served, messages=long, max_tokens=1)
    assert "prompt_tokens_details" not in silent["usage"]


async def test_logprobs_of_chat(tiny):
    """Token, its bytes, and as many others as asked for, the likeliest first."""
    whole = await chat(tiny, max_tokens=4, logprobs=True, top_logprobs=2, temperature=0)
    bare = await chat(tiny, max_tokens=4, logprobs=True, temperature=0)
    for token in whole["choices"][0]["logprobs"]["content"]:
        assert bytes(token["bytes"]).decode() == token["token"]
        assert token["top_logprobs"][0]["token"] == token["token"]
        assert len(token["top_logprobs"]) == 2
        assert -9999 <= token["top_logprobs"][1]["logprob"] <= token["logprob"] <= 0
    assert all(not t["top_logprobs"] for t in bare["choices"][0]["logprobs"]["content"])


async def test_prompt_logprobs_cover_the_prompt(served):
    """Null for the first token, an entry by token id for each other."""
    whole = await chat(served, max_tokens=1, prompt_logprobs=1, return_token_ids=True)
    rows = whole["prompt_logprobs"]
    assert rows[0] is None
    assert len(rows) == len(whole["prompt_token_ids"])
    for token_id, row in zip(whole["prompt_token_ids"][1:], rows[1:], strict=True):
        assert row[str(token_id)]["rank"] >= 1


async def test_the_last_message_is_echoed_and_continued(echoing):
    """Its text stands before what follows it, in both forms."""
    body = {
        "messages": [*HELLO, {"role": "assistant", "content": "Sure: "}],
        "echo": True,
        "continue_final_message": True,
        "max_tokens": 2,
    }
    whole = await chat(echoing, body)
    stream = await chat_chunks(echoing, body)
    assert whole["choices"][0]["message"]["content"].startswith("Sure: ")
    assert stream[1]["choices"][0]["delta"] == {"content": "Sure: "}


async def test_a_json_schema_is_followed_compactly(served):
    """References resolve; no whitespace stands between the parts."""
    schema = {
        "type": "object",
        "properties": {"unit": {"$ref": "#/$defs/Unit"}},
        "required": ["unit"],
        "additionalProperties": False,
        "$defs": {"Unit": {"enum": ["c", "f"]}},
    }
    asked = {"type": "json_schema", "json_schema": {"name": "u", "schema": schema, "strict": True}}
    whole = await chat(served, response_format=asked, max_tokens=40)
    content = whole["choices"][0]["message"]["content"]
    assert json.loads(content)["unit"] in {"c", "f"}
    assert is_compact(content)


async def test_a_response_format_is_not_about_calls(served):
    """Both may be asked for: an answer that has to be a call has no content to form."""
    whole = await chat(
        served,
        tools=[weather_tool()],
        tool_choice="required",
        parallel_tool_calls=False,
        response_format={"type": "json_object"},
        max_tokens=100,
    )
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == ""
    (call,) = choice["message"]["tool_calls"]
    assert call["id"].startswith("chatcmpl-tool-")
    assert is_compact(call["function"]["arguments"])


async def test_the_model_is_named_as_it_was_asked_for():
    """Any served name will do, and none is the first."""
    names = ["one", "two"]
    async with serving(ECHO, served_model_name=names) as served:
        asked = await chat(served, model="two", max_tokens=1)
        unasked = await chat(served, max_tokens=1)
    assert (asked["model"], unasked["model"]) == ("two", "one")


async def test_an_empty_list_of_tools_is_no_tools(echoing):
    """Whatever is to be done with them."""
    whole = await chat(echoing, tools=[], tool_choice="required", max_tokens=1)
    assert whole["choices"][0]["finish_reason"] == "length"


THOUGHT = "<think>Hm.</think>"
CALL = '<tool_call>\n{"name": "f", "arguments": {"unit": "c", "days": 3}}\n</tool_call>'


def says(text: str) -> dict:
    """A body whose answer is `text`."""
    return {
        "messages": [{"role": "user", "content": text}],
        "tools": [weather_tool("f")],
        "max_tokens": 300,
        "stream_options": {"include_usage": True},
    }


async def test_reasoning_and_calls_stream_as_they_are_answered(scripted):
    """Under both names of reasoning, in pieces that add up; the counts are the same."""
    stream = await chat_chunks(scripted, says(f"{THOUGHT}\n\nSure.{CALL}{CALL}"), n=2)
    body = says(f"{THOUGHT}\n\nSure.{CALL}{CALL}")
    del body["stream_options"]
    whole = await chat(scripted, body, n=2)
    for choice in whole["choices"]:
        message = choice["message"]
        assert message["reasoning"] == message["reasoning_content"] == "Hm."
        assert message["content"] == "Sure."
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["f", "f"]
        assert choice["finish_reason"] == "tool_calls"
    assert folded_chat(stream) == flat_chat(whole)
    details = whole["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": 2 * len(THOUGHT)}
    assert stream[-1]["usage"]["completion_tokens_details"] == details


async def test_a_call_streams_its_header_once_and_then_arguments(scripted):
    """Index, id, type and name together; from then on index and arguments alone."""
    stream = await chat_chunks(scripted, says(CALL))
    news = [
        call
        for chunk in stream
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", [])
    ]
    header, *rest = news
    assert (header["index"], header["type"], header["function"]["name"]) == (0, "function", "f")
    assert header["id"].startswith("chatcmpl-tool-")
    assert rest
    assert all(call.keys() == {"index", "function"} for call in rest)
    assert all(call["function"].keys() == {"arguments"} for call in rest)


async def test_a_call_without_content_has_null_content(scripted):
    """As published; no tool calls are an empty list."""
    body = says(CALL)
    del body["stream_options"]
    whole = await chat(scripted, body)
    assert whole["choices"][0]["message"]["content"] is None


async def test_reasoning_is_left_out_of_both_forms(scripted):
    """Streamed or not: include_reasoning false means none."""
    stream = await chat_chunks(scripted, says(f"{THOUGHT}Hi"), include_reasoning=False)
    deltas = [choice["delta"] for chunk in stream for choice in chunk["choices"]]
    assert not any("reasoning" in delta or "reasoning_content" in delta for delta in deltas)
    assert "".join(delta.get("content", "") for delta in deltas) == "Hi"


async def test_log_probabilities_of_held_back_text_come_with_the_next_chunk(scripted):
    """None is lost where a mark is waited for: as many as tokens."""
    stream = await chat_chunks(scripted, says(f"{THOUGHT}Hi"), logprobs=True)
    told = [
        row
        for chunk in stream
        for c in chunk["choices"]
        if c["logprobs"]
        for row in c["logprobs"]["content"]
    ]
    assert len(told) == stream[-1]["usage"]["completion_tokens"]


async def send_all(served) -> None:
    """A stream whose chunks begin with a prompt of a long context, to a client that keeps up."""
    message = {"role": "user", "content": "x" * 2**16}
    body = {"messages": [message], "n": 128, "max_tokens": 1, "return_token_ids": True}
    call = make_call(served, CHAT, {**body, "stream": True})
    exchange = Exchange({"method": "POST", "path": CHAT, "headers": []}, drop, PATIENCE_S)
    await write_events(exchange, await create_chat_completion.handler(call), PATIENCE_S)
    assert exchange.num_bytes_out > 128 * 2**16


async def drop(_message) -> None:
    """Send nothing, which takes no time."""


async def test_the_prompts_ids_are_sent_answer_by_answer():
    """All 128 in one turn of the event loop would take a tenth of a second."""
    length = 2**16 + 64
    room = {"max_model_len": length, "num_gpu_blocks_override": 2**13}
    async with serving(f"{ECHO}?max_len={length}", template=SCRIPT, **room) as served:
        await check_pauses(lambda: send_all(served))
