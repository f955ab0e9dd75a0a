"""Calls of the handlers without a server: a body in, an answer or the chunks of a stream out."""

import json
from functools import partial

import msgspec

from tests.web.serving import call_of
from weft.web.http.endpoint import Events
from weft.web.openai import ENDPOINTS
from weft.web.served import Served

_BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


make_call = partial(call_of, _BY_PATH)


async def answer(served: Served, path: str, body: dict, **call) -> dict:
    """The answer in one piece, as a client would read it."""
    made = await _BY_PATH[path].handler(make_call(served, path, body, **call))
    assert not isinstance(made, Events)
    return json.loads(msgspec.json.encode(made))


async def chunks(served: Served, path: str, body: dict, **call) -> list[dict]:
    """The chunks of a stream; `[DONE]` is checked and left out."""
    made = await _BY_PATH[path].handler(make_call(served, path, {**body, "stream": True}, **call))
    assert isinstance(made, Events)
    events = [event async for event in made.source]
    assert events[-1] == b"data: [DONE]\n\n"
    assert all(event.startswith(b"data: {") and event.endswith(b"}\n\n") for event in events[:-1])
    return [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]


async def chat(served: Served, body=None, **fields) -> dict:
    """A chat completion in one piece."""
    return await answer(served, CHAT, {"messages": HELLO, **(body or {}), **fields})


async def chat_chunks(served: Served, body=None, **fields) -> list[dict]:
    """A chat completion's chunks."""
    return await chunks(served, CHAT, {"messages": HELLO, **(body or {}), **fields})


async def complete(served: Served, body=None, **fields) -> dict:
    """A completion in one piece."""
    return await answer(served, COMPLETIONS, {"prompt": "hello", **(body or {}), **fields})


async def complete_chunks(served: Served, body=None, **fields) -> list[dict]:
    """A completion's chunks."""
    return await chunks(served, COMPLETIONS, {"prompt": "hello", **(body or {}), **fields})
