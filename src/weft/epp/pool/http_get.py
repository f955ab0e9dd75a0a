"""A keep-alive HTTP/1.1 GET of one path of one server: enough for scraping, at a tenth of a library's cost.

Polling 100 endpoints every 50 ms takes 7 % of a core, and 68 % with httpx2 (`docs/decisions/0015`,
benchmarks/poll.py).
"""

import asyncio
import contextlib
import ssl
import zlib

from weft.core.address import join_host_port
from weft.epp.pool.turns import Turns

MAX_BODY_BYTES = 16 << 20
_MAX_HEAD_BYTES = 64 << 10
_MAX_TRAILERS = 64
_PIECE_BYTES = 64 << 10


class GetFailed(Exception):
    """The server answered, but not with the page."""


class KeepAliveGet:
    """A connection that is opened when needed and reused."""

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
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def fetch(self) -> bytes:
        """The body; raises `OSError`, `TimeoutError` by the caller's limit, or `GetFailed`."""
        is_reused = self._writer is not None
        try:
            return await self._exchange()
        except (OSError, EOFError):
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
        """Drop the connection."""
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
        self._reader = self._writer = None

    async def _exchange(self) -> bytes:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                self._host,
                self.port,
                ssl=self._tls,
                server_hostname=None if self._tls is None else self._name,
                limit=_MAX_HEAD_BYTES,
            )
        assert self._reader is not None
        self._writer.write(self._request)
        await self._writer.drain()
        try:
            return await self._read_answer(self._reader)
        except (ValueError, zlib.error, asyncio.LimitOverrunError) as error:
            raise GetFailed(f"not an HTTP answer: {error}") from error

    async def _read_answer(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            key.strip().lower(): value.strip()
            for key, _, value in (line.partition(":") for line in lines[1:])
        }
        body = await _read_body(reader, headers)
        if headers.get("connection", "").lower() == "close" or lines[0].startswith("HTTP/1.0"):
            self.close()
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1."):
            raise ValueError("no HTTP/1 status line")
        if parts[1] != "200":
            raise GetFailed(f"status {parts[1]}")
        if headers.get("content-encoding") == "gzip":
            return await _gunzip(body)
        return body


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return await _read_chunks(reader)
    if "content-length" in headers:
        length = int(headers["content-length"])
        if not 0 <= length <= MAX_BODY_BYTES:
            raise ValueError(f"a body of {length} bytes")
        return await reader.readexactly(length)
    body = bytearray()
    while chunk := await reader.read(_PIECE_BYTES):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ValueError("the body is too long")
    return bytes(body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    turns = Turns()
    while size := _chunk_size(await reader.readline()):
        if len(body) + size > MAX_BODY_BYTES:
            raise ValueError("the body is too long")
        body += await reader.readexactly(size)
        await reader.readexactly(2)
        await turns.yield_if_due()  # many chunks may be in the buffer already
    for _ in range(_MAX_TRAILERS):
        if not (await reader.readline()).strip():
            return bytes(body)
    raise ValueError("too many trailers")


def _chunk_size(line: bytes) -> int:
    size = int(line.split(b";")[0], 16)
    if size < 0:
        raise ValueError("a chunk of negative length")
    return size


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
