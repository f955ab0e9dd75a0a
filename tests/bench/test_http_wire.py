"""HTTP as servers speak it: weft.bench.targets.http_wire."""

import asyncio
from contextlib import asynccontextmanager, closing

import pytest

from weft.bench.targets.http_wire import HttpWire
from weft.core.errors import ConfigError, Unavailable

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\ndata\r\n3\r\n: x\r\n0\r\n\r\n"
MEASURED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nno."
ENDLESS = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it"


@asynccontextmanager
async def answering(*answers, step=10_000):
    """A server that gives each connection these answers, in pieces of `step` bytes, and then closes."""
    connections = []
    tasks = []

    async def answer(reader, writer):
        tasks.append(asyncio.current_task())
        connections.append([])
        own = connections[-1]
        for given in answers:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break  # the client needs no more
            own.append(head.decode())
            for place in range(0, len(given), step):
                writer.write(given[place : place + step])
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/prefix/"
        with closing(HttpWire(url, {"x-one": "1"}, is_insecure=False)) as wire:
            yield wire, connections
        await asyncio.gather(*tasks, return_exceptions=True)


async def fetch(wire):
    async with wire.request("GET", "/path") as response:
        return response.status, await response.read()


@pytest.mark.parametrize("step", [1, 10_000])
@pytest.mark.parametrize(
    ("given", "status", "body"),
    [(CHUNKED, 200, b"data: x"), (MEASURED, 404, b"no."), (ENDLESS, 200, b"all of it")],
)
async def test_bodies_are_read_however_they_are_framed(given, status, body, step):
    """In chunks, by length, or to the end of the connection; in whatever pieces they come."""
    async with answering(given, step=step) as (wire, connections):
        assert await fetch(wire) == (status, body)
    assert connections[0][0].startswith("GET /prefix/path HTTP/1.1\r\nhost: 127.0.0.1:")
    assert "x-one: 1\r\n" in connections[0][0]


async def test_a_connection_is_used_again():
    """A handshake for each request would be in every TTFT."""
    async with answering(CHUNKED, MEASURED) as (wire, connections):
        assert [await fetch(wire), await fetch(wire)] == [(200, b"data: x"), (404, b"no.")]
    assert len(connections) == 1


async def test_a_connection_that_was_not_read_to_its_end_is_not():
    """What is left would be the next request's answer."""
    long = b"HTTP/1.1 200 OK\r\ncontent-length: 999999\r\n\r\n" + bytes(999999)
    async with answering(long, CHUNKED) as (wire, connections):
        async with wire.request("GET", "/"):
            pass
        status, body = await fetch(wire)
    assert (status, len(body), len(connections)) == (200, 999999, 2)


async def test_what_is_open_at_a_time_has_a_connection_each():
    """Nobody waits for anybody."""
    async with answering(CHUNKED) as (wire, connections):
        await asyncio.gather(*(fetch(wire) for _ in range(20)))
    assert len(connections) == 20


@pytest.mark.parametrize(
    "given", [CHUNKED[:-9], MEASURED[:-1], b"HTTP/1.1 200", b"nonsense\r\n\r\n"]
)
async def test_an_answer_that_breaks_off_is_a_failure(given):
    """It must not look like a short one."""
    async with answering(given) as (wire, _):
        with pytest.raises(Unavailable, match="http://127"):
            await fetch(wire)


async def test_nobody_there_is_a_failure():
    """With the address, so that a wrong one is seen."""
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1"):
        await fetch(HttpWire("http://127.0.0.1:1", {}, is_insecure=False))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "grpc://127.0.0.1:1", "http://"])
def test_an_address_that_is_none_is_refused(url):
    """With its form."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        HttpWire(url, {}, is_insecure=False)
