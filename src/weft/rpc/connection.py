"""A channel to one server: credentials, calls, and the conversion of gRPC statuses to errors."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message

from weft.core.errors import ConfigError, EngineDead, EngineDrained, EngineLost, Unavailable
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.auth import ACCESS_BY_METHOD, Access
from weft.rpc.methods import FINGERPRINT_METADATA, METHODS, VERSION_METADATA
from weft.rpc.status import to_error
from weft.wire.ports import client_args

# A message may hold the prompt of a long context, or its logprobs.
_MAX_MESSAGE_BYTES = 256 * 2**20
_CHANNEL_ARGS = client_args(max_message_bytes=_MAX_MESSAGE_BYTES)
_CALL_TIMEOUT_S = 30.0
_HEALTH_TIMEOUT_S = 5.0
# Statuses of a health call to a server that does not work any more.
_UNAVAILABLE = (
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
)

# In the details of a call whose stream was reset. A proxy resets streams of a server that has ended.
_RESET = "RST_STREAM"
_RESET_CODES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)

_INFO_REQUEST = pb.GetServerInfoRequest(weft_with_fingerprint=True)

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials for a server.

    `control_api_key` is sent with the calls that need a control key. `tls_ca` is the trusted certificate or
    authority; without it the connection is not encrypted.
    """

    api_key: str | None = None
    control_api_key: str | None = None
    tls_ca: Path | None = None

    def metadata(self, method: str) -> Metadata:
        """The key for `method`, as metadata."""
        is_control = ACCESS_BY_METHOD.get(method) is Access.CONTROL
        key = (self.control_api_key if is_control else None) or self.api_key
        return (("authorization", f"Bearer {key}"),) if key else ()


NO_CREDENTIALS = Credentials()


class Unreachable(Unavailable):
    """No server listens at the address, or it does not accept connections."""


class Connection:
    """A channel, and the metadata of every call on it."""

    def __init__(self, target: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        self.target = target
        self._streams: set[Any] = set()
        self._is_draining = False  # why streams were dropped
        self._metadata = {name: credentials.metadata(name) for name in METHODS}
        if credentials.tls_ca is None:
            self._channel = grpc.aio.insecure_channel(target, options=_CHANNEL_ARGS)
        else:
            trust = grpc.ssl_channel_credentials(_read_ca(credentials.tls_ca))
            self._channel = grpc.aio.secure_channel(target, trust, options=_CHANNEL_ARGS)

    async def wait_ready(self, timeout_s: float) -> None:
        """Connect, or raise `Unreachable`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.channel_ready()
        except TimeoutError:
            raise Unreachable(f"no gRPC server answers at {self.target}") from None

    async def call(
        self,
        name: str,
        request: Message,
        timeout_s: float | None = _CALL_TIMEOUT_S,
        metadata: Metadata = (),
    ) -> Any:
        """The single response to `request`; `timeout_s` None waits without a limit."""
        async with self._our_errors():
            return await self._begin(name, request, timeout_s, metadata)

    async def server_info(
        self, timeout_s: float = _CALL_TIMEOUT_S
    ) -> tuple[pb.GetServerInfoResponse, bool]:
        """Returns the server's report about itself, and whether the server is a Weft server."""
        async with self._our_errors():
            call = self._begin("GetServerInfo", _INFO_REQUEST, timeout_s)
            answer = await call
            headers = {name for name, _ in await call.initial_metadata()}
        return answer, VERSION_METADATA in headers

    async def stream(
        self, name: str, request: Message, metadata: Metadata = ()
    ) -> AsyncGenerator[Any, None]:
        """The answers to `request`. Closing the generator cancels the call.

        Raises `EngineLost` if the server is lost and another one can continue the request.
        """
        call = self._begin(name, request, None, metadata)
        self._streams.add(call)
        try:
            async with self._our_errors():
                async for response in call:
                    yield response
        except asyncio.CancelledError:
            if call in self._streams:
                raise
            raise await self._dropped(call) from None
        except Unavailable as error:
            raise await _lost(call, error) from error.__cause__
        finally:
            self._streams.discard(call)
            call.cancel()

    async def _dropped(self, call: Any) -> Unavailable:
        """Returns the error for the reader of a stream that `drop_streams` has ended."""
        if not self._is_draining:
            return await _lost(call, Unavailable(f"{self.target} does not answer"))
        error = await _lost(call, Unavailable(f"{self.target} is draining"))
        return (
            EngineDrained(str(error), error.fingerprint) if isinstance(error, EngineLost) else error
        )

    def drop_streams(self, *, is_draining: bool) -> None:
        """Ends all streams, because the server is draining or does not answer."""
        self._is_draining = is_draining
        for call in list(self._streams):
            self._streams.discard(call)
            call.cancel()

    async def close(self) -> None:
        """End every call."""
        await self._channel.close(None)

    def _begin(
        self, name: str, request: Message, timeout_s: float | None, metadata: Metadata = ()
    ) -> Any:
        """Starts a call: it is awaited for a single response, or iterated for a stream."""
        method = METHODS[name]
        make = self._channel.unary_stream if method.is_streaming else self._channel.unary_unary
        invoke = make(
            method.path, method.request_type.SerializeToString, method.response_type.FromString
        )
        return invoke(request, timeout=timeout_s, metadata=(*self._metadata[name], *metadata))

    @asynccontextmanager
    async def _our_errors(self) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            detail = error.details() or error.code().name
            if error.code() in _RESET_CODES and _RESET in detail:
                raise Unavailable(f"{self.target} has reset the call: {detail}") from error
            # Some servers report a dead engine as INTERNAL only.
            if error.code() is grpc.StatusCode.INTERNAL and not await self._is_healthy():
                raise EngineDead(f"the engine of {self.target} has stopped") from error
            raise to_error(error.code(), detail, error.trailing_metadata() or ()) from error

    async def _is_healthy(self) -> bool:
        """True if the engine works, or the server does not report its health."""
        try:
            answer = await self._begin("HealthCheck", pb.HealthCheckRequest(), _HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return error.code() not in _UNAVAILABLE
        return bool(answer.healthy)


async def _lost(call: Any, error: Unavailable) -> Unavailable:
    """Returns the error for the reader of a stream. A server that has begun a request which others can continue has
    sent its fingerprint.
    """
    headers = await call.initial_metadata() if call.done() else ()
    found = next((value for name, value in headers or () if name == FINGERPRINT_METADATA), "")
    return EngineLost(str(error), str(found)) if found else error


def _read_ca(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the certificate {path}: {error.strerror}") from error
