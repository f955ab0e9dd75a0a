"""Our protocol beside uvicorn's public interface: what a request costs, and what each does with hostile heads.

`python benchmarks/http_server.py`; README.md says how to read the tables. Both serve the same application.
"""

import argparse
import asyncio
import logging
import socket
import statistics
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from weft.web.http.app import HttpApp, Router
from weft.web.http.endpoint import Answer, Call, Endpoint, Events
from weft.web.http.options import HttpOptions
from weft.web.http.server import HttpServer
from weft.web.http.sse import DONE, data_event
from weft.web.http.state import ServerState

SIDES = ("ours", "public")
NUM_EVENTS = 100
HEAD_TIMEOUT_S = 1.0
PATIENCE_S = 3.0
MIB = 1 << 20


class Piece(msgspec.Struct):
    """A body, an answer and an event."""

    text: str


async def _one(call: Call) -> Answer:
    return Piece(call.body.text)


async def _stream(call: Call) -> Answer:
    async def events() -> AsyncGenerator[bytes, None]:
        for _ in range(NUM_EVENTS):
            await asyncio.sleep(0)  # as tokens come: one in each turn of the loop
            yield data_event(call.body)
        yield DONE

    return Events(events())


ENDPOINTS = (
    Endpoint(method="POST", path="/one", handler=_one, summary="One answer.", body=Piece),
    Endpoint(method="POST", path="/stream", handler=_stream, summary="A stream.", body=Piece),
)


async def serve(side: str) -> None:
    """Serve the application until the process is ended; the port is printed."""
    state = ServerState(CollectorRegistry())
    options = HttpOptions(port=0, head_timeout_s=HEAD_TIMEOUT_S)
    model: Any = SimpleNamespace(
        client=SimpleNamespace(model_config=SimpleNamespace(max_model_len=0))
    )
    if side == "ours":
        server = HttpServer(state, options, ())
        print(await server.start(), flush=True)
        server.open(model, ENDPOINTS)
        await asyncio.get_running_loop().create_future()
    app = HttpApp(state, options, Router(()))
    app.open(Router(ENDPOINTS))
    state.open(model)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        ws="none",
        interface="asgi3",
        access_log=False,
        proxy_headers=False,
        log_level=logging.CRITICAL,
        timeout_keep_alive=int(options.keep_alive_s),
        limit_concurrency=options.max_connections,
    )
    await uvicorn.Server(config).serve([listener])


@dataclass(frozen=True)
class Side:
    """A server in a process of its own."""

    port: int
    process: psutil.Process

    def cpu_s(self) -> float:
        """Processor time so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def serving(side: str) -> Iterator[Side]:
    """A running server."""
    command = [sys.executable, __file__, "--serve", side]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Side(int(process.stdout.readline()), psutil.Process(process.pid))
        finally:
            process.kill()


def request(path: str) -> bytes:
    """A small POST."""
    body = msgspec.json.encode(Piece("x" * 100))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def client(port: int, path: str, num_requests: int) -> None:
    """One connection that asks again as soon as it is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = request(path)
    for _ in range(num_requests):
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head, head
        if path == "/stream":
            await reader.readuntil(b"0\r\n\r\n")
        else:
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
    writer.close()


async def cost_us(side: Side, path: str, num_clients: int, num_requests: int) -> float:
    """The server's processor time a request, in microseconds."""
    before = side.cpu_s()
    each = num_requests // num_clients
    await asyncio.gather(*(client(side.port, path, each) for _ in range(num_clients)))
    return (side.cpu_s() - before) / (each * num_clients) * 1e6


POST = b"POST /one HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LINE = b"a: " + b"x" * 1021 + b"\r\n"
# What a client might do, as what it sends and whether it goes on to a whole request.
HOSTILE = {
    "sends nothing": b"",
    "begins a head and stops": POST,
    "sends a head of 1 MiB": POST + LINE * 1024 + b'content-length: 12\r\n\r\n{"text":"x"}',
    "sends 1 MiB behind its body": POST
    + b'transfer-encoding: chunked\r\n\r\nc\r\n{"text":"x"}\r\n0\r\n'
    + LINE * 1024
    + b"\r\n",
    "says its length twice": POST + b'content-length: 12\r\ncontent-length: 12\r\n\r\n{"text":"x"}',
    "says a length and chunked": POST
    + b'content-length: 22\r\ntransfer-encoding: chunked\r\n\r\nc\r\n{"text":"x"}\r\n0\r\n\r\n',
    "names two hosts": POST + b'host: y\r\ncontent-length: 12\r\n\r\n{"text":"x"}',
    "names no host": b"POST /one HTTP/1.1\r\ncontent-type: application/json\r\n"
    b'content-length: 12\r\n\r\n{"text":"x"}',
    "sends 16 MiB of a body of 64": POST + b"content-length: 67108864\r\n\r\n" + b" " * 16 * MIB,
}


async def fate(port: int, sent: bytes) -> str:
    """What becomes of a connection that sends this: a status, closed, reset, or held."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(sent)
            await writer.drain()
            line = await reader.readline()
            return line.split()[1].decode() if line else "closed"
    except TimeoutError:
        return "held"
    except ConnectionError:
        return "reset"
    finally:
        writer.transport.abort()


async def compare(num_rounds: int, num_requests: int) -> None:
    """Print both tables."""
    with serving("ours") as ours, serving("public") as public:
        print("| request | ours, µs | public, µs | ours / public |\n| --- | --- | --- | --- |")
        for path, number in (("/one", num_requests), ("/stream", num_requests // 10)):
            rounds = [
                (await cost_us(ours, path, 16, number), await cost_us(public, path, 16, number))
                for _ in range(num_rounds + 1)
            ][1:]  # the first warms up
            middle = [statistics.median(column) for column in zip(*rounds, strict=True)]
            ratio = statistics.median(mine / theirs for mine, theirs in rounds)
            print(f"| {path} | {middle[0]:.0f} | {middle[1]:.0f} | {ratio:.2f} |")
        print("\n| a client that | ours | public |\n| --- | --- | --- |")
        for name, sent in HOSTILE.items():
            print(f"| {name} | {await fate(ours.port, sent)} | {await fate(public.port, sent)} |")


def main() -> None:
    """Serve one side, or compare both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=4000)
    options = parser.parse_args()
    if options.serve is not None:
        uvloop.run(serve(options.serve))
    else:
        uvloop.run(compare(options.rounds, options.requests))


if __name__ == "__main__":
    main()
