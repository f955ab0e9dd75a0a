"""After thousands of requests, many of them cut short, a server is as it was before the first."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from statistics import mean
from typing import TypeVar

import psutil
import pytest

from tests import busy
from tests.busy import PATIENCE_S
from tests.cli.running import Server, running
from tests.contract.engines import MODEL, start, stop
from tests.faults.watching import answer_of, generate_request, is_idle, stub_of, until
from tests.soak.footprint import Footprint
from tests.soak.traffic import KINDS, Traffic
from weft.engine.clients.process_client import ProcessClient
from weft.model.open import open_model
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer

NUM_BLOCKS = 32  # so few that requests preempt each other
FLAGS = ("--max-model-len", "256", "--num-gpu-blocks-override", str(NUM_BLOCKS))
CANARY = generate_request([11, 12, 13, 14, 15], max_tokens=20)
NUM_AT_ONCE = 32
POOLED = 8  # a leak would be one for each of hundreds or thousands of requests
MIB = 2**20


class Watched:
    """A server, and what it and its engine cost the machine."""

    def __init__(self, server: Server) -> None:
        self.address = server.address
        self.processes = (psutil.Process(server.process.pid), server.engine)

    def wait_idle(self) -> None:
        """Return when the engine has nothing to do and holds no block."""
        with stub_of(self.address) as stub:
            until(lambda: is_idle(stub), 5)

    def canary(self) -> list[int]:
        """What the server answers to a plain request."""
        with stub_of(self.address) as stub:
            return answer_of(stub, CANARY)

    def counts(self) -> list[tuple[int, int]]:
        """Descriptors and threads, of both."""
        return [(now.num_fds, now.num_threads) for now in map(Footprint.of, self.processes)]


@contextmanager
def watched(*flags: str) -> Iterator[tuple[Watched, list[str]]]:
    """A server; on leaving it is drained, and what it logged is complete."""
    log: list[str] = []
    with running(MODEL, *FLAGS, *flags) as server:
        # A pipe that nobody reads fills up, and then it is the server that waits.
        reader = threading.Thread(target=lambda: log.extend(server.process.stderr or ()))
        reader.start()
        yield Watched(server), log
        server.send(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        reader.join(PATIENCE_S)


T = TypeVar("T")


async def settled(read: Callable[[], T]) -> T:
    """What is read five times in a row: closed connections and ended calls take a moment to go."""
    last, num_same = read(), 1
    async with asyncio.timeout(PATIENCE_S):
        while num_same < 5:
            await asyncio.sleep(0.05)
            now = read()
            last, num_same = now, num_same + 1 if now == last else 1
    return last


async def no_more_than(
    before: list[tuple[int, int]], read: Callable[[], list[tuple[int, int]]]
) -> None:
    """Wait until no more is there than was before, but for threads of pools that are made as they are needed."""
    await busy.until(
        lambda: all(
            now <= then + POOLED
            for pair in zip(read(), before, strict=True)
            for now, then in zip(*pair, strict=True)
        )
    )


def check_log(log: list[str]) -> None:
    """Callers who leave or send nonsense are no errors of the server."""
    errors = [line for line in log if " ERROR " in line or "Traceback" in line]
    assert errors == [], "".join(log)


async def test_some_hundred_requests_leave_nothing():
    """No block, no open request, no descriptor, no thread, no line in the log."""
    with watched() as (server, log):
        expected = server.canary()
        traffic = Traffic(server.address, seed=1)
        await traffic.run(100, at_once=NUM_AT_ONCE)  # whatever is made on first use is made now
        before = await settled(server.counts)
        await traffic.run(500, at_once=NUM_AT_ONCE)
        await asyncio.to_thread(server.wait_idle)
        await no_more_than(before, server.counts)
        assert server.canary() == expected
        assert set(traffic.num_by_kind) == set(KINDS)
        assert traffic.num_compared > 50
    check_log(log)


async def test_deadlines_that_both_sides_see_pass_are_not_logged():
    """The caller has hung up at the moment when it is told: that is nobody's fault."""
    with watched() as (server, log):
        traffic = Traffic(server.address, seed=4, kinds={"runs_out_of_time": 1})
        await traffic.run(1000, at_once=NUM_AT_ONCE)
    check_log(log)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[ProcessClient, str]]:
    """The engine in its process, and the gRPC server on this event loop."""
    client = await start(ProcessClient, num_gpu_blocks_override=NUM_BLOCKS)
    server = RpcServer(client, open_model(MODEL).tokenizer_files, RpcOptions(port=0))
    try:
        yield client, f"127.0.0.1:{await server.start()}"
    finally:
        await server.stop()
        await stop(client)


@pytest.mark.parametrize("num_requests", [400, pytest.param(3000, marks=pytest.mark.slow)])
async def test_no_task_outlives_its_request(num_requests: int):
    """The server's own event loop has as many tasks as before; and blocks were taken by force."""
    async with serving() as (client, address):
        traffic = Traffic(address, seed=2)
        await traffic.run(50, at_once=NUM_AT_ONCE)
        num_tasks = await settled(lambda: len(asyncio.all_tasks()))
        await traffic.run(num_requests, at_once=NUM_AT_ONCE)
        await busy.until(lambda: len(asyncio.all_tasks()) <= num_tasks)
        assert client.num_active_requests == 0
        [load] = await client.get_loads()
        assert (load.num_running, load.num_waiting, load.num_held_blocks) == (0, 0, 0)
        assert load.num_preemptions > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ten_thousand_requests_leave_nothing_and_memory_flat():
    """As above, with a subscriber to KV events; memory is sampled once the ring of those is full.

    Flat: after three thousand to warm up, three thousand add less than half a MiB to the mean of either process over
    the three thousand before. Measured: 0.1 in the engine, 0.2 in the front, where it may be 0.6 once on a busy
    machine; what leaks does so every time.
    """
    with watched() as (server, log):
        expected = server.canary()
        traffic = Traffic(server.address, seed=3)
        subscriber = asyncio.create_task(traffic.follow_kv_events())
        while traffic.num_kv_batches < 10_500:
            await traffic.run(500, at_once=NUM_AT_ONCE)
            # Who leaves ten thousand unread is cut off.
            await settled(lambda: traffic.num_kv_batches)
        before = await settled(server.counts)

        async def three_thousand() -> list[float]:
            """The mean of what each process holds meanwhile, in MiB."""
            samples = []
            for _ in range(6):
                await traffic.run(500, at_once=NUM_AT_ONCE)
                await settled(lambda: traffic.num_kv_batches)
                await asyncio.to_thread(server.wait_idle)
                samples.append([Footprint.of(each).rss_bytes / MIB for each in server.processes])
            return list(map(mean, zip(*samples, strict=True)))

        held = [await three_thousand() for _ in range(3)]
        while not is_flat(*held[-2:]) and len(held) < 6:
            held.append(await three_thousand())
        await no_more_than(before, server.counts)
        assert server.canary() == expected
        assert not subscriber.done()
        subscriber.cancel()
        with suppress(asyncio.CancelledError):
            await subscriber
    check_log(log)
    assert is_flat(*held[-2:]), held
    assert all(now < 1.1 * then for then, now in zip(held[0], held[-1], strict=True)), held


def is_flat(before: list[float], after: list[float]) -> bool:
    """Whether no process holds half a MiB more."""
    return all(now - then < 0.5 for then, now in zip(before, after, strict=True))
