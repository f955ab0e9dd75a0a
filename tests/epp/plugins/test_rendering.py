"""`token-producer` with `vllm.url`: the tokens of a server that has the template, or estimates without it."""

import asyncio
import gzip
import json
import logging
from contextlib import asynccontextmanager

import pytest

from tests.epp.pools import bench, pool_of
from tests.web.serving import ECHO, SCRIPT, http_serving, serving
from weft.core.errors import ConfigError
from weft.core.values.prompts import pack_tokens
from weft.epp.build import open_picker
from weft.epp.config.decode import decode
from weft.epp.config.options import PickerOptions
from weft.epp.plugins.producers.tokens import TokenParameters
from weft.epp.prefix.events import Stored
from weft.epp.request.parsers.parser import Call
from weft.epp.request.parsers.table import ParserTable
from weft.epp.server.body_reader import BodyReader

CONFIG = """\
plugins:
- {type: token-producer, parameters: {modelName: m, vllm: {url: "%s", timeout: 5s, mmTimeout: 5s}}}
- {type: precise-prefix-cache-producer, name: p, parameters: {tokenProcessorConfig: {blockSize: 4}}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: p}}
"""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello there, how do you do?"}]}
IDS = [1, 2, 3, 4, 5, 6, 7, 8, 9]


async def read(path: str, body: bytes, headers: dict[str, str]):
    """A request as it comes from the wire."""
    reader, parser = BodyReader(), ParserTable(("openai-parser",)).find(path)
    call = Call(path=path, headers=headers, request_id="r", is_grpc=False)
    half = len(body) // 2
    return await reader.read(parser, call, [body[:half], body[half:]])


@asynccontextmanager
async def renderer(answer: bytes = json.dumps({"token_ids": IDS}).encode(), status: int = 200):
    """A server with one answer, and the requests it got: path, headers, body."""
    got = []

    async def answer_one(incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        head = (await incoming.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await incoming.readexactly(int(headers["content-length"]))
        got.append((head[0].split(" ")[1], headers, json.loads(body)))
        outgoing.write(
            b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(answer)) + answer
        )
        await outgoing.drain()
        outgoing.close()

    server = await asyncio.start_server(answer_one, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", got
    finally:
        server.close()


async def route(url: str, path: str, body: dict, *, model: str | None = None, **headers: str):
    """The record of a decision, made with the first of two endpoints holding the first block of `IDS`."""
    made = bench(CONFIG % url, pool_of(2))
    first = next(iter(made.pool))
    event = Stored(hashes=[1], parent=None, tokens=pack_tokens(IDS[:4]), block_size=4)
    made.assembly.plugins["p"].index.apply(first, event, model=model or body["model"])
    raw = json.dumps(body).encode()
    if headers.get("content-encoding") == "gzip":
        raw = gzip.compress(raw)
    if model is not None:
        headers["x-llm-d-model-name-rewrite"] = model
    await made.director.pick(await read(path, raw, headers), None)
    await made.assembly.plugins["token-producer"].aclose()
    return made.director.decisions.get("r")


async def test_a_chat_is_placed_by_the_tokens_that_its_server_computes():
    """The body goes there as it is, with the client's key, to the path beside the chat's."""
    async with renderer() as (url, got):
        record = await route(f"{url}/", "/v1/chat/completions", CHAT, authorization="Bearer k")
    assert record.cached_tokens == {"p": {"10.0.0.1:8000": 4}}
    assert record.num_prompt_tokens == len(IDS)
    ((path, headers, body),) = got
    assert (path, headers["authorization"], body) == (
        "/v1/chat/completions/render",
        "bearer k",
        CHAT,
    )


async def test_prompts_of_a_completion_come_in_a_list():
    """Of which each has its own."""
    answer = json.dumps([{"token_ids": IDS, "model": "m"}, {"token_ids": [1]}]).encode()
    async with renderer(answer) as (url, got):
        record = await route(url, "/v1/completions", {"model": "m", "prompt": ["a", "b"]})
    assert (got[0][0], record.num_prompt_tokens) == ("/v1/completions/render", 10)


async def test_what_is_rendered_is_what_the_server_will_get():
    """Unpacked, and with the model it is rewritten to."""
    async with renderer() as (url, got):
        record = await route(
            url, "/v1/chat/completions", CHAT, model="other", **{"content-encoding": "gzip"}
        )
    assert got[0][2] == {**CHAT, "model": "other"}
    assert record.cached_tokens == {"p": {"10.0.0.1:8000": 4}}


@pytest.mark.parametrize(
    ("answer", "status"),
    [(b"{}", 200), (b'{"token_ids": [-1]}', 200), (b"no", 200), (b"[" * 9999, 200), (b"", 503)],
)
async def test_a_request_is_routed_without_the_renderer_too(
    answer: bytes, status: int, caplog: pytest.LogCaptureFixture
):
    """By estimates, which are no real tokens; the log says why."""
    with caplog.at_level(logging.WARNING):
        async with renderer(answer, status) as (url, _):
            record = await route(url, "/v1/chat/completions", CHAT)
    assert record.status == 200
    assert record.cached_tokens == {}
    assert "not rendered, tokens are estimated" in caplog.text


async def test_a_renderer_that_is_away_costs_no_request():
    """Nothing listens there."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    record = await route(f"http://127.0.0.1:{port}", "/v1/chat/completions", CHAT)
    assert record.status == 200


async def test_other_apis_and_token_ids_are_not_sent_there():
    """There is no path for the first, and nothing to do for the second."""
    async with renderer() as (url, got):
        await route(url, "/v1/embeddings", {"model": "m", "input": "a"})
        await route(url, "/v1/completions", {"model": "m", "prompt": IDS})
    assert got == []


async def test_our_own_server_renders():
    """A picker in front of Weft needs no other one."""
    config = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n" + CONFIG
    async with serving(ECHO, template=SCRIPT) as served, http_serving(served) as url:
        options = PickerOptions(config_text=config % url, endpoints=("10.0.0.1:8000",))
        picker = await open_picker(options)
        raw = json.dumps({**CHAT, "model": served.client.model_config.served_model_name}).encode()
        try:
            await picker.director.pick(await read("/v1/chat/completions", raw, {}), None)
        finally:
            await picker.close()
        expected = served.tokenizer.encode(CHAT["messages"][0]["content"], add_special_tokens=False)
    assert picker.decisions.get("r").num_prompt_tokens == len(expected)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"vllm": {"url": "localhost:8000"}}, "vllm.url must be http://HOST:PORT"),
        ({"vllm": {"url": "http://h", "timeout": "0s"}}, "vllm.timeout must be more than 0"),
        ({"vllm": {"URL": "http://h"}}, "vllm.URL: "),
        ({"backend": "estimate", "vllm": {}}, "backend: estimate and vllm exclude each other"),
        ({"backend": "hf"}, "backend: "),
        ({"estimate": {"image": {"mode": "static"}}}, "needs static.staticToken"),
        ({"estimate": {"video": {}}}, "estimate.video: "),
    ],
)
def test_what_cannot_be_a_backend_is_refused(parameters: dict, words: str):
    """With its key."""
    with pytest.raises(ConfigError) as caught:
        decode(parameters, TokenParameters, "p")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("image", "num_tokens"),
    [({}, 225), ({"defaultResolution": {"width": 1024, "height": 1024}}, 1024),
     ({"mode": "static", "static": {"staticToken": 7}}, 7)],
)  # fmt: skip
async def test_images_count_where_tokens_are_estimated(image: dict, num_tokens: int):
    """As many tokens as a picture of the default resolution has."""
    content = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    counts = []
    for parameters in ({}, {"estimate": {"image": image}}):
        text = f"plugins:\n- {{type: token-producer, parameters: {json.dumps(parameters)}}}\n"
        made = bench(text + "- {type: prefix-cache-scorer}\n", pool_of(1))
        await made.director.pick(await read("/v1/chat/completions", raw, {}), None)
        counts.append(made.director.decisions.get("r").num_prompt_tokens)
    assert counts[1] - counts[0] == num_tokens
