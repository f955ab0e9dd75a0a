"""The root of every call: whatever a handler raises becomes one gRPC status, and nothing leaks."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

from google.protobuf.message import Message
from grpc import RpcMethodHandler, StatusCode, unary_stream_rpc_method_handler
from grpc import unary_unary_rpc_method_handler as unary_rpc_method_handler
from grpc.aio import InternalError, ServicerContext

from weft.core.errors import Overloaded, WeftError
from weft.core.write_stall import WriteStall
from weft.rpc.methods import Undecodable
from weft.rpc.status import to_detail, to_status, to_trailing

log = logging.getLogger("weft.rpc")

Context = ServicerContext[Any, Any]
UnaryHandler = Callable[[Any, Context], Awaitable[Message]]
StreamHandler = Callable[[Any, Context], Awaitable[None]]
Failure: TypeAlias = tuple[StatusCode, str, tuple[tuple[str, bytes], ...]]
Decode = Callable[[bytes], Message | Undecodable]


class CallWriter:
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

    async def __aenter__(self) -> "CallWriter":
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


def unary(name: str, handler: UnaryHandler, decode: Decode) -> "RpcMethodHandler[Any, Any]":
    """`handler` as a call with one answer."""

    async def call(request: Message | Undecodable, context: Context) -> Message:
        try:
            return await handler(_decoded(request), context)
        except Exception as error:  # noqa: BLE001 - the root of a call
            failure = _to_failure(name, error, context)
        # Outside the try: `abort` works by raising, and must not be caught and called again.
        return await _abort(name, failure, context)

    return unary_rpc_method_handler(call, decode, _encode)


def stream(name: str, handler: StreamHandler, decode: Decode) -> "RpcMethodHandler[Any, Any]":
    """`handler` as a call that writes its answers to the context.

    Writing, unlike yielding, is where a cancelled call raises CancelledError and nothing else.
    """

    async def call(request: Message | Undecodable, context: Context) -> None:
        try:
            await handler(_decoded(request), context)
        except Exception as error:  # noqa: BLE001 - the root of a call
            failure = _to_failure(name, error, context)
        else:
            return
        await _abort(name, failure, context)

    return unary_stream_rpc_method_handler(call, decode, _encode)


async def _abort(name: str, failure: Failure, context: Context) -> NoReturn:
    try:
        await context.abort(*failure)
    except InternalError:
        # The caller left at this very moment, as when both sides see a deadline pass. Were it not
        # caught, grpc would log a traceback for it.
        log.debug("%s: the caller left before it received %s", name, failure[0].name)
        raise asyncio.CancelledError from None


def _encode(message: Message) -> bytes:
    return message.SerializeToString()


def _decoded(request: Message | Undecodable) -> Message:
    if isinstance(request, Undecodable):
        raise request.error()
    return request


def _to_failure(name: str, error: Exception, context: Context) -> Failure:
    if isinstance(error, WeftError):
        return to_status(error.code), to_detail(error), to_trailing(error)
    if context.cancelled() or isinstance(error, InternalError):
        # InternalError is what grpc raises when it sends on a call that is over.
        log.debug("%s: the caller went away", name, exc_info=error)
        return StatusCode.CANCELLED, "the caller went away", ()
    incident = secrets.token_hex(8)
    log.error("%s failed, id=%s", name, incident, exc_info=error)
    return StatusCode.INTERNAL, f"internal error, id={incident}", ()
