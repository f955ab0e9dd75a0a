"""A client that reads slowly costs the engine nothing, and the server no more than a little memory."""

import asyncio
import json
import socket

import pytest
from prometheus_client import CollectorRegistry

from tests.busy import PATIENCE_S
from tests.doubles.loop_probe import check_pauses
from tests.web.serving import ECHO, SCRIPT, call_of, listening, serving
from weft.core.client import EngineClient
from weft.web.http.endpoint import Events
from weft.web.http.state import ServerState
from weft.web.items.conversation_store import Conversations
from weft.web.openai import ENDPOINTS as OPENAI
from weft.web.responses import response_endpoints
from weft.web.responses.runs import Runs
from weft.web.responses.store import ResponseLimits
from weft.web.served import Served
from weft.web.tokens import ENDPOINTS as TOKENS

NUM_ANSWERS, NUM_TOKENS = 32, 280
# An event a token, with the log-probabilities of so many others, makes some megabytes.
BODY = {
    "prompt": "abcdefgh" * (NUM_TOKENS // 8),
    "n": NUM_ANSWERS,
    "max_tokens": NUM_TOKENS,
    "ignore_eos": True,
    "logprobs": 20,
    "return_token_ids": True,
}
RECEIVE_BYTES = 4096
# The transport stops taking more at its own mark; an event is written whole.
MAX_UNSENT_BYTES = 512 * 1024


async def begin(port: int) -> socket.socket:
    """A stream that was asked for by somebody who takes little at a time, and nothing yet."""
    lagging = socket.socket()
    lagging.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    lagging.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(lagging, ("127.0.0.1", port))
    body = json.dumps({**BODY, "stream": True}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    await loop.sock_sendall(lagging, head.encode() + body)
    return lagging


async def read_all(lagging: socket.socket) -> list[dict]:
    """The data of every event, up to the end mark."""
    loop = asyncio.get_running_loop()
    text = bytearray()
    while part := await loop.sock_recv(lagging, 1 << 20):
        text += part
    assert b"data: [DONE]" in text
    lines = _unchunked(text.partition(b"\r\n\r\n")[2]).splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def _unchunked(text: bytes) -> bytes:
    body = b""
    while text:
        size, _, rest = text.partition(b"\r\n")
        body, text = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


async def until_made(client: EngineClient) -> None:
    """Wait until the engine has nothing left to do of a request that is still open here."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            (load,) = await client.get_loads()
            is_idle = not (load.num_running or load.num_waiting)
            if client.num_active_requests and load.num_steps and is_idle:
                return
            await asyncio.sleep(0.05)


async def test_a_lagging_reader_gets_fewer_and_larger_events_with_the_same_content():
    """The engine is done before anything is read; what waits in the server for the socket is bounded."""
    async with (
        serving(ECHO, num_gpu_blocks_override=2048) as served,
        listening(served) as (server, port),
    ):
        lagging = await begin(port)
        with lagging:
            await until_made(served.client)
            (connection,) = server._connections.connections
            num_unsent = connection.transport.get_write_buffer_size()
            events = await read_all(lagging)
    assert 0 < num_unsent <= MAX_UNSENT_BYTES
    sizes = [len(choice["token_ids"]) for event in events for choice in event["choices"]]
    assert sum(sizes) == NUM_ANSWERS * NUM_TOKENS
    assert len(sizes) < 0.8 * sum(sizes)
    assert max(sizes) > 10
    assert texts(events) == [BODY["prompt"]] * NUM_ANSWERS


def texts(events: list[dict]) -> list[str]:
    """What each answer adds up to."""
    answers = [""] * NUM_ANSWERS
    for choice in (choice for event in events for choice in event["choices"]):
        answers[choice["index"]] += choice["text"]
    return answers


def say(num_tokens: int) -> str:
    """A prompt that the echo model answers with so many tokens."""
    return "abcdefgh" * (num_tokens // 8)


# To write the tokens of each, with so many others beside them, takes 70 ms and more.
NUM_TOP = 80
LIMITS = {"max_model_len": 4096, "num_gpu_blocks_override": 512, "max_logprobs": NUM_TOP}
STREAMS = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": say(960)}],
        "max_tokens": 960,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": NUM_TOP,
    },
    "/inference/v1/generate": {
        "token_ids": list(say(960).encode()),
        "sampling_params": {"max_tokens": 960, "ignore_eos": True, "logprobs": NUM_TOP},
    },
    "/v1/responses": {
        "input": say(1600),
        "max_output_tokens": 1600,
        "ignore_eos": True,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 20,
    },
}


async def read_late(served: Served, path: str) -> list[bytes]:
    """The events of a stream of which only the first is read until the engine is done."""
    state = ServerState(CollectorRegistry())
    runs = Runs(state, ResponseLimits())
    responses = response_endpoints(runs, Conversations(state.store))
    all_of_them = (*OPENAI, *TOKENS, *responses)
    endpoints = {one.path: one for one in all_of_them if one.method == "POST"}
    call = call_of(endpoints, served, path, {**STREAMS[path], "stream": True})
    answer = await endpoints[path].handler(call)
    assert isinstance(answer, Events)
    events = [await anext(answer.source)]
    await until_made(served.client)
    return [*events, *[event async for event in answer.source]]


@pytest.mark.parametrize("path", STREAMS)
async def test_what_a_lagging_reader_gets_at_once_holds_nobody_up(path):
    """Thousands of log-probabilities in one event are written while others are served."""
    async with serving(ECHO, template=SCRIPT, **LIMITS) as served:
        events = await check_pauses(lambda: read_late(served, path))
    assert len(events) < 300
    assert len(b"".join(events)) > 2**21
