"""A client of the `mcp` package with limits on received data; the package takes seconds to import."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ContentBlock, Tool

from weft.schema.response_object import McpListedTool
from weft.web.mcp.values import CallResult, ToolLimits, ToolServerError, failed, reason


class ToolClient:
    """A connection. Methods raise the package's exceptions."""

    def __init__(self, client: Client, limits: ToolLimits) -> None:
        self._client = client
        self._limits = limits
        # Read now: a closed client does not report it any more.
        about = client.server_info
        self.server_name = "" if about is None else about.name

    async def list_tools(self) -> tuple[McpListedTool, ...]:
        """Lists all tools, page after page."""
        tools: list[Tool] = []
        cursor: str | None = None
        while len(tools) <= self._limits.max_listed_tools:
            page = await self._client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None or not page.tools:
                break
        if len(tools) > self._limits.max_listed_tools:
            raise ToolServerError(f"it has more than {self._limits.max_listed_tools} tools")
        return tuple(map(_listed, tools))

    async def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        """Calls a tool and returns its result."""
        try:
            result = await self._client.call_tool(name, arguments)
        except MCPError as error:
            return failed("mcp_protocol_error", error.code, reason(error))
        return _to_result(result, self._limits.max_result_chars)


def _listed(tool: Tool) -> McpListedTool:
    about = tool.annotations
    return McpListedTool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        annotations=None if about is None else about.model_dump(by_alias=True, exclude_none=True),
    )


@asynccontextmanager
async def open_client(
    url: str, headers: Mapping[str, str], limits: ToolLimits
) -> AsyncIterator["ToolClient"]:
    """The package's client: over a stream of events for a path that ends in /sse, else over plain HTTP."""

    def make(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        transport = _Bounded(limits.max_received_bytes)
        return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, transport=transport)

    if urlsplit(url).path.rstrip("/").endswith("/sse"):
        events = sse_client(
            url,
            headers=dict(headers),
            timeout=limits.connect_timeout_s,
            sse_read_timeout=limits.max_session_s,
            httpx_client_factory=make,
        )
        async with Client(events, cache=None) as client:
            yield ToolClient(client, limits)
    else:
        timeout = httpx2.Timeout(limits.connect_timeout_s, read=limits.call_timeout_s)
        async with (
            make(dict(headers), timeout) as http,
            Client(streamable_http_client(url, http_client=http), cache=None) as client,
        ):
            yield ToolClient(client, limits)


class _Bounded(httpx2.AsyncHTTPTransport):
    """Connections that may receive a limited number of bytes together, uncompressed only."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._num_left = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.ReadError("the answer is compressed, which was not requested")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, self._take)
        return response

    def _take(self, num_bytes: int) -> None:
        self._num_left -= num_bytes
        if self._num_left < 0:
            raise httpx2.ReadError("the tool server has sent more than a response may take")


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, take: Callable[[int], None]) -> None:
        self._stream = stream
        self._take = take

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._take(len(chunk))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _to_result(result: CallToolResult, max_chars: int) -> CallResult:
    texts = [_text(block) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(texts)
    if len(text) > max_chars:
        return _refused(f"the output has {len(text)} characters; {max_chars} are taken")
    return _refused(text) if result.is_error else CallResult(text=text)


def _refused(text: str) -> CallResult:
    """The result of a call that the tool or this server refused."""
    content: Sequence[Mapping[str, str]] = [{"type": "text", "text": text}]
    return CallResult(
        text=f"Error: {text}", error={"type": "mcp_tool_execution_error", "content": content}
    )


def _text(block: ContentBlock) -> str:
    """A block as text."""
    if block.type == "text":
        return block.text
    if block.type == "resource":
        text = getattr(block.resource, "text", None)
        return text if isinstance(text, str) else f"[{block.resource.uri}: not a text]"
    if block.type == "resource_link":
        return f"[{block.uri}]"
    return f"[{block.type} of type {block.mime_type}: not a text]"
