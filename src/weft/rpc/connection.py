"""A channel to one server: its credentials, its calls, and gRPC statuses as our errors."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from weft.core.errors import ConfigError, Unavailable
from weft.rpc.methods import METHODS
from weft.rpc.status import to_error

# A prompt of a long context, or the log-probabilities of one, comes in a single message.
_MAX_MESSAGE_BYTES = 256 * 2**20
_CHANNEL_ARGS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # Long calls that are not streamed are silent; pings find out when the other side is gone.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
_CALL_TIMEOUT_S = 30.0


class Connection:
    """A channel, and the metadata of every call on it."""

    def __init__(self, target: str, *, api_key: str | None, tls_ca: Path | None) -> None:
        self.target = target
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        if tls_ca is None:
            self._channel = grpc.aio.insecure_channel(target, options=_CHANNEL_ARGS)
        else:
            credentials = grpc.ssl_channel_credentials(_read_ca(tls_ca))
            self._channel = grpc.aio.secure_channel(target, credentials, options=_CHANNEL_ARGS)

    async def wait_ready(self, timeout_s: float) -> None:
        """Connect, or raise `Unavailable`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.channel_ready()
        except TimeoutError:
            raise Unavailable(f"no gRPC server answers at {self.target}") from None

    async def call(
        self, name: str, request: Message, timeout_s: float | None = _CALL_TIMEOUT_S
    ) -> Any:
        """The one answer to `request`; `timeout_s` None waits as long as it takes."""
        method = METHODS[name]
        invoke = self._channel.unary_unary(
            method.path, method.request_type.SerializeToString, method.response_type.FromString
        )
        async with _our_errors():
            return await invoke(request, timeout=timeout_s, metadata=self._metadata)

    async def stream(
        self, name: str, request: Message, metadata: Sequence[tuple[str, str]] = ()
    ) -> AsyncGenerator[Any, None]:
        """The answers to `request`. Closing the generator cancels the call."""
        method = METHODS[name]
        invoke = self._channel.unary_stream(
            method.path, method.request_type.SerializeToString, method.response_type.FromString
        )
        call = invoke(request, metadata=(*self._metadata, *metadata))
        try:
            async with _our_errors():
                async for response in call:
                    yield response
        finally:
            call.cancel()

    async def close(self) -> None:
        """End every call."""
        await self._channel.close(None)


@asynccontextmanager
async def _our_errors() -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise to_error(error.code(), error.details() or error.code().name) from error


def _read_ca(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the certificate {path}: {error.strerror}") from error
