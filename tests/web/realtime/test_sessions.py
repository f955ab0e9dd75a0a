"""Realtime sessions over a real server: events in, events out, and nothing that a client could let grow."""

import json
from contextlib import asynccontextmanager

from tests.doubles.websocket_client import Client, connected
from tests.web.responses.serving_responses import CALL, REASONING, flat_tool
from tests.web.serving import ECHO, QWEN, SCRIPT, http_serving, serving

SLOW = ECHO + "?itl_ms=20"


@asynccontextmanager
async def session(model: str = ECHO, path: str = "/v1/realtime", **settings):
    """A session of a model that says what its input says."""
    settings = {"options": QWEN, "template": SCRIPT, **settings}
    async with (
        serving(model, **settings) as served,
        http_serving(served) as address,
        connected(address, path) as client,
    ):
        created = await client.receive()
        assert created is not None
        assert created["type"] == "session.created"
        yield client


def says(text: str, role: str = "user", kind: str = "input_text") -> dict:
    """An event that adds a message."""
    item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
    return {"type": "conversation.item.create", "item": item}


async def respond(client: Client, **fields) -> list[dict]:
    """The events of one response."""
    client.send({"type": "response.create", "response": fields})
    return await client.until("response.done")


def text_of(done: dict) -> str:
    """The text of a response."""
    (message,) = done["response"]["output"]
    return "".join(part["text"] for part in message["content"])


async def test_a_turn_is_answered_in_order():
    """Item, response, deltas that add up, usage; the answer becomes an item of the conversation."""
    async with session() as client:
        client.send(says("hello there"))
        added, kept = await client.receive(), await client.receive()
        assert (added["type"], kept["type"]) == (
            "conversation.item.added", "conversation.item.done",
        )  # fmt: skip
        assert added["item"]["status"] == "completed"
        events = await respond(client)
        kinds = [event["type"] for event in events if "delta" not in event]
        assert kinds == [
            "response.created", "response.output_item.added", "conversation.item.added",
            "response.content_part.added", "response.output_text.done",
            "response.content_part.done", "response.output_item.done", "conversation.item.done",
            "response.done",
        ]  # fmt: skip
        done = events[-1]
        deltas = [event["delta"] for event in events if "delta" in event]
        assert "".join(deltas) == text_of(done) == "hello there"
        response = done["response"]
        assert (response["status"], response["object"]) == ("completed", "realtime.response")
        assert response["usage"]["output_tokens"] > 0
        assert (
            response["usage"]["input_tokens"] + response["usage"]["output_tokens"]
            == (response["usage"]["total_tokens"])
        )
        item_id = response["output"][0]["id"]
        client.send({"type": "conversation.item.retrieve", "item_id": item_id})
        found = await client.receive()
        assert found["item"]["content"] == [{"type": "output_text", "text": "hello there"}]


async def test_calls_are_written_as_events_and_reasoning_is_not():
    """Arguments in pieces, with the id that the result names; the result is in the next prompt."""
    async with session() as client:
        client.send(
            {"type": "session.update", "session": {"type": "realtime", "tools": [flat_tool()]}}
        )
        updated = await client.receive()
        assert updated["session"]["tools"] == [flat_tool()]
        client.send(says(REASONING + CALL))
        await client.until("conversation.item.done")
        events = await respond(client)
        (call,) = events[-1]["response"]["output"]
        assert (call["type"], call["name"]) == ("function_call", "f")
        assert json.loads(call["arguments"]) == {"unit": "c", "days": 3}
        pieces = [
            event for event in events if event["type"] == "response.function_call_arguments.delta"
        ]
        assert "".join(event["delta"] for event in pieces) == call["arguments"]
        assert {(event["call_id"], event["output_index"]) for event in pieces} == {
            (call["call_id"], 0)
        }
        (whole,) = [
            event for event in events if event["type"] == "response.function_call_arguments.done"
        ]
        assert (whole["name"], whole["arguments"]) == ("f", call["arguments"])
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
        client.send({"type": "conversation.item.create", "item": output})
        await client.until("conversation.item.done")
        events = await respond(client)
        assert events[-1]["response"]["status"] == "completed"


async def test_a_response_is_cancelled_and_another_follows():
    """What it said stays in the conversation; a second response at the same time is an error."""
    async with session(SLOW) as client:
        client.send(says("word " * 60))
        await client.until("conversation.item.done")
        client.send({"type": "response.create"})
        await client.until("response.output_text.delta")
        client.send({"type": "response.create", "event_id": "second"})
        error = (await client.until("error"))[-1]["error"]
        assert error["code"] == "conversation_already_has_active_response"
        assert error["event_id"] == "second"
        client.send({"type": "response.cancel"})
        done = (await client.until("response.done"))[-1]["response"]
        assert done["status"] == "cancelled"
        assert done["status_details"]["reason"] == "client_cancelled"
        assert 0 < len(text_of({"response": done})) < 300
        client.send({"type": "response.cancel"})
        error = (await client.until("error"))[-1]["error"]
        assert error["code"] == "response_cancel_not_active"
        events = await respond(client, input=[says("again")["item"]], conversation="none")
        assert text_of(events[-1]) == "again"
        assert events[-1]["response"]["conversation_id"] is None
        assert not any(event["type"].startswith("conversation.") for event in events)


async def test_settings_hold_for_the_session_and_those_of_a_response_for_it_alone():
    """A limit of tokens makes a response incomplete."""
    async with session() as client:
        client.send(says("one two three four five"))
        await client.until("conversation.item.done")
        events = await respond(client, max_output_tokens=2, metadata={"a": "b"})
        done = events[-1]["response"]
        assert (done["status"], done["max_output_tokens"]) == ("incomplete", 2)
        assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert done["metadata"] == {"a": "b"}
        client.send({"type": "session.update", "session": {"max_output_tokens": 3}})
        updated = await client.receive()
        assert updated["session"]["max_output_tokens"] == 3
        assert (await respond(client))[-1]["response"]["status"] == "incomplete"


async def test_items_are_placed_and_deleted():
    """By the id of the item before; "root" is the beginning."""
    async with session() as client:
        for item_id, before in (("b", None), ("a", "root"), ("c", "b")):
            event = says(item_id)
            event["item"]["id"] = item_id
            client.send({**event, "previous_item_id": before})
            added = (await client.until("conversation.item.done"))[-1]
            assert added["item"]["id"] == item_id
        assert added["previous_item_id"] == "b"
        client.send({"type": "conversation.item.delete", "item_id": "a"})
        assert (await client.receive())["item_id"] == "a"
        client.send({"type": "conversation.item.retrieve", "item_id": "a"})
        assert (await client.receive())["error"]["param"] == "item_id"


BAD = [
    ("{", None),
    ("[]", None),
    ({"event_id": "x"}, "type"),
    ({"type": "nothing"}, "type"),
    ({"type": "input_audio_buffer.append", "audio": ""}, "type"),
    ({"type": "session.update"}, "session"),
    ({"type": "session.update", "session": {"type": "transcription"}}, "session.type"),
    ({"type": "session.update", "session": {"model": "other"}}, "session.model"),
    ({"type": "session.update", "session": {"audio": {"output": {}}}}, "session.audio.output"),
    ({"type": "session.update", "session": {"output_modalities": ["audio"]}},
     "session.output_modalities"),
    ({"type": "session.update", "session": {"max_output_tokens": 0}}, "session.max_output_tokens"),
    ({"type": "session.update", "session": {"max_output_tokens": "many"}},
     "session.max_output_tokens"),
    ({"type": "session.update", "session": {"truncation": {"type": "x"}}}, "session.truncation"),
    ({"type": "session.update", "session": {"prompt": {"id": "p"}}}, "session.prompt"),
    ({"type": "session.update", "session": {"tools": [{"type": "mcp"}]}}, "session.tools[0]"),
    ({"type": "conversation.item.create", "item": {"type": "x"}}, "item.type"),
    ({"type": "conversation.item.create", "item": {"type": "message"}}, "item"),
    ({"type": "conversation.item.create", "item": {
        "type": "message", "role": "user", "content": [{"type": "input_audio", "audio": ""}],
    }}, "item.content"),
    ({"type": "conversation.item.create", "item": {
        "type": "message", "role": "user", "content": [{"type": "input_text", "text": 5}],
    }}, "item"),
    ({**says("a"), "previous_item_id": "no"}, "item_id"),
    ({"type": "conversation.item.delete", "item_id": "no"}, "item_id"),
    ({"type": "response.create", "response": {"conversation": "other"}}, "response.conversation"),
    ({"type": "response.create", "response": {"input": [{"type": "x"}]}}, "item.type"),
    ({"type": "response.create"}, "input"),  # an empty conversation
    ({"type": "response.cancel"}, "response_id"),
]  # fmt: skip


async def test_bad_events_are_answered_by_errors_that_name_the_field():
    """And the session goes on: each error repeats the event's id."""
    async with session() as client:
        for event, parameter in BAD:
            given = {**event, "event_id": "mine"} if isinstance(event, dict) else event
            client.send(given)
            answer = await client.receive()
            assert answer["type"] == "error", (event, answer)
            assert answer["error"]["param"] == parameter, (event, answer)
            assert answer["error"]["message"]
            if isinstance(event, dict) and "type" in event and "event_id" not in event:
                assert answer["error"]["event_id"] == "mine", answer
        client.send(says("still here"))
        await client.until("conversation.item.done")
        assert text_of((await respond(client))[-1]) == "still here"
