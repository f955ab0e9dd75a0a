"""Facts about a server: version, load, metrics, and the description of its endpoints."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.responses import Response

from weft import __version__
from weft.core.observe.metrics import CONTENT_TYPE
from weft.core.values.engine_snapshots import EngineLoad, RequestStates
from weft.web.admin.openapi import describe
from weft.web.http.endpoint import Answer, Call, Endpoint, Handler
from weft.web.http.state import ServerState


class Version(msgspec.Struct, frozen=True):
    """Version of this server."""

    version: str


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`server_load` counts the requests that are open; `loads` is each engine's own view."""

    server_load: int
    loads: list[EngineLoad]


class Requests(msgspec.Struct, frozen=True):
    """Requests of every engine, by data-parallel rank. Answers have numbers, not request ids."""

    engines: list[RequestStates]


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of the engine; `config` is by section."""

    version: str
    config: dict[str, Any]


async def _version(_call: Call) -> Answer:
    return Version(__version__)


async def _load(call: Call) -> Answer:
    client = call.served.client
    loads = await client.get_loads()
    return Load(server_load=client.num_active_requests, loads=loads)


async def _requests(call: Call) -> Answer:
    return Requests(await call.served.client.get_request_states())


async def _server_info(call: Call) -> Answer:
    settings = call.served.client.info.settings
    return ServerInfo(version=__version__, config=dict(settings))


def page_endpoints(state: ServerState, others: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """The pages of a server; they describe these pages and the `others`."""

    async def metrics(_call: Call) -> Answer:
        return Response(await state.expose(), headers={"content-type": CONTENT_TYPE})

    @cache  # built at the first request, to keep the start fast
    def description(model: str) -> bytes:
        return msgspec.json.encode(describe((*others, *pages), model))

    async def openapi(_call: Call) -> Answer:
        return Response(description(state.model_name), media_type="application/json")

    def get(
        path: str,
        handler: Handler,
        summary: str,
        answer: Any = None,
        *,
        uses_model: bool = False,
    ) -> Endpoint:
        fields: dict[str, Any] = {"answer": answer, "group": "Server", "uses_model": uses_model}
        return Endpoint(method="GET", path=path, handler=handler, summary=summary, **fields)

    pages = (
        get("/version", _version, "This server's version.", Version),
        get("/load", _load, "Open requests, and the load of every engine.", Load, uses_model=True),
        get(
            "/requests",
            _requests,
            "Running answers: phase, times and KV blocks of each; no text, no ids.",
            Requests,
            uses_model=True,
        ),
        get(
            "/server_info",
            _server_info,
            "Configuration of the engine.",
            ServerInfo,
            uses_model=True,
        ),
        get("/metrics", metrics, "Series for Prometheus, as text."),
        get("/openapi.json", openapi, "This description; /docs is a page of it."),
    )
    return pages
