"""HTTP server of the metrics port: HTTP/1.1, GET only, one request per connection, with bounded memory."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import parse_qs, urlsplit

from weft.core.callers import HostRule, KeyRing, bearer_key, host_refusal
from weft.core.errors import ConfigError

log = logging.getLogger("weft.epp")

_MAX_HEAD_BYTES: Final = 16 * 2**10
# Maximum number of connections without a request; a further one closes the oldest.
_MAX_SILENT: Final = 64
_MAX_ANSWERED: Final = 64
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Page:
    """An HTTP response."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Render = Callable[[Mapping[str, str]], Page | Awaitable[Page]]


class Guard(Protocol):
    """Authorization for pages by bearer token."""

    async def refusal(self, token: bytes | None, path: str) -> tuple[int, str] | None:
        """Returns the status and the message of a refusal; None if access is allowed."""


class TokenGuard:
    """Allows access with one configured token."""

    def __init__(self, token: str) -> None:
        self._tokens = KeyRing([token])

    async def refusal(self, token: bytes | None, path: str) -> tuple[int, str] | None:
        """Returns 401 and a message without the right token; None with it."""
        if token is not None and self._tokens.is_valid(token):
            return None
        return 401, "the metrics token is needed: send the header authorization: Bearer TOKEN"


class AdminServer:
    """Serves pages by path. A page gets the parameters of the query, with one value per name.

    A guard decides on access, and the Host header must be in `hosts`, except for pages in `public`: health probes have
    no token and use other host names. `files` are static and are checked for the Host header only, because a browser
    needs the page before the user can enter a token.
    """

    def __init__(
        self,
        pages: Mapping[str, Render],
        hosts: HostRule,
        guard: Guard | None = None,
        public: Collection[str] = (),
        files: Mapping[str, Render] | None = None,
    ) -> None:
        self._files = files or {}
        self._pages = {**pages, **self._files}
        self._hosts = hosts
        self._guard = guard
        self._public = frozenset(public)
        self._server: asyncio.Server | None = None
        # Connections without a request yet, oldest first.
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._num_answered = 0

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the bound port. Raises `ConfigError` if the port cannot be bound."""
        try:
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]"), port, limit=_MAX_HEAD_BYTES
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}; "
                "choose another with --metrics-port or --host"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stops listening. Responses that are being sent are cut off; they are short."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                try:
                    head = await self._read_head(reader, writer)
                except asyncio.LimitOverrunError:
                    await _send(writer, _HEAD_TOO_LONG)
                else:
                    await self._respond(writer, head)
        except (OSError, EOFError):
            pass  # the peer has disconnected, or does not read
        finally:
            writer.transport.abort()  # a page that the peer does not read is dropped

    async def _read_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Returns the head of a request. If there are too many connections without a request, the oldest of them is
        closed.
        """
        self._silent[writer] = None
        if len(self._silent) > _MAX_SILENT:
            oldest = next(iter(self._silent))
            oldest.transport.abort()
            del self._silent[oldest]
        try:
            return await reader.readuntil(b"\r\n\r\n")
        finally:
            self._silent.pop(writer, None)

    async def _respond(self, writer: asyncio.StreamWriter, head: bytes) -> None:
        self._num_answered += 1
        try:
            await _send(writer, await self._answer(head))
        finally:
            self._num_answered -= 1

    async def _answer(self, head: bytes) -> Page:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
        if len(words) != 3:
            return _text(400, "not an HTTP request")
        if words[0] != "GET":
            return _text(405, "only GET is allowed")
        try:
            target = urlsplit(words[1])
        except ValueError:
            return _text(400, "the request target must be a path")
        if self._num_answered > _MAX_ANSWERED and target.path not in self._public:
            return _text(503, f"{_MAX_ANSWERED} requests are running; try again")
        if (refusal := await self._refusal(target.path, head)) is not None:
            return refusal
        render = self._pages.get(target.path)
        if render is None:
            return _text(404, f"pages: {', '.join(self._pages)}")
        query = {name: values[-1] for name, values in parse_qs(target.query).items()}
        return await _render(render, query)

    async def _refusal(self, path: str, head: bytes) -> Page | None:
        """Returns the page of a refusal; None if access is allowed."""
        if path in self._public:
            return None
        for host in _headers(head, b"host"):
            if not self._hosts.allows(host.decode("latin-1")):
                return _text(403, host_refusal(host.decode("latin-1")))
        if self._guard is None or path in self._files:
            return None
        token = bearer_key(next(_headers(head, b"authorization"), b""))
        refusal = await self._guard.refusal(token, path)
        return None if refusal is None else _text(*refusal)


def _headers(head: bytes, wanted: bytes) -> Iterator[bytes]:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == wanted:
            yield value.strip()


async def _send(writer: asyncio.StreamWriter, page: Page) -> None:
    """Writes the page, and waits until the peer has received it."""
    writer.write(_encode(page))
    writer.close()
    await writer.wait_closed()


async def _render(render: Render, query: Mapping[str, str]) -> Page:
    try:
        page = render(query)
        return page if isinstance(page, Page) else await page
    except Exception:  # top of a request: the error is logged
        log.exception("an admin page failed")
        return _text(500, "the page failed; the log has the cause")


def _text(status: int, message: str) -> Page:
    return Page(f"{message}\n".encode(), "text/plain; charset=utf-8", status)


_HEAD_TOO_LONG: Final = _text(431, f"the request's head is longer than {_MAX_HEAD_BYTES} bytes")


def _encode(page: Page) -> bytes:
    reason = HTTPStatus(page.status).phrase
    challenge = "www-authenticate: Bearer\r\n" if page.status == HTTPStatus.UNAUTHORIZED else ""
    head = (
        f"HTTP/1.1 {page.status} {reason}\r\ncontent-type: {page.content_type}\r\n{challenge}"
        f"content-length: {len(page.body)}\r\nconnection: close\r\n"
        "x-content-type-options: nosniff\r\n"
    )
    more = "".join(f"{name}: {value}\r\n" for name, value in page.headers.items())
    return f"{head}{more}\r\n".encode("latin-1") + page.body
