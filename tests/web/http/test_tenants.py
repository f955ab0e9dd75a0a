"""What sets the tenants of one server apart, over HTTP."""

import json
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx2
import msgspec
import pytest

from tests.busy import PATIENCE_S
from tests.web.serving import http_serving, serving
from weft.core.values.types import LoRARequest

PROMPT = list(range(100, 164))
TENANTS = [
    {"name": "a", "keys": ["key-a", "key-a2"]},
    {"name": "b", "keys": ["key-b"], "requests_per_minute": 2},
    {"name": "c", "keys": ["key-c"], "tokens_per_minute": 70},
    {"name": "d", "keys": ["key-d"], "priority": 7, "adapters": ["one"]},
]


class WithAdapters:
    """A client that has two adapters, and notes what is prepared."""

    def __init__(self, client):
        self.client = client
        self.lora_requests = {
            name: LoRARequest(lora_name=name, lora_int_id=number, lora_path="/x")
            for number, name in enumerate(("one", "two"), start=1)
        }
        self.prepared = []

    def __getattr__(self, name):
        return getattr(self.client, name)

    async def prepare(self, prompt, params, options):
        self.prepared.append(options)
        bare = msgspec.structs.replace(options, lora_request=None, priority=0)
        return await self.client.prepare(prompt, params, bare)


@asynccontextmanager
async def connected(tmp_path, **options):
    """A client of a server with these tenants, and the engine behind it."""
    (tmp_path / "keys").write_text(json.dumps({"tenants": TENANTS}))
    options = {"api_keys": ("plain",), "api_key_file": tmp_path / "keys", **options}
    async with serving(scheduling_policy="priority") as served:
        engine = WithAdapters(served.client)
        async with (
            http_serving(replace(served, client=engine), **options) as base,
            httpx2.AsyncClient(base_url=base, timeout=PATIENCE_S) as one,
        ):
            yield one, engine


async def post(client, key, path="/v1/completions", **body):
    """The answer to a prompt of four blocks."""
    body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **body}
    return await client.post(path, json=body, headers={"authorization": f"Bearer {key}"})


async def cached(client, key, **body):
    """How much of the prompt was cached; None where that is not said."""
    answer = await post(client, key, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_each_tenant_has_a_cache_of_its_own(tmp_path):
    """All keys of a tenant share it; other tenants, and each key of --api-key, find nothing there."""
    async with connected(tmp_path, salt_by_key=True) as (client, _):
        assert await cached(client, "key-a") == 0
        assert await cached(client, "key-a2") > 0
        assert await cached(client, "key-d") == 0
        assert await cached(client, "plain") == 0
        assert await cached(client, "plain") > 0
        assert await cached(client, "key-a", cache_salt="x") == 0
        assert await cached(client, "key-a2", cache_salt="x") > 0


async def test_without_the_flag_the_cache_is_shared(tmp_path):
    """As without tenants."""
    async with connected(tmp_path) as (client, _):
        assert await cached(client, "key-a") == 0
        assert await cached(client, "plain") > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_cached_tokens_are_hidden(tmp_path, stream):
    """In every answer, of every key, whole or streamed."""
    async with connected(tmp_path, hide_cached_tokens=True) as (client, _):
        for key in ("plain", "plain", "key-a"):
            assert await cached(client, key) == 0
        body = {"model": None, "stream": stream, "stream_options": {"include_usage": True}}
        if not stream:
            body = {}
        answer = await post(client, "plain", **body)
        assert '"cached_tokens":0' in answer.text


async def test_requests_beyond_the_limit_are_refused_until_there_is_room(tmp_path):
    """429 with the time to wait; other keys go on, and reading a list is no request."""
    async with connected(tmp_path) as (client, _):
        for _ in range(2):
            assert (await post(client, "key-b")).status_code == 200
        refused = await post(client, "key-b")
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert (await post(client, "key-a")).status_code == 200
        headers = {"x-api-key": "key-b"}
        assert (await client.get("/v1/models", headers=headers)).status_code == 200
        answer = await client.post("/v1/messages", json={}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_prompts_and_answers_count(tmp_path, stream):
    """64 and 4 leave two of 70; with those of the next request the limit is overdrawn."""
    async with connected(tmp_path) as (client, _):
        assert (await post(client, "key-c", stream=stream)).status_code == 200
        assert (await post(client, "key-c", stream=stream)).status_code == 200
        refused = await post(client, "key-c")
        assert refused.status_code == 429
        assert "70 tokens a minute" in refused.text
        # 66 are missing: 136 were used, and one must be left.
        assert 50 <= int(refused.headers["retry-after"]) <= 58


async def test_a_tenant_has_its_priority_and_adapters(tmp_path):
    """Whatever the request says; adapters of others are neither listed nor found."""
    async with connected(tmp_path) as (client, engine):
        assert (await post(client, "key-d", model="one", priority=-3)).status_code == 200
        assert (await post(client, "key-a", model="two", priority=-3)).status_code == 200
        assert [options.priority for options in engine.prepared] == [7, -3]
        assert [options.lora_request.lora_name for options in engine.prepared] == ["one", "two"]
        refused = await post(client, "key-d", model="two")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        listed = await client.get("/v1/models", headers={"authorization": "Bearer key-d"})
        assert {"one", "two"} & {model["id"] for model in listed.json()["data"]} == {"one"}


async def test_keys_of_the_file_open_the_server_and_no_others(tmp_path):
    """They are API keys, and not control keys."""
    async with connected(tmp_path, control_api_keys=("control",)) as (client, _):
        assert (await post(client, "wrong")).status_code == 401
        answer = await client.post("/pause", headers={"authorization": "Bearer key-a"})
        assert answer.status_code == 401
