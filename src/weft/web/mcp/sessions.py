"""Sessions with MCP servers, through the `mcp` package, on a separate thread: data from a server is read and checked
there, without delaying the server's event loop.

The package, which takes seconds to import, is imported there when the first session opens.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from weft.core.errors import Overloaded
from weft.schema.response_object import McpListedTool
from weft.web.mcp.values import CallResult, ToolLimits, ToolServerError, failed, reason

if TYPE_CHECKING:
    from weft.web.mcp.client import ToolClient

T = TypeVar("T")

_CLOSE_S = 5.0


class Sessions:
    """All MCP sessions of a process. Methods are called on the servers' event loop."""

    def __init__(self, limits: ToolLimits) -> None:
        self._limits = limits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._num_open = 0

    async def open(self, label: str, url: str, headers: Mapping[str, str]) -> "Session":
        """Opens a connected session; raises `ToolServerError` with the reason of a failure."""
        if self._num_open >= self._limits.max_sessions:
            raise Overloaded(f"{self._num_open} sessions with tool servers are open; wait for one")
        self._num_open += 1
        session = Session(label, self._started(), self._limits)
        here = asyncio.get_running_loop()
        session.begin(url, headers, lambda: here.call_soon_threadsafe(self._ended))
        try:
            await session.connected()
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """End all sessions, and their thread."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_S)
            self._loop = None

    def _ended(self) -> None:
        self._num_open -= 1

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon thread: a hanging tool server must not keep the process alive.
            self._thread = threading.Thread(
                target=_run, args=(self._loop,), name="weft-tools", daemon=True
            )
            self._thread.start()
        return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(_end_tasks())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Session:
    """A connection, held by a task on the sessions' thread; methods are called on the servers' event loop."""

    def __init__(self, label: str, loop: asyncio.AbstractEventLoop, limits: ToolLimits) -> None:
        self.label = label
        self._loop = loop
        self._limits = limits
        self._connected: Future[ToolClient] = Future()
        self._is_closing = asyncio.Event()

    def begin(self, url: str, headers: Mapping[str, str], on_end: Callable[[], object]) -> None:
        """Starts to connect. `on_end` is called, on any thread, when the connection has ended."""
        held = asyncio.run_coroutine_threadsafe(self._hold(url, headers), self._loop)
        held.add_done_callback(lambda _: on_end())

    async def connected(self) -> None:
        """Waits for the connection."""
        await asyncio.wrap_future(self._connected)

    @property
    def server_name(self) -> str:
        """Name that the server reports."""
        return self._connected.result().server_name

    async def list_tools(self) -> tuple[McpListedTool, ...]:
        """Lists all tools of the server."""
        return await self._on_thread(self._list())

    async def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        """Calls a tool. A failure becomes the call's result."""
        return await self._on_thread(self._call(name, arguments))

    def close(self) -> None:
        """Ends the session soon; idempotent."""
        with suppress(RuntimeError):  # the thread and its session have ended already
            self._loop.call_soon_threadsafe(self._is_closing.set)

    async def _on_thread(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # -- on the thread --------------------------------------------------------------------------

    async def _hold(self, url: str, headers: Mapping[str, str]) -> None:
        limits = self._limits
        try:
            from weft.web.mcp.client import open_client  # noqa: PLC0415 - takes seconds, and an extra

            async with (
                asyncio.timeout(limits.max_session_s),
                asyncio.timeout(limits.connect_timeout_s) as connecting,
                open_client(url, headers, limits) as client,
            ):
                connecting.reschedule(None)
                self._connected.set_result(client)
                await self._is_closing.wait()
        except Exception as error:  # noqa: BLE001 - the package's own, of any kind; the caller gets it
            if not self._connected.done():
                self._connected.set_exception(
                    ToolServerError(
                        f"the tool server {self.label!r} cannot be reached: {reason(error)}"
                    )
                )
        finally:
            # Cancelled together with the other tasks, while its caller waits.
            if not self._connected.done():
                self._connected.set_exception(ToolServerError("the server is shutting down"))

    async def _list(self) -> tuple[McpListedTool, ...]:
        try:
            async with asyncio.timeout(self._limits.call_timeout_s):
                return await self._connected.result().list_tools()
        except Exception as error:  # the package raises exceptions of many types
            raise ToolServerError(
                f"the tool server {self.label!r} does not list its tools: {reason(error)}"
            ) from error

    async def _call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        limit_s = self._limits.call_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._connected.result().call(name, arguments)
        except TimeoutError:
            return failed("http_error", 504, f"the tool did not answer within {limit_s:g} s")
        except Exception as error:  # noqa: BLE001 - the package's own, of any kind; the model reads it
            return failed("http_error", 502, reason(error))
