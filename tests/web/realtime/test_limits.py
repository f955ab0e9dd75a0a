"""Who may open a session, and how much one may take."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.doubles.websocket_client import Refused, connected
from tests.web.http.serving import make_state, serving
from weft.web.http.connections.socket_sessions import SessionLimits, SessionSeries
from weft.web.http.connections.sockets import MAX_MESSAGE_BYTES
from weft.web.items.conversation_store import Conversations
from weft.web.realtime import realtime_endpoint
from weft.web.responses.runs import Runs
from weft.web.responses.store import ResponseLimits

SMALL = "/small/v1/realtime"


def small(series=None, **limits):
    """A second endpoint, with these limits."""
    state = make_state()
    runs, conversations = Runs(state, ResponseLimits()), Conversations(state.store)
    made = realtime_endpoint(runs, conversations, SessionLimits(**limits), series=series)
    return replace(made, path=SMALL)


def message(text: str) -> dict:
    """An event that adds a message."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return {"type": "conversation.item.create", "item": item}


async def refusal(url: str, path: str = "/v1/realtime", **given) -> tuple[int, dict]:
    """Status and error of a session that is not opened."""
    with pytest.raises(Refused) as refused:
        async with connected(url, path, **given):
            pass
    return refused.value.status, refused.value.body["error"]


async def test_a_session_needs_a_key_and_a_model_and_text():
    """Until the socket is accepted, errors are those of any other call."""
    async with serving(api_keys=("k",)) as site:
        assert (await refusal(site.url))[0] == 401
        key = {"authorization": "Bearer k"}
        status, error = await refusal(site.url, "/v1/realtime?model=no", headers=key)
        assert (status, error["code"]) == (404, "model_not_found")
        status, error = await refusal(site.url, "/v1/realtime?intent=transcription", headers=key)
        assert (status, error["param"]) == (400, "intent")
        assert (await refusal(site.url, headers={**key, "origin": "http://evil.example"}))[0] == 403
        async with connected(site.url, "/v1/realtime?model=fake-model", headers=key) as client:
            assert (await client.receive())["session"]["model"] == "fake-model"


async def test_a_web_page_sends_its_key_as_a_subprotocol():
    """It cannot set headers; the page has to be of an allowed origin."""
    async with serving(api_keys=("k",), allowed_origins=("http://mine.example",)) as site:
        offered = ["realtime", "openai-insecure-api-key.k"]
        headers = {"origin": "http://mine.example"}
        async with connected(site.url, headers=headers, subprotocols=offered) as client:
            assert client.subprotocol == "realtime"
            assert (await client.receive())["type"] == "session.created"


async def test_the_path_answers_a_plain_request_with_what_it_is():
    """And other paths take no notice of the headers of an upgrade."""
    async with serving() as site:
        plain = await site.http.get("/v1/realtime")
        assert (plain.status_code, plain.json()["error"]["code"]) == (400, "upgrade_required")
        upgrade = {"connection": "Upgrade", "upgrade": "websocket"}
        models = await site.http.get("/v1/models", headers=upgrade)
        assert models.status_code == 200


async def test_a_session_under_a_root_path_and_one_with_an_id_of_the_client():
    """The answer of the handshake has the id."""
    async with (
        serving(root_path="/llm") as site,
        connected(site.url, "/llm/v1/realtime", headers={"x-request-id": "mine"}) as client,
    ):
        assert client.headers[b"x-request-id"] == b"mine"


async def test_messages_of_bytes_and_too_large_ones_end_the_session():
    """With the codes that WebSockets have for them."""
    async with serving() as site:
        for given, code in ((b"{}", 1008), ("x" * (MAX_MESSAGE_BYTES + 1), 1009)):
            async with connected(site.url) as client:
                await client.receive()
                client.send(given)
                assert await client.receive() is None
                assert client.close_code == code


async def test_items_and_their_characters_are_bounded():
    """An error names the limit; room that a deletion makes can be used."""
    async with (
        serving(small(max_items=2, max_chars=400)) as site,
        connected(site.url, SMALL) as client,
    ):
        await client.receive()
        for text in ("a", "b"):
            client.send(message(text))
            last = (await client.until("conversation.item.done"))[-1]
        client.send(message("c"))
        assert "2 items" in (await client.receive())["error"]["message"]
        client.send({"type": "conversation.item.delete", "item_id": last["item"]["id"]})
        await client.receive()
        client.send(message("c" * 500))
        assert "400 characters" in (await client.receive())["error"]["message"]
        client.send(message("c"))
        await client.until("conversation.item.done")


async def test_sessions_are_bounded_in_number_and_time():
    """One too many is told to come again; a silent one is closed."""
    async with serving(small(max_sessions=1, idle_s=0.2)) as site:
        async with connected(site.url, SMALL) as client:
            assert (await refusal(site.url, SMALL))[0] == 429
            await client.receive()
            assert await client.receive() is None
            assert client.close_code == 1000
        async with connected(site.url, SMALL) as client:
            assert (await client.receive())["type"] == "session.created"


async def test_sessions_are_counted():
    """Those that are open now, and by outcome all that there were."""
    registry = CollectorRegistry()
    path = {"path": "/v1/realtime"}

    def counts() -> tuple[float | None, ...]:
        outcomes = [{**path, "outcome": one} for one in ("opened", "refused")]
        ended = [registry.get_sample_value("weft:sessions_total", one) for one in outcomes]
        return registry.get_sample_value("weft:open_sessions", path), *ended

    async with serving(small(SessionSeries(registry), max_sessions=1)) as site:
        assert counts() == (0, 0, 0)
        async with connected(site.url, SMALL) as client:
            await client.receive()
            await refusal(site.url, SMALL)
            assert counts() == (1, 1, 1)
        page = (await site.http.get("/metrics")).text
    assert counts() == (0, 1, 1)
    assert 'weft:open_sessions{path="/v1/responses"} 0.0' in page


async def test_a_server_that_stops_closes_its_sessions():
    """As one that goes away; the client may connect elsewhere."""
    async with serving() as site, connected(site.url) as client:
        await client.receive()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(site.server.stop())
            assert await client.receive() is None
        assert client.close_code == 1001


async def test_a_tenants_responses_count_as_its_requests(tmp_path: Path):
    """Each of them, not the session: the one beyond the limit is an error event."""
    tenants = [{"name": "t", "keys": ["k"], "requests_per_minute": 1}]
    (tmp_path / "keys").write_text(json.dumps({"tenants": tenants}))
    key = {"authorization": "Bearer k"}
    async with (
        serving(api_key_file=tmp_path / "keys") as site,
        connected(site.url, headers=key) as client,
    ):
        await client.receive()
        client.send(message("a"))
        await client.until("conversation.item.done")
        client.send({"type": "response.create"})
        done = (await client.until("response.done"))[-1]
        assert done["response"]["status"] in ("completed", "incomplete")
        client.send({"type": "response.create"})
        error = (await client.until("error"))[-1]["error"]
        assert error["code"] == "rate_limit_exceeded"
