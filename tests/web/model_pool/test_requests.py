"""Requests to a server with several models, over every API: each has its model for as long as its answer takes."""

import asyncio
import json

import pytest

from tests.web.model_pool.conftest import CONTROL, ThreadSource, pool_of, until
from tests.web.serving import ECHO, SCRIPT
from weft.core.errors import ConfigError

HELLO = [{"role": "user", "content": "hello"}]
BODIES = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 8},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/api/chat": {"messages": HELLO, "stream": False},
    "/api/generate": {"prompt": "hello", "stream": False},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [72]},
    "/invocations": {"prompt": "hello"},
    "/inference/v1/generate": {"token_ids": [72], "sampling_params": {"max_tokens": 2}},
}


@pytest.mark.parametrize("path", BODIES)
async def test_the_model_of_a_body_is_loaded_and_answers(several, path):
    """Each API that names a model takes it from the pool."""
    answer = await several.http.post(path, json={"model": "two", **BODIES[path]})
    assert answer.status_code == 200, answer.text
    assert [name for name, one in several.sources.items() if one.num_starts] == ["two"]
    assert several.pool.find("two").num_users == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "sun"}),
        ("/api/embed", {"input": "sun"}),
        ("/pooling", {"input": "sun", "task": "embed"}),
        ("/invocations", {"input": "sun"}),
    ],
)
async def test_models_that_embed_stand_beside_models_that_chat(several, path, body):
    """The model decides what a request may ask for."""
    answer = await several.http.post(path, json={"model": "embed", **body})
    assert answer.status_code == 200, answer.text
    refused = await several.http.post("/v1/embeddings", json={"model": "one", "input": "sun"})
    assert refused.status_code == 400


async def test_a_request_without_a_model_has_the_first(several):
    """The default is the first model, and an unknown one is not found."""
    answer = await several.http.post("/v1/completions", json={"prompt": "hi"})
    assert answer.json()["model"] == "one"
    missing = await several.http.post("/v1/completions", json={"prompt": "hi", "model": "none"})
    assert missing.status_code == 404
    assert "this server has one, two, embed" in missing.json()["error"]["message"]


async def test_a_stream_holds_its_model_until_it_ends(several):
    """The model is not stopped between the pieces of a stream, and is free after it."""
    body = {"model": "one", "messages": HELLO, "stream": True}
    async with several.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert several.pool.find("one").num_users == 0


async def test_a_stream_tells_of_the_progress_in_comments(several):
    """The comments come before the first event; the stream is whole."""
    source = several.sources["one"]
    source.gate.clear()
    body = {"model": "one", "messages": HELLO, "stream": True}
    comments, events = [], []
    async with several.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith(":"):
                comments.append(line)
                source.gate.set()
            elif line:
                events.append(line)
    assert comments[0].startswith(": one: ")
    assert events[-1] == "data: [DONE]"
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "hello"


async def test_a_stream_whose_model_fails_late_ends_with_the_error(several):
    """A stream that has begun with comments ends with an error event, and never looks complete."""
    source = several.sources["one"]
    source.gate.clear()
    source.late_error = ConfigError("the weights are damaged")
    body = {"model": "one", "prompt": "hi", "stream": True}
    lines = []
    async with several.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            lines += [line] if line else []
            source.gate.set()
    assert lines[0].startswith(":")
    assert "the model one did not start: the weights are damaged" in lines[-1]


async def test_a_model_that_does_not_start_fails_its_requests_by_name(several):
    """The status is 500, in the words of each API; other models answer."""
    several.sources["one"].error = ConfigError("config.json is damaged")
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
        answer = await several.http.post(path, json={"model": "one", **BODIES[path]})
        assert answer.status_code == 500
        assert "the model one did not start: config.json is damaged" in answer.text
    fine = await several.http.post("/v1/completions", json={"model": "two", "prompt": "hi"})
    assert fine.status_code == 200
    cards = (await several.http.get("/v1/models")).json()["data"]
    assert (cards[0]["state"], cards[0]["error"]) == (
        "failed",
        "the model one did not start: config.json is damaged",
    )


async def test_a_wait_past_the_bound_is_503_with_a_time_to_retry():
    """The model goes on loading, and a later request has it."""
    source = ThreadSource("one", ECHO, template=SCRIPT)
    source.gate.clear()
    async with pool_of([source], wait_s=0.05) as site:
        body = {"model": "one", "prompt": "hi"}
        refused = await site.http.post("/v1/completions", json=body)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "is not ready after 0.05 s" in refused.json()["error"]["message"]
        source.gate.set()
        await until(lambda: site.pool.find("one").served)
        assert (await site.http.post("/v1/completions", json=body)).status_code == 200
        assert source.num_starts == 1


async def test_a_client_that_goes_away_while_its_model_loads_is_no_user(several):
    """The count of users is right after a disconnect."""
    source = several.sources["one"]
    source.gate.clear()
    asked = asyncio.create_task(
        several.http.post("/v1/completions", json={"model": "one", "prompt": "hi"})
    )
    await until(lambda: source.num_starts)
    asked.cancel()
    await until(lambda: not several.pool.find("one").waiters)
    source.gate.set()
    await until(lambda: several.pool.find("one").served)
    assert several.pool.find("one").num_users == 0


async def test_a_response_in_the_background_keeps_its_model(several):
    """The model is a user's until the response has ended, though its exchange ended long before."""
    body = {"model": "one", "input": "hello", "background": True}
    made = (await several.http.post("/v1/responses", json=body)).json()
    while made["status"] in ("queued", "in_progress"):
        made = (await several.http.get(f"/v1/responses/{made['id']}")).json()
    assert made["status"] == "completed"
    await until(lambda: not several.pool.find("one").num_users)
    await several.pool.unload(several.pool.find("one"))
    again = await several.http.get(f"/v1/responses/{made['id']}")
    assert again.json()["output"] == made["output"], "stored responses need no model"


async def test_models_are_listed_with_their_states(several):
    """/v1/models, Ollama's lists, /health and the series report which model is in memory."""
    await several.http.post("/v1/completions", json={"model": "two", "prompt": "hi"})
    await several.pool.examine_all()
    listed = (await several.http.get("/v1/models")).json()
    assert {card["id"]: card["state"] for card in listed["data"]} == {
        "one": "unloaded",
        "two": "ready",
        "embed": "unloaded",
    }
    assert (listed["used_bytes"], listed["memory_bytes"]) == (1, 2)
    assert all(card["max_model_len"] == 1024 for card in listed["data"])
    one = (await several.http.get("/v1/models/one")).json()
    assert one == listed["data"][0]
    tags = (await several.http.get("/api/tags")).json()["models"]
    assert [model["name"] for model in tags] == ["one", "two", "embed"]
    running = (await several.http.get("/api/ps")).json()["models"]
    assert [model["name"] for model in running] == ["two"]
    assert (await several.http.get("/health")).json()["models"]["ready"] == 1
    series = (await several.http.get("/metrics")).text
    assert 'weft:model_state{model_name="two",state="ready"} 1.0' in series
    assert 'weft:model_loads_total{model_name="one"} 0.0' in series


async def test_facts_of_a_model_load_nothing(several):
    """Programs that ask /api/show for every model do not make the server load every model."""
    shown = (await several.http.post("/api/show", json={"model": "embed"})).json()
    assert shown["capabilities"] == ["embedding"]
    assert [one.num_starts for one in several.sources.values()] == [0, 0, 0]


async def test_operators_load_and_unload(several):
    """Both need a control key, and answer with the model's card."""
    without = await several.http.post("/v1/models/load", json={"model": "two"})
    assert without.status_code == 401
    loaded = await several.http.post("/v1/models/load", json={"model": "two"}, headers=CONTROL)
    assert (loaded.json()["id"], loaded.json()["state"]) == ("two", "ready")
    gone = await several.http.post("/v1/models/unload", json={"model": "two"}, headers=CONTROL)
    assert gone.json()["state"] == "unloaded"
    unknown = await several.http.post("/v1/models/load", json={"model": "x"}, headers=CONTROL)
    assert unknown.status_code == 404


async def test_keep_alive_of_ollama_decides_how_long_a_model_stays(several):
    """0 after an answer unloads the model; 0 without a prompt unloads it without loading it first."""
    body = {"model": "one", **BODIES["/api/chat"], "keep_alive": 0}
    assert (await several.http.post("/api/chat", json=body)).status_code == 200
    await until(lambda: several.pool.find("one").shown_state == "unloaded")
    answer = await several.http.post("/api/generate", json={"model": "one", "keep_alive": "0s"})
    assert answer.json()["done_reason"] == "unload"
    assert several.sources["one"].num_starts == 1
    loaded = await several.http.post("/api/generate", json={"model": "one", "keep_alive": "10m"})
    assert loaded.json()["done_reason"] == "load"
    (running,) = (await several.http.get("/api/ps")).json()["models"]
    assert running["expires_at"] > "2020"


async def test_calls_about_an_engine_name_its_model_in_the_query(several):
    """Without a name they are about the first model; none loads a model."""
    absent = await several.http.get("/load?model=two")
    assert absent.status_code == 409
    assert "the model two is not in memory" in absent.json()["error"]["message"]
    await several.http.post("/v1/completions", json={"model": "two", "prompt": "hi"})
    assert (await several.http.get("/load?model=two")).status_code == 200
    assert (await several.http.get("/load")).status_code == 409
    paused = await several.http.post("/pause?model=two&mode=keep", headers=CONTROL)
    assert paused.json() == {"status": "paused"}
    assert (await several.http.get("/version")).status_code == 200
    assert (await several.http.get("/openapi.json")).status_code == 200


async def test_a_third_model_takes_the_place_of_the_one_used_longest_ago(several):
    """Two fit: the third request stops the first model, and its own is answered."""
    for name in ("one", "two"):
        await several.http.post("/v1/completions", json={"model": name, "prompt": "hi"})
    await several.http.post("/v1/embeddings", json={"model": "embed", "input": "sun"})
    states = {entry.name: entry.shown_state for entry in several.pool.entries}
    assert states == {"one": "unloaded", "two": "ready", "embed": "ready"}
