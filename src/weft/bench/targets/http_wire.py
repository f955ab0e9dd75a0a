"""HTTP requests to the server under load: one persistent connection for each simultaneous request.

With httpx2, a thousand simultaneous requests took 3.3 ms of CPU time each, which was added to every TTFT; with this
module they take 0.3 ms (200 at once: 1.4 and 0.2 ms; 3 messages each, on two cores).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from weft.core.errors import ConfigError, Unavailable
from weft.http.client import BadResponse, Connection, Limits, Response
from weft.http.tls import client_tls

_CONNECT_TIMEOUT_S = 30.0
_LIMITS = Limits()  # bodies of any length


class HttpWire:
    """Connections to one server; all requests have the same headers."""

    def __init__(self, base_url: str, headers: Mapping[str, str], *, is_insecure: bool) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"--base-url {base_url}: must be http(s)://HOST:PORT")
        self.base_url = base_url
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._prefix = url.path.rstrip("/")
        self._ssl = client_tls(is_insecure=is_insecure) if url.scheme == "https" else None
        lines = (f"{name}: {value}\r\n" for name, value in {"host": url.netloc, **headers}.items())
        self._headers = "".join(lines)
        self._idle: list[Connection] = []

    @asynccontextmanager
    async def request(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[Response]:
        """Sends a request and yields the response. If the response is not read to its end, the connection is closed.
        Raises `Unavailable` if the connection breaks.
        """
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}content-length: {len(body)}\r\n\r\n"
        connection: Connection | None = None
        can_follow = False
        try:
            connection = await self._connected()
            response = await connection.send(head.encode("latin-1") + body, _LIMITS)
            yield response
            can_follow = response.can_follow
        except (OSError, BadResponse) as error:
            raise Unavailable(f"{self.base_url}: {error or type(error).__name__}") from error
        finally:
            if connection is not None:
                if can_follow:
                    self._idle.append(connection)
                else:
                    connection.close()

    def close(self) -> None:
        """Closes idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def _connected(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.close()
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            return await Connection.open(self._host, self._port, self._ssl)
