"""A server of tools, made with the `mcp` package, that runs beside a test."""

import threading
import time
from contextlib import contextmanager

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

NAME = "weather-station"
ANSWER = '{"temperature": 21, "condition": "sunny"}'


def make_tools() -> tuple[MCPServer, list[str]]:
    """The server, and a list of the calls that reached it."""
    calls: list[str] = []
    server = MCPServer(NAME, log_level="CRITICAL")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def get_weather(city: str) -> str:
        """Get the weather in a city"""
        calls.append(city)
        return ANSWER

    @server.tool()
    def broken() -> str:
        """Breaks"""
        calls.append("broken")
        raise ValueError("no")

    @server.tool()
    async def slow(seconds: float) -> str:
        """Takes its time"""
        calls.append("slow")
        await anyio.sleep(seconds)
        return "done"

    @server.tool()
    def big(size: int) -> str:
        """Says a lot"""
        calls.append("big")
        return "x" * size

    return server, calls


@contextmanager
def tool_serving(path: str = "/mcp", wrap=lambda app: app):
    """The address of a server, over HTTP or for /sse over events, and the calls it gets; `wrap` is put around it."""
    server, calls = make_tools()
    app = server.sse_app() if path == "/sse" else server.streamable_http_app()
    config = uvicorn.Config(wrap(app), port=0, log_level="critical", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}{path}", calls
    finally:
        running.should_exit = True
        thread.join()
