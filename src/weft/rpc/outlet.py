"""Writes to one caller, and stops the work behind the call when the caller stops reading."""

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any

from google.protobuf.message import Message

from weft.core.errors import Overloaded
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
        self._loop = asyncio.get_running_loop()
        self._began_at: float | None = None  # the write under way
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Outlet":
        # One timer a call: one around each write was a tenth of what we do for a streamed token.
        self._watch(self._timeout_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._closing is not None:
            await asyncio.wait({self._closing})

    async def write(self, message: Message) -> None:
        """Write one message; `Overloaded` if that took so long that `source` was closed."""
        self._began_at = self._loop.time()
        try:
            await self._context.write(message)
        finally:
            self._began_at = None
            if self._closing is not None:
                await asyncio.wait({self._closing})
        if self._closing is not None:
            raise Overloaded(
                f"the reader took nothing for {self._timeout_s:g} s; the request was aborted"
            )

    def _watch(self, within_s: float) -> None:
        self._timer = self._loop.call_later(within_s, self._check)

    def _check(self) -> None:
        if self._began_at is None:
            self._watch(self._timeout_s)
            return
        remaining_s = self._began_at + self._timeout_s - self._loop.time()
        if remaining_s > 0:
            self._watch(remaining_s)
        else:
            self._timer = None
            self._closing = asyncio.ensure_future(self._source.aclose())
