"""`python -m tests.attacks.probe serve ...`: `weft`, with a probe on its event loop; or `epp`.

A pause is what the loop's own thread computes between two turns of the probe, and what the process's
other threads compute while it cannot go on: with the interpreter's lock they hold it up. Time in which
it could have gone on, and the system ran somebody else, is neither: a busy machine pauses nobody.
"""

import asyncio
import operator
import os
import sys
import threading
import time
from concurrent.futures import Future
from multiprocessing.connection import Client
from pathlib import Path

import uvloop

from weft.cli.main import main

ADDRESS = "PROBE_ADDRESS"
_TICK_S = 0.002


class Probe:
    """Ticks on a loop from its first turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._schedule: int | None = None  # of the loop's thread, opened by it
        self._pause_s = 0.0
        self._times = (0.0, 0.0, 0.0, 0.0)
        loop.call_soon(self._start)

    def _start(self) -> None:
        self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._times = self._read_times()
        self._tick()

    def _tick(self) -> None:
        self._measure()
        self._loop.call_later(_TICK_S, self._tick)

    def _measure(self) -> None:
        before, self._times = self._times, self._read_times()
        wall_s, own_s, all_s, ready_s = map(operator.sub, self._times, before)
        held_s = min(max(wall_s - own_s - ready_s - _TICK_S, 0), max(all_s - own_s, 0))
        self._pause_s = max(self._pause_s, own_s + held_s)

    def _read_times(self) -> tuple[float, float, float, float]:
        """By the clock, of this thread, of all, and while this thread was ready and did not run."""
        assert self._schedule is not None
        ready_ns = int(os.pread(self._schedule, 100, 0).split()[1])
        return time.perf_counter(), time.thread_time(), time.process_time(), ready_ns / 1e9

    def _take(self) -> float:
        """The longest pause, with the one that has just been: an answer may leave at its end."""
        taken: Future[float] = Future()

        def take() -> None:
            self._measure()
            taken.set_result(self._pause_s)
            self._pause_s = 0.0

        self._loop.call_soon_threadsafe(take)
        return taken.result()

    def serve(self, address: str) -> None:
        """Answer every message with the longest pause since the last, and how far memory grew at its height."""
        base_bytes = 0
        with Client(address) as asker:
            while _says_something(asker):
                asker.send((self._take(), _memory("VmHWM") - base_bytes))
                Path("/proc/self/clear_refs").write_text("5")  # the height is now what there is
                base_bytes = _memory("VmRSS")


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def _says_something(asker) -> bool:
    try:
        asker.recv()
    except (EOFError, OSError):
        return False
    return True


def _probed(make):
    """What makes a loop, and puts a probe on the first one."""
    address = os.environ.pop(ADDRESS, None)

    def make_probed() -> asyncio.AbstractEventLoop:
        nonlocal address
        loop = make()
        if address is not None:
            probe = Probe(loop)
            threading.Thread(target=probe.serve, args=(address,), daemon=True).start()
            address = None
        return loop

    return make_probed


if __name__ == "__main__":
    if sys.argv[1] == "epp":
        asyncio.events.new_event_loop = _probed(asyncio.new_event_loop)
    else:
        uvloop.new_event_loop = _probed(uvloop.new_event_loop)
    main()
