"""The engine's process before it has been told anything."""

import asyncio
import signal
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.busy import PATIENCE_S
from tests.contract.engines import start
from weft.core.errors import ConfigError
from weft.engine.front.child import EngineChild
from weft.engine.front.process_client import ProcessClient


def ignores_interrupts(pid: int) -> bool:
    """Whether Ctrl-C would do nothing to it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = next(line.split()[1] for line in lines if line.startswith("SigIgn"))
    return bool(int(ignored, 16) >> (signal.SIGINT - 1) & 1)


async def test_a_child_that_is_not_launched_ends_by_itself():
    """A front that found no model closes the pipe; the engine then has no complaint."""
    child = await EngineChild.spawn()
    child.process.stdin.close()
    assert await child.process.wait() == 0
    await child.discard()


async def test_a_discarded_child_has_ended():
    """Whatever it was doing; and again changes nothing."""
    child = await EngineChild.spawn()
    await child.discard()
    await child.discard()
    assert not psutil.pid_exists(child.process.pid)


async def test_the_terminal_does_not_end_a_child():
    """Ctrl-C reaches every process of the terminal; it is for the front, which drains."""
    child = await EngineChild.spawn()
    async with asyncio.timeout(PATIENCE_S):  # the process gives no sign of it
        while not ignores_interrupts(child.process.pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    child.process.send_signal(signal.SIGINT)
    child.process.stdin.close()
    assert await child.process.wait() == 0
    await child.discard()


async def test_a_long_temporary_directory_is_no_place_for_sockets(tmp_path, monkeypatch):
    """The system takes paths of about a hundred bytes; the engine's sockets go elsewhere then."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    client = await start(ProcessClient)
    try:
        await client.check_health()
    finally:
        client.shutdown()
        await client.wait_closed()
    assert not list(deep.iterdir())


async def test_without_a_place_for_sockets_the_start_is_refused(tmp_path, monkeypatch):
    """One line that names the variable, whatever the system said."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"no directory for the engine's sockets.*TMPDIR"):
        await start(ProcessClient)
