"""An asynchronous transport that continues broken streams with `x-weft-resume`, as `examples/resuming.py` does."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2

from tests.busy import PATIENCE_S
from weft.web.resuming.position import HEADER, NEW

COMMENT = f": {HEADER} ".encode()


class Continued(httpx2.AsyncByteStream):
    """The body of a stream, over as many connections as it takes."""

    def __init__(
        self, transport: "ResumingTransport", request: httpx2.Request, response: httpx2.Response
    ) -> None:
        self._transport = transport
        self._request = request
        self._response = response
        self._parts: list[str] = []
        self._tag = ""
        self._is_over = False
        self._held = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async for group in self._groups():
                    yield group
            except httpx2.TransportError:
                if self._is_over:
                    raise
            if self._is_over:
                yield self._held
                return
            await self._response.aclose()
            position = ".".join((*self._parts, self._tag)) if self._parts else NEW
            self._transport.num_continued += 1
            self._response = await self._transport.send(self._request, position)

    async def _groups(self) -> AsyncIterator[bytes]:
        self._held, data = b"", b""
        async for received in self._response.stream:  # type: ignore[union-attr]
            *events, data = (data + received).split(b"\n\n")
            for event in events:
                if not event.startswith(COMMENT):
                    self._held += event + b"\n\n"
                    continue
                self._note(event.removeprefix(COMMENT).decode().split())
                group, self._held = self._held, b""
                yield group

    def _note(self, words: list[str]) -> None:
        if len(words) == 1:
            self._is_over = True
            self._transport.num_off += words == ["off"]
            return
        self._parts.append(words[0])
        self._tag = words[1]

    async def aclose(self) -> None:
        await self._response.aclose()


class ResumingTransport(httpx2.AsyncBaseTransport):
    """Streams are asked for with positions; `num_continued` counts those that broke, and
    `num_off` those that a server did not offer to continue: it had just started."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None))
        self.num_continued = 0
        self.num_off = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST" or not json.loads(await request.aread() or b"{}").get("stream"):
            return await self._inner.handle_async_request(request)
        response = await self.send(request, NEW)
        body = Continued(self, request, response)
        return httpx2.Response(200, headers=response.headers, stream=body, request=request)

    async def send(self, request: httpx2.Request, position: str) -> httpx2.Response:
        """Send a request until a server takes it. A refusal that is not for now is an error."""
        request.headers[HEADER] = position
        async with asyncio.timeout(2 * PATIENCE_S):
            while True:
                try:
                    response = await self._inner.handle_async_request(request)
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)
                    continue
                if response.status_code == 200:
                    assert response.headers[HEADER] == ("new" if position == NEW else "continued")
                    return response
                body = await response.aread()
                await response.aclose()
                assert response.status_code in (429, 503), body
                await asyncio.sleep(0.05)

    async def aclose(self) -> None:
        await self._inner.aclose()
