"""Tool servers of both generations of MCP: one that keeps no session, and one that begins with a handshake."""

import json

from tests.web.mcp.tool_server import ANSWER, NAME, tool_serving
from weft.web.mcp.client import open_client
from weft.web.mcp.values import ToolLimits

NEWEST, BEFORE = "2026-07-28", "2025-11-25"


class Recorded:
    """An application that notes the methods and versions of calls; it may refuse to be discovered."""

    def __init__(self, app, is_discoverable: bool) -> None:
        self._app = app
        self._is_discoverable = is_discoverable
        self.calls: list[tuple[str, str | None]] = []
        self.sessions: set[str | None] = set()

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        called = json.loads(body)
        self.calls.append((called["method"], headers.get("mcp-protocol-version")))
        self.sessions.add(headers.get("mcp-session-id"))
        if called["method"] == "server/discover" and not self._is_discoverable:
            await self._refuse(called["id"], send)
            return
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again():
            return next(given, None) or await receive()

        await self._app(scope, again, send)

    async def _refuse(self, call_id, send) -> None:
        error = {"code": -32600, "message": "Bad Request: Unsupported protocol version"}
        body = json.dumps({"jsonrpc": "2.0", "id": call_id, "error": error}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def called(is_discoverable: bool) -> Recorded:
    """What a server is asked while its tools are listed and one is called."""
    made: list[Recorded] = []

    def wrap(app):
        made.append(Recorded(app, is_discoverable))
        return made[0]

    with tool_serving(wrap=wrap) as (address, calls):
        async with open_client(address, {}, ToolLimits()) as client:
            assert client.server_name == NAME
            assert "get_weather" in [tool.name for tool in await client.list_tools()]
            result = await client.call("get_weather", {"city": "Oslo"})
        assert json.loads(result.text) == json.loads(ANSWER)
        assert calls == ["Oslo"]
    return made[0]


async def test_a_server_of_the_newest_version_is_discovered_and_keeps_no_session():
    """Each call stands alone and names its version: any replica of the server may answer it."""
    recorded = await called(is_discoverable=True)
    methods = [method for method, _ in recorded.calls]
    assert methods[0] == "server/discover"
    assert "initialize" not in methods
    assert {version for _, version in recorded.calls} == {NEWEST}
    assert recorded.sessions == {None}


async def test_a_server_of_the_version_before_gets_its_handshake():
    """It knows nothing of discovery; its session has an id."""
    recorded = await called(is_discoverable=False)
    methods = [method for method, _ in recorded.calls]
    assert methods[:2] == ["server/discover", "initialize"]
    assert {version for method, version in recorded.calls if method.startswith("tools/")} == {
        BEFORE
    }
    assert len(recorded.sessions - {None}) == 1
