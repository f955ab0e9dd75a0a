"""`ApiServer`: requests to Kubernetes' API server, each with limits on bytes and time. lightkube finds the server and
its credentials, in the cluster or from a kubeconfig.

lightkube's watch is not used: it waits for ever on a dead connection, and misses deletions after a 410.
"""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Final

import httpx2
import msgspec

from weft.core.errors import ConfigError
from weft.core.extras import how_to_install

# Below the timeouts of callers: a call that is cancelled during the TLS handshake leaves its connection to the
# garbage collector.
_CONNECT_S: Final = 4.0
_MAX_MESSAGE_BYTES: Final = 64 * 2**10
_MAX_RETRY_AFTER_S: Final = 60.0
EXPIRED: Final = 410
NOT_FOUND: Final = 404
CONFLICT: Final = 409  # the object has changed since it was read


class ApiFailure(Exception):
    """Error of a request to the API server: the HTTP status of the refusal, or 0 if the request failed or the answer
    cannot be read.
    """

    def __init__(self, message: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


# Expected failures of servers and networks; any other exception is a defect, and its traceback is logged.
FORESEEN: Final = (ApiFailure, TimeoutError, msgspec.DecodeError)


class Status(msgspec.Struct, frozen=True):
    """The reason for a refusal, as the API server sends it."""

    message: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    code: int = 0


class ApiServer:
    """A connection to an API server. `namespace` is the namespace of its credentials."""

    def __init__(self, client: httpx2.AsyncClient, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def get(self, path: str, params: Mapping[str, str], max_bytes: int) -> bytes:
        """Returns the whole body of an answer."""
        request = self._client.build_request("GET", path, params=dict(params), timeout=_timeout(10))
        return await self._whole(request, max_bytes)

    async def write(self, method: str, path: str, body: bytes, max_bytes: int) -> bytes:
        """Creates (POST) or replaces (PUT) an object; returns the stored object."""
        headers = {"content-type": "application/json"}
        request = self._client.build_request(
            method, path, content=body, headers=headers, timeout=_timeout(10)
        )
        return await self._whole(request, max_bytes)

    async def _whole(self, request: httpx2.Request, max_bytes: int) -> bytes:
        body = bytearray()
        async with self._answer(request) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > max_bytes:
                    path = request.url.path
                    raise ApiFailure(f"{path}: the answer has more than {max_bytes} bytes")
        return bytes(body)

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], idle_s: float
    ) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        """Streams a response; fails if no byte arrives for `idle_s`."""
        timeout = _timeout(idle_s)
        request = self._client.build_request("GET", path, params=dict(params), timeout=timeout)
        async with self._answer(request) as chunks:
            yield chunks

    @asynccontextmanager
    async def _answer(
        self, request: httpx2.Request
    ) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        path = request.url.path
        try:
            response = await self._client.send(request, stream=True)
        # Includes failures of credentials: of a token file, or of a program that creates a token.
        except Exception as error:
            raise ApiFailure(f"{path}: {error or type(error).__name__}") from error
        try:
            if not response.is_success:
                raise await _failure(path, response)
            yield response.aiter_bytes()
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise ApiFailure(f"{path}: {error or type(error).__name__}") from error
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Closes every connection."""
        await self._client.aclose()


def _timeout(idle_s: float) -> httpx2.Timeout:
    return httpx2.Timeout(idle_s, connect=_CONNECT_S)


async def _failure(path: str, response: httpx2.Response) -> ApiFailure:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MAX_MESSAGE_BYTES:
            break
    try:
        message = msgspec.json.decode(bytes(body), type=Status).message
    except msgspec.DecodeError:
        message = ""
    wait = response.headers.get("retry-after", "")
    wait_s = float(wait) if wait.isascii() and wait.isdigit() else 0.0
    return ApiFailure(
        f"{path}: HTTP {response.status_code} {message or response.reason_phrase}",
        response.status_code,
        min(wait_s, _MAX_RETRY_AFTER_S),
    )


def connect(namespace: str | None) -> ApiServer:
    """Connects to the API server of KUBECONFIG, of the pod's service account, or of ~/.kube/config, in this order.
    Raises `ConfigError`.
    """
    try:
        from lightkube.config import client_adapter, kubeconfig  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            f"Kubernetes discovery needs lightkube: {how_to_install('kubernetes')}"
        ) from error
    path = os.environ.get("KUBECONFIG")
    try:
        found = kubeconfig.KubeConfig
        config = (found.from_file(path) if path else found.from_env()).get()
        assert config is not None, "no context"
        client = client_adapter.AsyncClient(config, client_adapter.ConnectionParams())
    # Lightkube, YAML, msgspec and OpenSSL raise different exceptions for an unusable configuration.
    except Exception as error:
        raise ConfigError(
            f"cannot reach the Kubernetes API server: {error!r}; set KUBECONFIG, or use a pod's "
            "service account or ~/.kube/config"
        ) from error
    return ApiServer(client, namespace or os.environ.get("NAMESPACE") or config.namespace)
