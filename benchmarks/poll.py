"""Times one poll of a metrics page, in processor time: the picker's own GET beside httpx2's.

And what that is of one core where 100 endpoints are polled every 50 ms, the shortest interval there is.

The server runs in the same process, so its share is in both numbers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import process_time

import httpx2

from weft.epp.pool.http_get import KeepAliveGet

PAGE = b"vllm:num_requests_waiting 0\n" * 700
NUM_POLLS = 2000
POLLS_PER_S = 100 / 0.05


_served: set[asyncio.Task[None] | None] = set()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request of a connection with the page."""
    _served.add(asyncio.current_task())
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(PAGE)}\r\n\r\n".encode()
    while not reader.at_eof():
        try:
            await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            break
        writer.write(head + PAGE)
        await writer.drain()
    writer.close()


async def time_us(poll: Callable[[], Awaitable[object]]) -> float:
    """Microseconds of one poll over a kept connection."""
    await poll()
    started = process_time()
    for _ in range(NUM_POLLS):
        await poll()
    return (process_time() - started) / NUM_POLLS * 1e6


async def main() -> None:
    """Each in turn, three times."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    own = KeepAliveGet("127.0.0.1", port, "/metrics")
    async with httpx2.AsyncClient() as client:

        async def get() -> None:
            async with client.stream("GET", f"http://127.0.0.1:{port}/metrics") as answer:
                async for _ in answer.aiter_bytes():
                    pass

        for _ in range(3):
            own_us, httpx2_us = await time_us(own.fetch), await time_us(get)
            print(
                f"own {own_us:.0f} µs ({own_us * POLLS_PER_S / 1e4:.0f} % of a core), "
                f"httpx2 {httpx2_us:.0f} µs ({httpx2_us * POLLS_PER_S / 1e4:.0f} %)"
            )
    own.close()
    server.close()
    await asyncio.gather(*(task for task in _served if task is not None))


if __name__ == "__main__":
    asyncio.run(main())
