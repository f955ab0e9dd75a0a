"""The events of a response: their exact sequence, and that they add up to the answer in one piece."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.responses.serving_responses import (
    CALL,
    REASONING,
    Handlers,
    comparable,
    flat_tool,
)
from tests.web.serving import ECHO, QWEN, SCRIPT, serving

SHAPES = st.fixed_dictionaries(
    {
        "max_output_tokens": st.integers(1, 24),
        "tool_choice": st.sampled_from(["none", "required", {"type": "function", "name": "f"}]),
    },
    optional={
        "temperature": st.sampled_from([0, 0.5, 1]),
        "parallel_tool_calls": st.booleans(),
        "instructions": st.just("Be brief."),
        "reasoning": st.sampled_from([{"effort": "none"}, {"effort": "high"}]),
        "metadata": st.just({"a": "b"}),
    },
)
EXTRA = st.fixed_dictionaries(
    {},
    optional={
        "stop": st.sampled_from(["e", ["a", "b"]]),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "min_tokens": st.just(1),
    },
)
LOGPROBS = st.sampled_from(
    [
        {},
        {"include": ["message.output_text.logprobs"]},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
    ]
)


def accumulated(events) -> dict[int, tuple]:
    """What the deltas of the client's stream add up to, by the item's place."""
    items: dict[int, list] = {}
    for event in events:
        match event.type:
            case "response.output_item.added":
                items[event.output_index] = [event.item.id, event.item.type, "", []]
            case "response.output_text.delta":
                assert event.content_index == 0
                items[event.output_index][3] += [token.logprob for token in event.logprobs]
                items[event.output_index][2] += event.delta
                assert event.snapshot == items[event.output_index][2]
            case "response.function_call_arguments.delta":
                items[event.output_index][2] += event.delta
                assert event.snapshot == items[event.output_index][2]
            case "response.reasoning_text.delta":
                items[event.output_index][2] += event.delta
    return {index: tuple(item) for index, item in items.items()}


def contents(response) -> dict[int, tuple]:
    """The same of a whole response."""
    found = {}
    for index, item in enumerate(response.output):
        text = item.arguments if item.type == "function_call" else item.content[0].text
        rows = (item.content[0].logprobs or []) if item.type == "message" else []
        found[index] = (item.id, item.type, text, [token.logprob for token in rows])
    return found


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shape=SHAPES, extra=EXTRA, logprobs=LOGPROBS)
def test_the_clients_stream_adds_up_to_the_answer(shape, extra, logprobs, client):
    """Whatever is requested: the deltas make the last event's response, and that is the answer."""
    request = {"model": "", "input": "hello", "tools": [flat_tool()], "temperature": 1.0}
    request |= {"model": client.models.list().data[0].id, **shape, **logprobs}
    body = {"extra_body": {"seed": 7, **extra}}
    whole = client.responses.create(**request, **body)
    with client.responses.stream(**request, **body) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert accumulated(events) == contents(last)
    assert comparable(last.to_dict()) == comparable(whole.to_dict())


async def test_the_sequence_of_a_stream(scripted):
    """Reasoning, text and a call: each item is added, grows and is done at its own place, under its own id."""
    request = {"input": f"{REASONING}Sure.{CALL}", "tools": [flat_tool()]}
    events = await Handlers(scripted).stream(**request)
    kinds = [event["type"].removeprefix("response.") for event in events]
    firsts = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]
    assert firsts == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    inner = [event for event in events if "response" not in event]
    ids = {(e["output_index"], e.get("item_id") or e["item"]["id"]) for e in inner}
    assert sorted(index for index, _ in ids) == [0, 1, 2]
    assert [item_id.partition("_")[0] for _, item_id in sorted(ids)] == ["rs", "msg", "fc"]
    assert {event.get("content_index", 0) for event in inner} == {0}


async def test_whole_items(scripted):
    """Each as published, in the order in which they came; the call's id is its own."""
    request = {"input": f"{REASONING}Sure.{CALL}", "tools": [flat_tool()]}
    whole = await Handlers(scripted).create(**request)
    reasoning, message, call = whole["output"]
    assert reasoning.pop("id").startswith("rs_")
    assert reasoning == {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "encrypted_content": None,
        "status": "completed",
    }
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Sure.", "annotations": [], "logprobs": []}],
    }
    assert call.pop("id").startswith("fc_")
    assert call.pop("call_id").startswith("call_")
    assert call == {
        "type": "function_call",
        "name": "f",
        "arguments": '{"unit": "c", "days": 3}',
        "status": "completed",
    }
    assert whole["status"] == "completed"
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": len(REASONING)}


async def test_log_probabilities_are_of_the_message_alone(scripted):
    """Not of reasoning before it; as many as its tokens, in deltas as in the whole."""
    request = {"input": f"{REASONING}Hi", "include": ["message.output_text.logprobs"]}
    handlers = Handlers(scripted)
    whole = await handlers.create(**request, top_logprobs=2)
    events = await handlers.stream(**request, top_logprobs=2)
    rows = whole["output"][1]["content"][0]["logprobs"]
    assert [row["token"] for row in rows[:2]] == ["H", "i"]
    assert all(len(row["top_logprobs"]) == 2 and row["bytes"] is not None for row in rows)
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    streamed = [row for event in deltas for row in event["logprobs"]]
    assert [row["token"] for row in streamed] == [row["token"] for row in rows]
    assert all(row.keys() == {"token", "logprob", "top_logprobs"} for row in streamed)


async def test_a_cut_answer_is_incomplete():
    """Its last item too, and the reason is given; what came before is whole."""
    async with serving(ECHO, options=QWEN, template=SCRIPT, enable_prefix_caching=False) as served:
        handlers = Handlers(served)
        tool = flat_tool()
        cut = len(REASONING) + 40
        whole = await handlers.create(
            input=f"{REASONING}{CALL}", tools=[tool], max_output_tokens=cut
        )
        events = await handlers.stream(
            input=f"{REASONING}{CALL}", tools=[tool], max_output_tokens=cut
        )
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["completed_at"] is None
    assert [item["status"] for item in whole["output"]] == ["completed", "incomplete"]
    assert events[-1]["type"] == "response.incomplete"
    assert comparable(events[-1]["response"]) == comparable(whole)


async def test_an_answer_of_nothing_is_an_empty_message(scripted):
    """Clients read the first message without asking whether there is one."""
    whole = await Handlers(scripted).create(input="ab", stop="a")
    (message,) = whole["output"]
    assert message["content"][0]["text"] == ""
    assert whole["status"] == "completed"


async def test_parallel_calls_have_their_own_ids(scripted):
    """Outputs are given back by these."""
    request = {"input": CALL + CALL, "tools": [flat_tool()]}
    handlers = Handlers(scripted)
    both = await handlers.create(**request)
    one = await handlers.create(**request, parallel_tool_calls=False)
    assert len({call["call_id"] for call in both["output"]}) == 2
    assert len(one["output"]) == 1
