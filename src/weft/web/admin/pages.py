"""Facts about a server: version, load, metrics, and the description of its endpoints."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response

from weft import __version__
from weft.core.metrics import CONTENT_TYPE, expose
from weft.core.types import EngineLoad
from weft.web.admin.docs_page import POLICY, docs_page
from weft.web.admin.openapi import describe
from weft.web.http.endpoint import Answer, Call, Endpoint, Handler
from weft.web.http.state import ServerState


class Version(msgspec.Struct, frozen=True):
    """This server's version."""

    version: str


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`server_load` counts the requests that are open; `loads` is each engine's own view."""

    server_load: int
    loads: list[EngineLoad]


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine runs with; `config` is by section."""

    version: str
    config: dict[str, Any]


async def _version(_call: Call) -> Answer:
    return Version(__version__)


async def _load(call: Call) -> Answer:
    client = call.served.client
    return Load(server_load=client.num_active_requests, loads=await client.get_loads())


async def _server_info(call: Call) -> Answer:
    settings = call.served.client.info.settings
    return ServerInfo(version=__version__, config=dict(settings))


def page_endpoints(state: ServerState, others: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """The pages of a server that has `others` beside them, and describes them all."""

    async def metrics(_call: Call) -> Answer:
        return Response(expose(state.registry), headers={"content-type": CONTENT_TYPE})

    @cache  # made when it is first asked for: a start has better things to do
    def description() -> bytes:
        return msgspec.json.encode(describe((*others, *pages)))

    async def openapi(_call: Call) -> Answer:
        return Response(description(), media_type="application/json")

    async def docs(_call: Call) -> Answer:
        page = docs_page((*others, *pages))
        return HTMLResponse(page, headers={"content-security-policy": POLICY})

    def get(path: str, handler: Handler, summary: str, answer: Any = None) -> Endpoint:
        return Endpoint(method="GET", path=path, handler=handler, summary=summary, answer=answer)

    pages = (
        get("/version", _version, "This server's version.", Version),
        get("/load", _load, "Open requests, and the load of every engine.", Load),
        get("/server_info", _server_info, "What the engine runs with.", ServerInfo),
        get("/metrics", metrics, "Series for Prometheus, as text."),
        get("/openapi.json", openapi, "This description."),
        get("/docs", docs, "This description as a page."),
    )
    return pages
