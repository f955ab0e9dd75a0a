"""Responses over a WebSocket: events in, the events of streamed responses out, in lanes."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.doubles.websocket_client import Client, Refused, connected
from tests.web.http.serving import make_state
from tests.web.http.serving import serving as fake_serving
from tests.web.responses.serving_responses import LONG, SLOW, comparable
from tests.web.serving import ECHO, QWEN, SCRIPT, http_serving, serving
from weft.web.http.connections.socket_sessions import SessionLimits
from weft.web.items.conversation_store import Conversations
from weft.web.response_sockets.responses_session import responses_socket
from weft.web.responses.create import Creation
from weft.web.responses.runs import Runs
from weft.web.responses.store import ResponseLimits

PATH = "/v1/responses"
SMALL = "/small/v1/responses"


def small(**limits):
    """A second endpoint, with these limits."""
    state = make_state()
    creation = Creation(Runs(state, ResponseLimits()), Conversations(state.store))
    return replace(responses_socket(creation, SessionLimits(**limits)), path=SMALL)


@asynccontextmanager
async def session(model: str = ECHO, *, template=None):
    """A session of a model that says its prompt, or what its input says with the template `SCRIPT`."""
    async with (
        serving(model, options=QWEN, template=template) as served,
        http_serving(served) as address,
        connected(address, PATH) as client,
    ):
        yield client


def create(client: Client, text: str, **fields) -> None:
    """Sends a request."""
    client.send({"type": "response.create", "input": text, **fields})


async def answer(client: Client, *given, **fields) -> dict:
    """The response to a request, at its end."""
    create(client, *given, **fields)
    return (await client.until("response.completed"))[-1]["response"]


def text_of(response: dict) -> str:
    """The text of a response."""
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts)


async def until(is_so) -> None:
    """Waits for a state of the server."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if is_so():
                return
            await asyncio.sleep(0.01)


async def refusal(client: Client, event) -> dict:
    """The error event that answers an event."""
    client.send(event)
    found = await client.receive()
    assert found["type"] == "error"
    return found


async def test_a_response_is_that_of_the_same_body_over_http():
    """The events are the same too; none of them names a lane."""
    async with fake_serving() as site, connected(site.url, PATH) as client:
        create(client, "hello there", model="fake-model", max_output_tokens=5)
        events = await client.until("response.incomplete")
        body = {"input": "hello there", "max_output_tokens": 5, "stream": True}
        streamed = (await site.http.post(PATH, json=body)).text
        lines = [line for line in streamed.splitlines() if line.startswith("data: ")]
        kinds = [json.loads(line.removeprefix("data: "))["type"] for line in lines]
        assert [event["type"] for event in events] == kinds
        last = json.loads(lines[-1].removeprefix("data: "))
        assert comparable(events[-1]["response"]) == comparable(last["response"])
        assert not any("stream_id" in event for event in events)


async def test_a_turn_continues_the_stored_response_before_it():
    """Only the new items are sent. The session need not be the same."""
    async with serving(ECHO) as served, http_serving(served) as address:
        async with connected(address, PATH) as client:
            first = await answer(client, "one")
        async with connected(address, PATH) as client:
            second = await answer(client, "two", previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]


async def test_a_response_that_is_not_stored_is_continued_in_its_session_only():
    """Each lane keeps its latest response: an older one is not found, and neither is one of another session."""
    async with session() as client:
        first = await answer(client, "one", store=False)
        second = await answer(client, "two", store=False, previous_response_id=first["id"])
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        event = {"type": "response.create", "input": "three", "previous_response_id": first["id"]}
        error = await refusal(client, event)
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        assert error["error"]["param"] == "previous_response_id"
        third = await answer(client, "four", store=False, previous_response_id=second["id"])
        event |= {"previous_response_id": third["id"], "temperature": 9}
        assert (await refusal(client, event))["error"]["param"] == "temperature"
        error = await refusal(client, {**event, "temperature": 0})  # a failed turn drops its parent
        assert error["error"]["code"] == "previous_response_not_found"


async def test_a_lane_forks_from_the_response_of_another():
    """An error in one lane leaves the response of the other."""
    async with session() as client:
        first = await answer(client, "one", store=False)
        event = {
            "type": "response.create", "input": "a", "stream_id": "side", "store": False,
            "previous_response_id": first["id"],
        }  # fmt: skip
        error = await refusal(client, {**event, "top_p": 7})
        assert (error["stream_id"], error["error"]["param"]) == ("side", "top_p")
        client.send(event)
        events = await client.until("response.completed")
        assert {made["stream_id"] for made in events} == {"side"}
        await answer(client, "b", store=False, previous_response_id=first["id"])


async def test_lanes_answer_side_by_side_and_each_in_order():
    """A request of another lane does not wait; a second one of the same lane does."""
    async with session(SLOW, template=SCRIPT) as client:
        create(client, "word " * 20, stream_id="slow")
        create(client, "again", stream_id="slow")
        await client.until("response.output_text.delta")
        create(client, "quick")
        events = await client.until("response.completed")
        assert "stream_id" not in events[-1]
        assert text_of(events[-1]["response"]) == "quick"
        slow = (await client.until("response.completed"))[-1]["response"]
        assert text_of(slow) == "word " * 20
        events = await client.until("response.completed")
        assert {made["stream_id"] for made in events} == {"slow"}
        assert text_of(events[-1]["response"]) == "again"


async def test_a_warmup_computes_the_prompt_and_shows_no_output():
    """A later turn continues it."""
    async with session() as client:
        first = await answer(client, "say this", generate=False, store=False, max_output_tokens=9)
        assert (first["output"], first["max_output_tokens"]) == ([], 9)
        usage = first["usage"]
        assert (usage["input_tokens"] > 0, usage["output_tokens"]) == (True, 0)
        second = await answer(client, "now", previous_response_id=first["id"])
        assert second["usage"]["input_tokens"] > usage["input_tokens"]


@pytest.mark.parametrize(
    ("event", "parameter"),
    [
        ({"type": "response.cancel"}, "type"),
        ({"type": "response.create", "input": 3}, "input"),
        ({"type": "response.create"}, "input"),
        ({"type": "response.create", "input": "a", "background": True}, "background"),
        ({"type": "response.create", "input": "a", "stream": False}, "stream"),
        ({"type": "response.create", "input": "a", "generate": "x"}, "generate"),
        ({"type": "response.create", "input": "a", "stream_id": "a b"}, "stream_id"),
        ({"type": "response.create", "input": "a", "stream_id": 3}, "stream_id"),
        ({"type": "response.steer", "input": "a"}, "previous_response_id"),
        ({}, "type"),
        ('{"type": "response.create", "input": "a", "input": "b"}', "input"),
        ("[", None),
    ],
)
async def test_an_invalid_event_is_an_error_and_the_session_goes_on(event, parameter):
    """The error names the field, with the status of the same error over HTTP."""
    async with fake_serving() as site, connected(site.url, PATH) as client:
        error = await refusal(client, event)
        assert (error["status"], error["error"]["param"]) == (400, parameter)
        create(client, "a", max_output_tokens=2)
        await client.until("response.incomplete")


async def test_an_unknown_model_and_a_field_that_a_strict_server_does_not_know():
    """404 and 400, as over HTTP."""
    event = {"type": "response.create", "input": "a"}
    async with fake_serving(strict=True) as site, connected(site.url, PATH) as client:
        error = await refusal(client, {**event, "model": "no"})
        assert (error["status"], error["error"]["code"]) == (404, "model_not_found")
        error = await refusal(client, {**event, "colour": "red"})
        assert (error["status"], error["error"]["param"]) == (400, "colour")


async def test_steering_is_refused_with_the_input():
    """The event goes to the lane of the response."""
    async with session(SLOW, template=SCRIPT) as client:
        create(client, LONG, stream_id="a")
        started = (await client.until("response.created"))[-1]["response"]
        event = {"type": "response.steer", "input": "left", "previous_response_id": started["id"]}
        client.send(event)
        failed = (await client.until("response.steer.failed"))[-1]
        assert (failed["error"]["code"], failed["stream_id"]) == ("steering_not_supported", "a")
        assert failed["steer"] == {"previous_response_id": started["id"], "input": "left"}


async def test_values_of_stream_id_and_waiting_requests_are_bounded():
    """The errors name the limits; the lanes that exist answer."""
    limits = {"max_chars": 600}
    async with fake_serving(small(**limits)) as site, connected(site.url, SMALL) as client:
        for number in range(32):
            event = {"type": "response.create", "stream_id": f"lane{number}"}
            assert (await refusal(client, event))["error"]["param"] == "input"
        event = {"type": "response.create", "stream_id": "one.more"}
        error = await refusal(client, event)
        assert error["error"]["code"] == "websocket_stream_limit_reached"
        assert error["stream_id"] == "one.more"
        error = await refusal(client, {"type": "response.create", "input": "a" * 600})
        assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")


async def test_responses_beyond_the_bound_of_a_session_are_not_kept():
    """The one that is asked for is not found."""
    async with fake_serving(small(max_chars=600)) as site, connected(site.url, SMALL) as client:
        create(client, "a", store=False, max_output_tokens=2)
        first = (await client.until("response.incomplete"))[-1]["response"]
        event = {"type": "response.create", "input": "b", "previous_response_id": first["id"]}
        assert (await refusal(client, event))["error"]["code"] == "previous_response_not_found"


async def test_sessions_are_bounded_in_number_and_time():
    """A session that ends for its time says so, and its client connects again."""
    async with fake_serving(small(max_sessions=1, idle_s=0.2), api_keys=("k",)) as site:
        key = {"authorization": "Bearer k"}
        async with connected(site.url, SMALL, headers=key) as client:
            for headers, status in ((key, 429), ({}, 401)):
                with pytest.raises(Refused) as refused:
                    async with connected(site.url, SMALL, headers=headers):
                        pass
                assert refused.value.status == status
            ended = await client.receive()
            assert ended["error"]["code"] == "websocket_connection_limit_reached"
            assert (await client.receive(), client.close_code) == (None, 1000)
        plain = await site.http.get(PATH, headers=key)
        assert (plain.status_code, plain.json()["error"]["code"]) == (400, "upgrade_required")


async def test_a_tenants_responses_count_as_its_requests(tmp_path: Path):
    """Each of them, not the session; the error says when to come again."""
    tenants = [{"name": "t", "keys": ["k"], "requests_per_minute": 1}]
    (tmp_path / "keys").write_text(json.dumps({"tenants": tenants}))
    key = {"authorization": "Bearer k"}
    async with (
        fake_serving(api_key_file=tmp_path / "keys") as site,
        connected(site.url, PATH, headers=key) as client,
    ):
        create(client, "a", max_output_tokens=2)
        await client.until("response.incomplete")
        error = await refusal(client, {"type": "response.create", "input": "a"})
        assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(error["error"]["headers"]["retry-after"]) > 0


async def test_a_client_that_leaves_ends_its_responses():
    """The engine stops working for it, and so do the requests that wait."""
    async with serving(SLOW) as served, http_serving(served) as address:
        async with connected(address, PATH) as client:
            create(client, LONG)
            create(client, LONG)
            await client.until("response.output_text.delta")
        await until(lambda: not served.client.num_active_requests)
