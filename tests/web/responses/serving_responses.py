"""Servers and clients for the tests of the Responses API, and answers that a test writes itself."""

import json

import msgspec
from prometheus_client import CollectorRegistry

from tests.web.openai.calls import client_of
from tests.web.serving import ECHO, QWEN, SCRIPT, call_of, weather_tool
from weft.web.http.endpoint import Events
from weft.web.http.state import ServerState
from weft.web.items.conversation_store import Conversations
from weft.web.responses import response_endpoints
from weft.web.responses.runs import Runs
from weft.web.responses.store import ResponseLimits

REASONING = "<think>Hm.</think>"
CALL = '<tool_call>\n{"name": "f", "arguments": {"unit": "c", "days": 3}}\n</tool_call>'
# Slow enough to be caught at work.
SLOW = ECHO + "?itl_ms=20"
LONG = "word " * 60
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


def flat_tool(name: str = "f") -> dict:
    """A function as the Responses API describes it."""
    return {"type": "function", **weather_tool(name)["function"]}


def scripted(**settings):
    """A client of a model that says what its input says, in a known form."""
    return client_of(ECHO, options=QWEN, template=SCRIPT, **settings)


class Handlers:
    """The handlers of one server, called without it."""

    def __init__(self, served, limits=None):
        self.served = served
        self.state = ServerState(CollectorRegistry())
        self.runs = Runs(self.state, limits or ResponseLimits())
        endpoints = response_endpoints(self.runs, Conversations(self.state.store))
        self._endpoints = {(endpoint.method, endpoint.path): endpoint for endpoint in endpoints}
        self._num_calls = 0

    def made(self, method, path, body=None, query=None, **path_parameters):
        """The call that a server would make."""
        self._num_calls += 1
        return call_of(
            self._endpoints,
            self.served,
            (method, path),
            body,
            request_id=f"r{self._num_calls}",
            label="r",
            path_parameters=path_parameters,
            query=query or {},
        )

    async def call(self, method, path, *given, **path_parameters):
        """What the handler answers."""
        call = self.made(method, path, *given, **path_parameters)
        return await self._endpoints[method, path].handler(call)

    async def num_stored(self):
        """Number of stored objects: responses, and names of their items."""
        return await self.state.store.run(len)

    async def create(self, **body):
        """A response, as JSON."""
        answer = await self.call("POST", "/v1/responses", body)
        return json.loads(msgspec.json.encode(answer))

    async def stream(self, **body):
        """The events of a streamed response, names checked."""
        answer = await self.call("POST", "/v1/responses", {**body, "stream": True})
        assert isinstance(answer, Events)
        return [event_of(raw) async for raw in answer.source]

    async def of(self, method, response_id, action="", **query):
        """What is answered about a response, as JSON or events."""
        path = "/v1/responses/{response_id}" + action
        answer = await self.call(method, path, None, query, response_id=response_id)
        if isinstance(answer, Events):
            return [event_of(raw) async for raw in answer.source]
        encoded = answer.body if hasattr(answer, "body") else msgspec.json.encode(answer)
        return json.loads(encoded)


def event_of(raw: bytes) -> dict:
    """An event's data; its name is its type."""
    name, data = raw.decode().removesuffix("\n\n").split("\n")
    event = json.loads(data.removeprefix("data: "))
    assert name == f"event: {event['type']}"
    return event


# What differs each time, and what the client's own parsing adds.
_PASSING = ("id", "call_id", "parsed", "parsed_arguments")


def comparable(response: dict) -> dict:
    """A response without ids and times."""
    return _without_ids({**response, "created_at": 0, "completed_at": 0})


def _without_ids(value):
    if isinstance(value, list):
        return [_without_ids(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if key not in _PASSING}
    return value
