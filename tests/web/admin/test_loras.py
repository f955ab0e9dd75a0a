"""Adapters over HTTP: loaded, asked for by name, listed and forgotten."""

import json
from contextlib import asynccontextmanager

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.model.adapters import write_adapter
from tests.web.serving import RANDOM, http_serving, serving
from weft.model.open import open_model
from weft.web.options import ApiOptions

SPEC = open_model(RANDOM).spec
CONTROL = {"authorization": "Bearer control"}
UPDATING = ApiOptions(allow_runtime_lora_updating=True)
TEMPLATE = "{{ messages[0]['content'] }}"


@asynccontextmanager
async def http(options=UPDATING, **settings):
    """A client of a server with adapters."""
    settings = {"enable_lora": True, "served_model_name": ["base"], **settings}
    async with (
        serving(RANDOM, options=options, template=TEMPLATE, **settings) as served,
        http_serving(served, control_api_keys=("control",)) as base,
        httpx2.AsyncClient(base_url=base, timeout=PATIENCE_S) as client,
    ):
        yield client


async def load(client, name, path, **fields):
    """Ask for an adapter to be loaded."""
    body = {"lora_name": name, "lora_path": str(path), **fields}
    return await client.post("/v1/load_lora_adapter", json=body, headers=CONTROL)


async def unload(client, name):
    """Ask for one to be forgotten."""
    return await client.post("/v1/unload_lora_adapter", json={"lora_name": name}, headers=CONTROL)


async def ask(client, path, model, **body):
    """What a model of that name answers."""
    common = {"model": model, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    answer = await client.post(path, json={**common, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_adapter_is_loaded_listed_asked_and_forgotten(tmp_path):
    """Its name is a model's, in requests, in answers and in the list, until it is unloaded."""
    path = write_adapter(tmp_path / "a", SPEC)
    async with http() as client:
        answer = await load(client, "sql", path)
        assert (answer.status_code, answer.text) == (
            200,
            "Success: LoRA adapter 'sql' added successfully.",
        )
        cards = (await client.get("/v1/models")).json()["data"]
        assert [(c["id"], c["root"], c["parent"]) for c in cards] == [
            ("base", RANDOM, None),
            ("sql", str(path), "base"),
        ]
        assert (await client.get("/v1/models/sql")).json()["parent"] == "base"
        plain = await ask(client, "/v1/completions", "base", prompt="hello")
        other = await ask(client, "/v1/completions", "sql", prompt="hello")
        assert (plain["model"], other["model"]) == ("base", "sql")
        assert plain["choices"][0]["text"] != other["choices"][0]["text"]
        assert (await unload(client, "sql")).text.endswith("removed successfully.")
        gone = await client.post("/v1/completions", json={"model": "sql", "prompt": "hello"})
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
        assert (await unload(client, "sql")).status_code == 404


async def test_every_api_reaches_an_adapter_by_its_name(tmp_path):
    """Chat, messages, tokens in and out, streamed or not: the same adapter, and its name in the answer."""
    path = write_adapter(tmp_path / "a", SPEC)
    async with http() as client:
        await load(client, "sql", path)
        text = (await ask(client, "/v1/completions", "sql", prompt="hello"))["choices"][0]["text"]
        messages = [{"role": "user", "content": "hello"}]
        chat = await ask(client, "/v1/chat/completions", "sql", messages=messages)
        assert (chat["model"], chat["choices"][0]["message"]["content"]) == ("sql", text)
        anthropic = await client.post(
            "/v1/messages",
            json={"model": "sql", "max_tokens": 6, "temperature": 0, "messages": messages},
        )
        assert anthropic.json()["model"] == "sql"
        assert text.startswith(anthropic.json()["content"][0]["text"])
        ids = (await client.post("/tokenize", json={"model": "sql", "prompt": "hello"})).json()
        params = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
        tokens = {"model": "sql", "token_ids": ids["tokens"], "sampling_params": params}
        answer = (await client.post("/inference/v1/generate", json=tokens)).json()
        assert answer["model"] == "sql"
        base = (
            await client.post("/inference/v1/generate", json={**tokens, "model": "base"})
        ).json()
        assert answer["choices"][0]["token_ids"] != base["choices"][0]["token_ids"]
        streamed = await client.post(
            "/v1/completions",
            json={"model": "sql", "prompt": "hello", "stream": True, "max_tokens": 2},
        )
        events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
        assert {json.loads(event)["model"] for event in events} == {"sql"}


async def test_an_adapter_is_loaded_again_only_where_that_is_asked_for(tmp_path):
    """A name that is taken is refused, unless `load_inplace` says that it is to be."""
    path = write_adapter(tmp_path / "a", SPEC)
    async with http() as client:
        await load(client, "sql", path)
        first = await ask(client, "/v1/completions", "sql", prompt="hello")
        again = await load(client, "sql", path)
        assert (again.status_code, again.json()["error"]["param"]) == (400, "lora_name")
        assert "already been loaded" in again.text
        other = write_adapter(tmp_path / "b", SPEC, seed=9)
        assert (await load(client, "sql", other, load_inplace=True)).status_code == 200
        second = await ask(client, "/v1/completions", "sql", prompt="hello")
        assert first["choices"][0]["text"] != second["choices"][0]["text"]
        assert (await client.get("/v1/models/sql")).json()["root"] == str(other)


async def test_what_cannot_be_loaded_is_refused_and_named(tmp_path):
    """404 where nothing is there, 400 for the rest; and nothing is listed for it."""
    high = write_adapter(tmp_path / "h", SPEC, rank=17)
    async with http() as client:
        for answer, status, message in (
            (await load(client, "m", tmp_path / "missing"), 404, "No adapter found"),
            (await load(client, "h", high), 400, "--max-lora-rank is 16"),
            (await load(client, "r", "relative/path"), 400, "lora_path must begin with /"),
            (await load(client, "base", high), 400, "is a name of the served model"),
            (await load(client, "x", high, other=1), 400, "other"),
            (
                await client.post(
                    "/v1/load_lora_adapter", json={"lora_name": "x"}, headers=CONTROL
                ),
                400,
                "lora_path",
            ),
            (
                await client.post("/v1/unload_lora_adapter", json={}, headers=CONTROL),
                400,
                "lora_name",
            ),
        ):
            assert answer.status_code == status, answer.text
            assert message in answer.json()["error"]["message"]
        assert len((await client.get("/v1/models")).json()["data"]) == 1


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
async def test_loading_takes_a_control_key_and_a_flag(tmp_path, path):
    """The server reads files for whoever may call it, so neither is enough alone."""
    body = {"lora_name": "a"} | ({"lora_path": str(tmp_path)} if "/load" in path else {})
    async with http() as client:
        assert (await client.post(path, json=body)).status_code == 401
    async with http(options=ApiOptions()) as client:
        answer = await client.post(path, json=body, headers=CONTROL)
        assert answer.status_code == 403
        assert "--allow-runtime-lora-updating" in answer.text
