"""Streams over HTTP that continue with `x-weft-resume` when their server is killed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2

from tests.busy import PATIENCE_S
from weft.web.resuming.position import HEADER, NEW

_RETRY_S = 0.05
_COMMENT = f": {HEADER} "
_DATA = "data: "


class NoPositionError(Exception):
    """A stream broke that had no position: its server had just started, and did not know its fingerprint yet."""


class ResumedStream:
    """One request, over as many connections as it takes. `on_break` is called when a connection ends too early."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        path: str,
        body: dict[str, Any],
        headers: Mapping[str, str],
        on_break: Callable[[], None],
    ) -> None:
        self._http = http
        self._path = path
        self._body = body
        self._headers = headers
        self._on_break = on_break
        self._parts: list[str] = []
        self._tag = ""
        self._is_over = False
        self._is_off = False

    async def lines(self) -> AsyncIterator[str]:
        """The lines with data. Raises the error of a server that gives no positions, or refuses the request."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            try:
                async for line in self._connection():
                    deadline = loop.time() + PATIENCE_S
                    yield line
            except httpx2.TransportError as error:
                if self._is_off:
                    raise NoPositionError from error
                if self._is_over or loop.time() > deadline:
                    raise
            if self._is_over:
                return
            if loop.time() > deadline:
                raise AssertionError("no server continues the stream")
            self._on_break()
            await asyncio.sleep(_RETRY_S)

    async def _connection(self) -> AsyncIterator[str]:
        position = ".".join((*self._parts, self._tag)) if self._parts else NEW
        headers = {**self._headers, HEADER: position}
        request = self._http.stream("POST", self._path, json=self._body, headers=headers)
        async with request as response:
            if response.status_code == 503 and self._parts:
                return  # a server that is starting, or does not know its fingerprint yet
            if response.status_code != 200:
                await response.aread()
                raise httpx2.HTTPStatusError(
                    response.text, request=response.request, response=response
                )
            if HEADER not in response.headers:
                self._is_over = True
            held: list[str] = []
            async for line in response.aiter_lines():
                if line.startswith(_DATA):
                    held.append(line)
                elif line.startswith(_COMMENT):
                    self._note(*line.removeprefix(_COMMENT).split())
                else:
                    continue  # an empty line, or a ping
                if self._is_over or line.startswith(_COMMENT):
                    for whole in held:
                        yield whole
                    held.clear()

    def _note(self, part: str, tag: str = "") -> None:
        if tag:
            self._parts.append(part)
            self._tag = tag
        else:
            assert part == "done" or not self._parts, "a stream that had a position says off"
            self._is_off = part == "off"
            self._is_over = True
