"""The engine's process before it has been told anything."""

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from tests.busy import PATIENCE_S
from tests.contract.engines import GIB, MODEL, start, stop
from tests.model.checkpoints import tensors_of, write_checkpoint
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError, EngineDead
from weft.core.values.types import SamplingParams
from weft.engine.clients.child import EngineChild
from weft.engine.clients.process_client import ProcessClient
from weft.engine.start.configure import resolve
from weft.model.open import open_model


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


async def test_a_discard_that_is_cancelled_frees_the_sockets():
    """A node that is stopped while it ends an engine cancels it."""
    child = await EngineChild.spawn()
    discarding = asyncio.create_task(child.discard())
    await asyncio.sleep(0)  # it has killed the process and awaits its exit
    discarding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await discarding
    assert child.events.closed
    await child.process.wait()


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


@pytest.mark.slow
async def test_an_engine_that_is_given_up_but_does_not_end_is_killed():
    """Here it is stopped, and what it said before was not understood."""
    client = await start(ProcessClient)
    client._child.process.send_signal(signal.SIGSTOP)
    client._on_event(object())
    assert client.errored
    async with asyncio.timeout(PATIENCE_S):
        await client.wait_closed()


async def test_the_sockets_leave_with_their_client(monkeypatch):
    """Their directory too."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        client = await start(ProcessClient)
        assert os.listdir(directory)
        await stop(client)
        assert not os.listdir(directory)


async def test_a_long_temporary_directory_is_no_place_for_sockets(tmp_path, monkeypatch):
    """The system takes paths of about a hundred bytes; the engine's sockets go elsewhere then."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    client = await start(ProcessClient)
    try:
        await client.check_health()
    finally:
        await stop(client)
    assert not list(deep.iterdir())


async def test_the_child_loads_each_tensor_as_it_is_stored(tmp_path):
    """As its front found the model: rounding all to what most of them are is for `--dtype` to ask for."""
    tensors = tensors_of(dtype=np.float16)
    # More than a float16 holds, so that rounding it is an error.
    tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], 1e5, np.float32)
    directory = str(write_checkpoint(tmp_path / "m", tensors=tensors))
    assert open_model(directory).card.dtype == "float16"
    await stop(await start(ProcessClient, model=directory, max_model_len=64))


async def test_an_event_that_cannot_be_handled_ends_the_engine(caplog):
    """Its traceback is in the log; nobody waits for what the event may have said, and nothing is left."""

    def fail(_loaded: int, _all: int) -> None:
        raise ZeroDivisionError

    settings = EngineOptions(model=MODEL, max_model_len=64)
    checkpoint = open_model(MODEL)
    child = await EngineChild.spawn()
    config = resolve(settings, checkpoint.card, GIB)
    await child.launch(config)
    with pytest.raises(EngineDead, match="could not be handled"):
        await ProcessClient.start(checkpoint, config, child=child, on_loading=fail)
    assert child.process.returncode is not None
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info[0] is ZeroDivisionError


async def test_without_a_place_for_sockets_the_start_is_refused(tmp_path, monkeypatch):
    """One line that names the variable, whatever the system said."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"no directory for the engine's sockets.*TMPDIR"):
        await start(ProcessClient)


async def test_a_request_that_comes_just_after_its_engine_died_is_told_so():
    """Nobody has noticed the exit yet, and nobody reads commands any more: that is no internal error."""
    client = await start(ProcessClient)
    commands = client._child._commands
    client._child.process.kill()
    gives_up_at = time.monotonic() + PATIENCE_S
    while commands.poll(0, zmq.POLLOUT):  # and the event loop, which would notice, has no turn
        assert time.monotonic() < gives_up_at
        time.sleep(0.001)  # noqa: ASYNC251
    assert client.is_running
    with pytest.raises(EngineDead, match="ended unexpectedly"):
        await anext(client.generate("hello", SamplingParams(), "a"))
    await stop(client)
