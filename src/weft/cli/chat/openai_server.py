"""Streamed requests to a server that speaks OpenAI's API, over HTTP."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2
import msgspec

from weft.cli.arguments.settings import wrong_key
from weft.cli.chat.connect import check_connect_timeout, nobody_answers
from weft.cli.options import ConnectOptions
from weft.core.errors import BadRequest, ConfigError, Unavailable

_MAX_LINE_BYTES = 2**20
_MAX_BODY_BYTES = 4 * 2**20
_API = "/v1"
T = TypeVar("T")


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    text: str = ""
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = 0


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = 0


class AnswerUsage(msgspec.Struct):
    """Token counts of an answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Error(msgspec.Struct):
    message: str = "no reason given"


class Chunk(msgspec.Struct):
    """An event of a streamed chat completion or text completion."""

    choices: list[_Choice] = []
    usage: AnswerUsage | None = None
    error: _Error | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Refusal(msgspec.Struct):
    error: _Error | str


class OpenAIServer:
    """A server with OpenAI's HTTP API. `model` is the model name in the requests."""

    def __init__(self, http: httpx2.AsyncClient, options: ConnectOptions) -> None:
        self.model = options.model or ""
        self._http = http
        self._options = options

    @classmethod
    @asynccontextmanager
    async def connected(cls, options: ConnectOptions) -> AsyncIterator["OpenAIServer"]:
        """Yields a server at `options.address`. Without `options.model`, requests name the first model that the server
        lists.
        """
        check_connect_timeout(options)
        base = options.address.rstrip("/").removesuffix(_API) + _API
        key = options.api_key
        async with httpx2.AsyncClient(
            base_url=base,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            verify=_trust(options),
            timeout=httpx2.Timeout(None, connect=options.connect_timeout),
        ) as http:
            server = cls(http, options)
            if not server.model:
                server.model = await server._first_model()
            yield server

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Chunk, None]:
        """Yields the events of the streamed answer to `body`; the last event has the token counts."""
        whole = {
            **body,
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with self._answer_to("POST", path, whole) as response:
            async for data in _events(response):
                if data == b"[DONE]":
                    return
                chunk = self._decode(data, Chunk)
                if chunk.error is not None:
                    raise Unavailable(chunk.error.message)
                yield chunk

    async def _first_model(self) -> str:
        async with self._answer_to("GET", "/models", None) as response:
            models = self._decode(await _read(response), _Models)
        if not models.data:
            raise ConfigError(f"{self._options.address} lists no models; choose one with --model")
        return models.data[0].id

    @asynccontextmanager
    async def _answer_to(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[httpx2.Response]:
        """Yields the response to a request. If the server refuses the request, raises the error that the response
        describes.
        """
        try:
            async with self._http.stream(method, path, json=body) as response:
                if not response.is_success:
                    raise self._refusal(response.status_code, await _read(response))
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise nobody_answers(self._options.address) from None
        except httpx2.HTTPError as error:
            raise Unavailable(f"{self._options.address}: {error}") from error

    def _refusal(self, status: int, body: bytes) -> Exception:
        if status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
            return wrong_key(self._options.api_key)
        try:
            error = msgspec.json.decode(body, type=_Refusal).error
            message = error if isinstance(error, str) else error.message
        except msgspec.MsgspecError:
            message = f"{self._options.address} answers with status {status}"
        if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            return Unavailable(message)
        return BadRequest(None, message)

    def _decode(self, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            address = self._options.address
            raise Unavailable(f"{address} does not speak OpenAI's API: {error}") from error


def _trust(options: ConnectOptions) -> ssl.SSLContext | bool:
    if options.grpc_tls_ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=options.grpc_tls_ca)
    except OSError as error:
        raise ConfigError(f"--grpc-tls-ca {options.grpc_tls_ca}: {error}") from error


async def _read(response: httpx2.Response) -> bytes:
    """Returns the response's body. Raises an error above `_MAX_BODY_BYTES`."""
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > _MAX_BODY_BYTES:
            raise Unavailable(f"the response is larger than {_MAX_BODY_BYTES} bytes")
    return body


async def _events(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yields the data of each server-sent event of a response."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            raise Unavailable(f"an event of the response is larger than {_MAX_LINE_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip()
