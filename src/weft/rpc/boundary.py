"""The top of every call: any exception of a handler becomes a gRPC status, without internal details."""

import asyncio
import logging
import secrets
import socket
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from typing import Any, NoReturn, TypeAlias

from google.protobuf.message import Message
from grpc import RpcMethodHandler, StatusCode, unary_stream_rpc_method_handler
from grpc import unary_unary_rpc_method_handler as unary_rpc_method_handler
from grpc.aio import InternalError, ServicerContext

from weft.core.aio.write_stall import WriteStall
from weft.core.errors import Overloaded, WeftError, for_want_of_memory
from weft.rpc.methods import Undecodable
from weft.rpc.status import to_detail, to_status, to_trailing

log = logging.getLogger("weft.rpc")

Context = ServicerContext[Any, Any]
UnaryHandler = Callable[[Any, Context], Awaitable[Message]]
StreamHandler = Callable[[Any, Context], Awaitable[None]]
Failure: TypeAlias = tuple[StatusCode, str, tuple[tuple[str, bytes], ...]]
# Bytes of a message that are not counted against the limit of all messages: the number of calls bounds them.
FREE_BYTES = 2**16
_serialized = methodcaller("SerializeToString")


class Held:
    """A large request, or its `Undecodable`. `release` is called when the call ends; the bytes are also released when a
    request is garbage-collected whose call never began.
    grpc keeps a refused request and its frames for a while, so `release` drops the reference to the request.
    """

    __slots__ = ("__weakref__", "_give_back", "message")

    def __init__(self, message: Message | Undecodable, give_back: Callable[[], None]) -> None:
        self.message: Message | Undecodable | None = message
        self._give_back = weakref.finalize(self, give_back)
        self._give_back.atexit = False

    def release(self) -> None:
        """Drops the request, and its bytes from the budget."""
        self.message = None
        self._give_back()


_MAX_SIGNALS = 4096


@contextmanager
def merged_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Makes readers that are registered with `loop` inside treat many wake-up bytes as one.

    grpc sends one wake-up byte for each completed operation, and at each byte handles all completed operations. When a
    step writes to all callers, the first byte does all the work, and every other byte costs a turn of the event loop: a
    fifth of grpc's time per message. So the other bytes that were present before grpc's callback are read after it. An
    operation that completes during the callback has a byte of its own. If the callback raises, because an operation
    belongs to a closed loop, the unread bytes call it again.
    """
    peeked = bytearray(_MAX_SIGNALS)
    add_reader = loop.add_reader

    def add(file: Any, callback: Callable[..., Any], *args: Any) -> None:
        if not isinstance(file, socket.socket):
            add_reader(file, callback, *args)
            return

        def on_readable() -> None:
            num_signals = file.recv_into(peeked, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            callback(*args)
            if num_signals > 1:
                file.recv_into(peeked, num_signals - 1)

        add_reader(file, on_readable)

    # Replaced on this loop only, while grpc starts: grpc offers no other way to register.
    loop.add_reader = add  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del loop.add_reader


# None stands for a request that was dropped because the limit of bytes was reached.
Received: TypeAlias = Message | Undecodable | Held | None
Decode = Callable[[bytes], Received]


class MessageBudget:
    """The bytes of the large requests whose calls are open; owned by one event loop.

    Requests of at most `FREE_BYTES` do not count: small requests are accepted while large ones are refused.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def decoder(self, decode: Callable[[bytes], Message | Undecodable]) -> Decode:
        """Wraps `decode` so that it drops requests for which there is no room."""

        def decode_within(data: bytes) -> Received:
            size = len(data)
            if size <= FREE_BYTES:
                return decode(data)
            if self._num_bytes + size > self._max_bytes:
                return None
            self._num_bytes += size
            return Held(decode(data), partial(self._give_back, size))

        return decode_within

    def _give_back(self, size: int) -> None:
        self._num_bytes -= size


class CallWriter:
    """Writes the messages of `source` to the caller, inside `async with`.

    While a write waits, the engine's client merges further outputs into one, so the memory for a slow reader is limited
    by the length of its answer. If a reader reads nothing for `timeout_s`, `source` is closed, which ends the engine's
    request. The pending write is not cancelled: grpc cannot end a call during a write, so the call ends when the caller
    reads again or disconnects.
    """

    _closing: asyncio.Task[None] | None = None

    def __init__(
        self, context: Context, source: AsyncGenerator[Any, None], timeout_s: float
    ) -> None:
        self._context = context
        self._source = source
        self._timeout_s = timeout_s
        self._stall = WriteStall(timeout_s, self._close)

    async def __aenter__(self) -> "CallWriter":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stall.stop()
        if self._closing is not None:
            await asyncio.wait({self._closing})

    async def write(self, message: Message) -> None:
        """Writes one message; raises `Overloaded` if that took so long that `source` was closed."""
        try:
            with self._stall:
                await self._context.write(message)
        finally:
            if self._closing is not None:
                await asyncio.wait({self._closing})
        if self._closing is not None:
            raise Overloaded(
                f"the client read nothing for {self._timeout_s:g} s; the request was aborted"
            )

    def _close(self) -> None:
        self._closing = asyncio.ensure_future(self._source.aclose())


def unary(name: str, handler: UnaryHandler, decode: Decode) -> "RpcMethodHandler[Any, Any]":
    """Makes `handler` a call with one answer."""

    async def call(request: Received, context: Context) -> Message:
        try:
            return await handler(_decoded(request), context)
        except Exception as error:  # noqa: BLE001 - the root of a call
            failure = _to_failure(name, error, context)
        finally:
            _release(request)
        # Outside the try: `abort` raises, and its exception must not be caught here.
        return await _abort(name, failure, context)

    return unary_rpc_method_handler(call, decode, _serialized)


def stream(name: str, handler: StreamHandler, decode: Decode) -> "RpcMethodHandler[Any, Any]":
    """Makes `handler` a call that writes its answers to the context.

    In contrast to yielding, only writing raises CancelledError in a cancelled call, and no other exception.
    """

    async def call(request: Received, context: Context) -> None:
        try:
            await handler(_decoded(request), context)
        except Exception as error:  # noqa: BLE001 - the root of a call
            failure = _to_failure(name, error, context)
        else:
            return
        finally:
            _release(request)
        await _abort(name, failure, context)

    return unary_stream_rpc_method_handler(call, decode, _serialized)


async def _abort(name: str, failure: Failure, context: Context) -> NoReturn:
    try:
        await context.abort(*failure)
    except InternalError:
        # The caller has just left, for example because both sides saw a deadline pass. If this were not caught, grpc
        # would log a traceback.
        log.debug("%s: the caller left before it received %s", name, failure[0].name)
        raise asyncio.CancelledError from None


def _decoded(request: Received) -> Message:
    message = request.message if isinstance(request, Held) else request
    if message is None:
        raise Overloaded(
            "the maximum of bytes of large requests in memory is reached; send this request again soon"
        )
    if isinstance(message, Undecodable):
        raise message.error()
    return message


def _release(request: Received) -> None:
    if isinstance(request, Held):
        request.release()


def _to_failure(name: str, error: Exception, context: Context) -> Failure:
    error = for_want_of_memory(error) or error
    if isinstance(error, WeftError):
        return to_status(error.code), to_detail(error), to_trailing(error)
    if context.cancelled() or isinstance(error, InternalError):
        # grpc raises InternalError if a message is sent on a call that has ended.
        log.debug("%s: the client disconnected", name, exc_info=error)
        return StatusCode.CANCELLED, "the client disconnected", ()
    incident = secrets.token_hex(8)
    log.error("%s failed, id=%s", name, incident, exc_info=error)
    return StatusCode.INTERNAL, f"internal error, id={incident}", ()
