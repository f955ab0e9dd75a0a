"""weft.http.client: responses as servers send them, and as they should not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import pytest

from weft.http.client import BadResponse, Connection, Limits

FREE = Limits()
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
SHORT = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def connected(*answers: bytes) -> AsyncIterator[Connection]:
    """A connection to a server that gives each request the next of the answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):
            for answer in answers:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
            await reader.read()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        connection = await Connection.open("127.0.0.1", server.sockets[0].getsockname()[1], None)
        yield connection
        connection.close()
        await ended.wait()


async def get(connection: Connection, limits: Limits = FREE) -> bytes:
    response = await connection.send(REQUEST, limits)
    return await response.read()


async def test_a_second_response_to_one_request_ends_the_connection():
    """The next request must not get it as its answer."""
    async with connected(SHORT + SHORT) as connection:
        response = await connection.send(REQUEST, FREE)
        assert (await response.read(), response.can_follow) == (b"ok", False)


async def test_bytes_between_two_requests_end_the_connection():
    """They came without a request, and are no answer to the next one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SHORT)
        await was_read.wait()
        writer.write(SHORT)
        ended.set_result(await reader.read())
        writer.close()

    was_read, ended = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        connection = await Connection.open("127.0.0.1", server.sockets[0].getsockname()[1], None)
        assert await get(connection) == b"ok"
        was_read.set()
        assert await ended == b""
        assert not connection.is_open


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 2000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"a" * 2000,
        b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 2000,
        b"HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n",
    ],
)
async def test_a_response_past_a_limit_is_refused_before_it_ends(answer: bytes):
    """Head, trailers, and a body by its length or as it comes: nothing of them grows without a limit."""
    async with connected(answer) as connection:
        with pytest.raises(BadResponse):
            await get(connection, Limits(head=1000, body=1000))


async def test_a_body_that_nobody_reads_stays_with_the_server():
    """Reading pauses, so that a slow reader's memory does not grow; then every byte comes."""
    size = 32 << 20
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
    async with connected(head + bytes(size)) as connection:
        response = await connection.send(REQUEST, FREE)
        while not connection.is_paused:  # noqa: ASYNC110 - the loop's own callbacks make it so
            await asyncio.sleep(0)
        assert sum(map(len, response.unread)) < size // 8
        assert len(await response.read()) == size
        assert response.can_follow


async def test_who_waits_for_a_response_hears_of_the_end_of_the_connection():
    """A server that dies must not leave its clients waiting."""
    async with connected(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbroken") as connection:
        waiting = asyncio.create_task(get(connection))
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(ConnectionError):
            await waiting
