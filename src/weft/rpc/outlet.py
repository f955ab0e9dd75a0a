"""Writes to one caller, and stops the work behind the call when the caller stops reading."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from google.protobuf.message import Message

from weft.core.errors import Overloaded
from weft.core.write_stall import WriteStall
from weft.rpc.boundary import Context


class Outlet:
    """Messages from `source` go to the caller through here, inside `async with`.

    While a write waits, the engine's client merges what follows into one output, so a slow reader
    costs memory only up to the length of its answer. A reader that takes nothing for `timeout_s`
    has `source` closed, and with it the engine's request. The write itself is left alone: grpc cannot
    end a call with one under way, so the call ends when the caller reads on, or leaves.
    """

    def __init__(
        self, context: Context, source: AsyncGenerator[Any, None], timeout_s: float
    ) -> None:
        self._context = context
        self._source = source
        self._timeout_s = timeout_s
        self._stall = WriteStall(timeout_s, self._close)
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Outlet":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stall.stop()
        if self._closing is not None:
            await asyncio.wait({self._closing})

    async def write(self, message: Message) -> None:
        """Write one message; `Overloaded` if that took so long that `source` was closed."""
        try:
            with self._stall:
                await self._context.write(message)
        finally:
            if self._closing is not None:
                await asyncio.wait({self._closing})
        if self._closing is not None:
            raise Overloaded(
                f"the reader took nothing for {self._timeout_s:g} s; the request was aborted"
            )

    def _close(self) -> None:
        self._closing = asyncio.ensure_future(self._source.aclose())
