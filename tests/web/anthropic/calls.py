"""Calls of the handlers without a server: a body in, an answer or the events of a stream out."""

import json
from functools import partial

import msgspec

from tests.web.serving import call_of
from weft.web.anthropic import ENDPOINTS
from weft.web.http.endpoint import Events
from weft.web.served import Served

_BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "hello"}]


def weather_tool(name: str = "get_weather", **fields) -> dict:
    """A tool as Anthropic's clients describe it."""
    return {
        "name": name,
        "description": "The weather somewhere.",
        "input_schema": {
            "type": "object",
            "properties": {"unit": {"enum": ["c", "f"]}},
            "required": ["unit"],
            "additionalProperties": False,
        },
        **fields,
    }


make_call = partial(call_of, _BY_PATH)


def filled(served: Served, fields: dict, path: str = MESSAGES) -> dict:
    """A body with what every body has."""
    name = served.client.model_config.served_model_name
    body = {"model": name, "messages": HELLO, "max_tokens": 8, **fields}
    return {key: value for key, value in body.items() if path == MESSAGES or key != "max_tokens"}


async def create(served: Served, *, headers=None, **fields) -> dict:
    """The message in one piece, as a client would read it."""
    call = make_call(served, MESSAGES, filled(served, fields), headers)
    made = await _BY_PATH[MESSAGES].handler(call)
    assert not isinstance(made, Events)
    return json.loads(msgspec.json.encode(made))


async def stream(served: Served, **fields) -> list[dict]:
    """The events of a stream; their names are checked."""
    call = make_call(served, MESSAGES, filled(served, {**fields, "stream": True}))
    made = await _BY_PATH[MESSAGES].handler(call)
    assert isinstance(made, Events)
    events = []
    async for event in made.source:
        name, data = event.decode().removesuffix("\n\n").split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def count(served: Served, **fields) -> int:
    """The tokens of a body's prompt."""
    call = make_call(served, COUNT, filled(served, fields, COUNT))
    made = await _BY_PATH[COUNT].handler(call)
    return made.input_tokens
