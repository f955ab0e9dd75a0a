"""HTTP GET of one path of one server over a keep-alive connection; a minimal client for metrics pages."""

import ssl
import zlib

from weft.core.address import join_host_port
from weft.core.aio.turns import Turns
from weft.http.client import BadResponse, Connection, Limits

MAX_BODY_BYTES = 16 << 20
_LIMITS = Limits(body=MAX_BODY_BYTES)
_PIECE_BYTES = 64 << 10


class GetFailed(Exception):
    """Error: the server answered, but not with the page."""


class KeepAliveGet:
    """A connection that is opened when needed and then reused."""

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        *,
        tls: ssl.SSLContext | None = None,
        # Name of the server, if `host` is an address that the name resolved to.
        name: str | None = None,
        key: str | None = None,
    ) -> None:
        self._host, self.port, self._tls, self._name = host, port, tls, name or host
        authorization = "" if key is None else f"Authorization: Bearer {key}\r\n"
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {join_host_port(self._name, port)}\r\nAccept: text/plain\r\n"
            f"{authorization}Accept-Encoding: gzip\r\nUser-Agent: weft-epp\r\n\r\n"
        ).encode("latin-1", "replace")
        self._connection: Connection | None = None

    async def fetch(self) -> bytes:
        """Returns the body of the page. Raises `OSError`, `GetFailed`, or `TimeoutError` after the caller's time
        limit.
        """
        is_reused = self._connection is not None
        try:
            return await self._exchange()
        except OSError:
            self.close()
            if not is_reused:
                raise
        except BaseException:
            # The rest of a half-read response must not be read as the next response.
            self.close()
            raise
        # The server may have closed a reused connection: retry once on a new connection.
        try:
            return await self._exchange()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def _exchange(self) -> bytes:
        if self._connection is None:
            self._connection = await Connection.open(self._host, self.port, self._tls, self._name)
        try:
            response = await self._connection.send(self._request, _LIMITS)
            body = await response.read()
            if not response.can_follow:
                self.close()
            if response.status != 200:
                raise GetFailed(f"status {response.status}")
            is_packed = response.headers.get(b"content-encoding") == b"gzip"
            return await _gunzip(body) if is_packed else body
        except BadResponse as error:
            raise GetFailed(str(error)) from error
        except (ValueError, zlib.error) as error:
            raise GetFailed(f"not an HTTP answer: {error}") from error


async def _gunzip(body: bytes) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    plain = bytearray()
    turns = Turns()
    for start in range(0, len(body), _PIECE_BYTES):
        piece, made = body[start : start + _PIECE_BYTES], _PIECE_BYTES
        # The decompressor may hold more output for the input so far.
        while piece or made == _PIECE_BYTES:
            before = len(plain)
            plain += inflater.decompress(piece, _PIECE_BYTES)
            piece, made = inflater.unconsumed_tail, len(plain) - before
            if len(plain) > MAX_BODY_BYTES:
                raise ValueError("the body is too long")
            await turns.yield_if_due()
    return bytes(plain)
