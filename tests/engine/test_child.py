"""The engine's process before it has been told anything."""

import asyncio
import signal
from pathlib import Path

import psutil

from weft.engine.front.child import Child


def ignores_interrupts(pid: int) -> bool:
    """Whether Ctrl-C would do nothing to it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = next(line.split()[1] for line in lines if line.startswith("SigIgn"))
    return bool(int(ignored, 16) >> (signal.SIGINT - 1) & 1)


async def test_a_child_that_is_told_nothing_ends_by_itself():
    """A front that found no model closes the pipe; the engine then has no complaint."""
    child = await Child.spawn()
    child.process.stdin.close()
    assert await child.process.wait() == 0
    await child.discard()


async def test_a_discarded_child_is_gone():
    """Whatever it was doing; and again changes nothing."""
    child = await Child.spawn()
    await child.discard()
    await child.discard()
    assert not psutil.pid_exists(child.process.pid)


async def test_the_terminal_does_not_end_a_child():
    """Ctrl-C reaches every process of the terminal; it is for the front, which drains."""
    child = await Child.spawn()
    async with asyncio.timeout(20):  # the process gives no sign of it
        while not ignores_interrupts(child.process.pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    child.process.send_signal(signal.SIGINT)
    child.process.stdin.close()
    assert await child.process.wait() == 0
    await child.discard()
