"""Prompts that one server computes and another continues, as routers speak with both."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.transfers import WITH_SECRET
from tests.web.serving import http_serving, serving
from weft.core.values.kv_transfer import Prefill
from weft.core.values.types import RequestOptions, SamplingParams
from weft.web.inference.prefiller import HttpPrefiller
from weft.web.options import ApiOptions

PROMPT = [*range(5, 105)]
LEND = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def config(role: str) -> dict:
    return {"kv_connector": "NixlConnector", "kv_role": role, **WITH_SECRET}


@asynccontextmanager
async def both():
    """A client of each: who computes prompts, and who continues them."""
    async with (
        serving(kv_transfer_config=config("kv_producer")) as producer,
        serving(kv_transfer_config=config("kv_consumer")) as consumer,
        http_serving(producer) as first,
        http_serving(consumer) as second,
        httpx2.AsyncClient(base_url=first, timeout=PATIENCE_S) as prefill,
        httpx2.AsyncClient(base_url=second, timeout=PATIENCE_S) as decode,
    ):
        yield prefill, decode


CHAT = {"messages": [{"role": "user", "content": "a word " * 20}]}
BODIES = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 6},
    "/v1/chat/completions": {**CHAT, "max_tokens": 6},
    "/inference/v1/generate": {"token_ids": PROMPT, "sampling_params": {"max_tokens": 6}},
}


def once(body: dict) -> dict:
    """The body as a router sends it to who computes the prompt."""
    if "sampling_params" in body:
        return {**body, "sampling_params": {"max_tokens": 1}, "kv_transfer_params": LEND}
    return {**body, "max_tokens": 1, "kv_transfer_params": LEND}


def with_greed(body: dict) -> dict:
    inner = body.get("sampling_params")
    greed = {"temperature": 0, "seed": 1}
    return {**body, "sampling_params": {**inner, **greed}} if inner else {**body, **greed}


@pytest.mark.parametrize("path", BODIES)
async def test_what_one_server_answers_goes_unchanged_to_the_other(path):
    """And the answer is that of a server that computes all itself."""
    body = with_greed(BODIES[path])
    async with both() as (prefill, decode):
        found = (await prefill.post(path, json=once(body))).json()["kv_transfer_params"]
        answer = (await decode.post(path, json={**body, "kv_transfer_params": found})).json()
        alone = (await prefill.post(path, json=body)).json()
    assert found["do_remote_prefill"]
    assert found["remote_block_ids"][0]
    assert answer["choices"] == alone["choices"]
    assert answer["kv_transfer_params"] is None
    assert alone["kv_transfer_params"] is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_role kv_consumer"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "needs remote_engine_id"),
        ({"kv_transfer_params": {**LEND, "do_chunked_transfer": True}}, "/inference/v1/generate"),
        ({"kv_transfer_params": {"x": 1}}, "unknown field `x`"),
        (
            {"kv_transfer_params": LEND, "prompt": [PROMPT, PROMPT]},
            "only supported for a single prompt",
        ),
        ({"kv_transfer_params": LEND, "use_beam_search": True}, "use_beam_search"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_its_field(change, text):
    """With 400, and before an engine knows of it."""
    async with both() as (_, decode):
        answer = await decode.post("/v1/completions", json={**BODIES["/v1/completions"], **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "kv_transfer_params"
    assert text in answer.json()["error"]["message"]


@asynccontextmanager
async def routed():
    """The address of who computes prompts, a few blocks a step, and a client of one that is told so by each request."""
    shown = ApiOptions(enable_prompt_tokens_details=True)
    async with (
        serving(kv_transfer_config=config("kv_producer"), max_num_batched_tokens=32) as producer,
        serving(kv_transfer_config=config("kv_consumer"), options=shown) as consumer,
        http_serving(producer) as first,
    ):
        prefiller = HttpPrefiller(consumer.client.vllm_config.kv_transfer_config.networks, 16)
        async with (
            http_serving(replace(consumer, prefiller=prefiller)) as second,
            httpx2.AsyncClient(base_url=second, timeout=PATIENCE_S) as decode,
        ):
            yield first.removeprefix("http://"), decode


def num_cached(answer: dict) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_server_has_the_prompt_computed_where_the_picker_says(path):
    """With no other process between: as in the header, and the answer is the same."""
    body = with_greed(BODIES[path])
    async with routed() as (address, decode):
        answer = (await decode.post(path, json=body, headers={HEADER: address})).json()
        alone = (await decode.post(f"http://{address}{path}", json=body)).json()
    assert answer["choices"] == alone["choices"]
    assert num_cached(answer) >= 32


async def test_a_stream_says_where_its_prompt_is_while_that_is_computed():
    """In its first event, and again in the last: one and the same, where the reader is late."""
    lend = {"do_remote_decode": True, "do_chunked_transfer": True}
    body = {**once(BODIES["/inference/v1/generate"]), "kv_transfer_params": lend, "stream": True}
    async with (
        routed() as (address, decode),
        decode.stream("POST", f"http://{address}/inference/v1/generate", json=body) as answer,
    ):
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: {")]
    first, *_, last = (json.loads(line.removeprefix("data: ")) for line in [lines[0], *lines])
    assert last["choices"][0]["finish_reason"] == "length"
    assert first["kv_transfer_params"] == last["kv_transfer_params"]
    assert len(first["kv_transfer_params"]["remote_block_ids"][0]) == len(PROMPT) // 16


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_routers_that_carry_no_params_get_right_answers(path):
    """As vLLM's round-robin and XpYd proxies send a request: once for one token, then as it came, with one label."""
    body = with_greed(BODIES[path])
    label = "___prefill_addr_127.0.0.1:21001___decode_addr_127.0.0.1:22001_0123456789abcdef"
    headers = {"x-request-id": label, "authorization": "Bearer x"}
    async with both() as (prefill, decode):
        first = await prefill.post(path, json={**body, "max_tokens": 1}, headers=headers)
        answer = await decode.post(path, json=body, headers=headers)
        alone = await prefill.post(path, json=body)
    assert (first.status_code, answer.status_code) == (200, 200)
    assert answer.json()["choices"] == alone.json()["choices"]


HEADER = "x-prefiller-host-port"


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "10.0.0.1:80", "localhost:80", "127.0.0.1", "127.0.0.1:1/x", "x", ""]
)
async def test_a_prefiller_that_is_none_costs_nothing_but_time(address):
    """Or that a client made up: the prompt is computed here."""
    path = "/v1/completions"
    async with routed() as (_, decode):
        answer = await decode.post(path, json=BODIES[path], headers={HEADER: address})
    assert answer.status_code == 200
    assert num_cached(answer.json()) == 0


async def test_a_prefiller_that_never_ends_is_left():
    """However much it sends meanwhile."""

    is_left = asyncio.Event()

    async def drip(_reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        is_left.set()

    async with (
        serving(kv_transfer_config=config("kv_consumer")) as consumer,
        await asyncio.start_server(drip, "127.0.0.1", 0) as server,
        asyncio.timeout(PATIENCE_S),
    ):
        options = RequestOptions(request_id="r")
        request = await consumer.client.prepare(
            {"prompt_token_ids": PROMPT}, SamplingParams(), options
        )
        transfer = consumer.client.vllm_config.kv_transfer_config
        port = server.sockets[0].getsockname()[1]
        slow = HttpPrefiller(transfer.networks, 16, timeout_s=0.2)
        assert await slow.compute(request, Prefill(address=f"127.0.0.1:{port}")) is request
        await is_left.wait()


async def test_a_key_that_is_no_text_fails_no_request():
    """It cannot be sent on, and where no keys are configured nobody has looked at it."""
    path = "/v1/completions"
    async with routed() as (address, decode):
        headers = {HEADER: address, "authorization": b"Bearer \xe9"}
        answer = await decode.post(path, json=BODIES[path], headers=headers)
    assert answer.status_code == 200
