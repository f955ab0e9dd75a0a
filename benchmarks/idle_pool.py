"""Times the polls of an idle pool: `python benchmarks/idle_pool.py [ENDPOINTS]`.

A server in a process of its own answers at many addresses with a metrics page of 28 KB, as vLLM's. Prints processor
time a poll, polls a second, and their share of a core, of a picker without requests.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

from weft.epp.build import open_picker
from weft.epp.config.options import PickerOptions

_HISTOGRAMS = 10
_WARM_UP_S, _MEASURED_S = 6.0, 8.0


def page() -> Iterator[str]:
    """The series that a picker reads, in the middle of others."""
    for number in range(_HISTOGRAMS):
        if number == _HISTOGRAMS // 2:
            yield from (
                'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n',
                'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n',
                'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.1\n',
                'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="27000"} 1.0\n',
            )
        name = f"vllm:duration_of_the_part_{number}_seconds"
        yield f"# HELP {name} Histogram of a duration.\n# TYPE {name} histogram\n"
        for bound in range(22):
            yield f'{name}_bucket{{engine="0",le="{bound}.5",model_name="organization/a-model-of-8B"}} 12.0\n'


class Server(asyncio.Protocol):
    """Answers each request with the page."""

    _answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, _: bytes) -> None:
        self._transport.write(self._answer)  # type: ignore[attr-defined]


async def serve() -> None:
    """Prints the port, and serves until it is killed."""
    text = "".join(page()).encode()
    Server._answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text
    server = await asyncio.get_running_loop().create_server(Server, "0.0.0.0", 0, backlog=4096)  # noqa: S104 - all of 127.1
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def measure(port: int, num_endpoints: int) -> None:
    """Opens a picker of as many endpoints, and prints what its polls take."""
    polls: list[float] = []  # when the load came
    endpoints = tuple(f"127.1.{n // 250}.{n % 250 + 1}:{port}" for n in range(num_endpoints))
    picker = await open_picker(PickerOptions(endpoints=endpoints))
    picker.pool.on_load(lambda: polls.append(time.monotonic()))
    await asyncio.sleep(_WARM_UP_S)
    before, began_cpu, began = len(polls), time.process_time(), time.monotonic()
    await asyncio.sleep(_MEASURED_S)
    cpu_s, took_s = time.process_time() - began_cpu, time.monotonic() - began
    num_polls = len(polls) - before
    print(
        f"{num_endpoints} endpoints: {cpu_s / num_polls * 1e6:.0f} µs a poll, "
        f"{num_polls / took_s:.0f} polls a second, {100 * cpu_s / took_s:.1f} % of a core"
    )
    await picker.close()


def main() -> None:
    """The server, or the picker before it."""
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
        return
    server = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        asyncio.run(measure(port, int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
