"""`ProcessClient`: the engine in a child process, so that its crash is an event and not our end.

The child gets its configuration on stdin and lives no longer than that pipe. Commands and events are
msgpack of fixed schemas over two ZeroMQ sockets in a private directory.
"""

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
import zmq

from weft.core.config import EngineConfig
from weft.core.errors import ConfigError, EngineDead, WeftError
from weft.core.metrics import Metrics
from weft.engine.front.client import FrontClient
from weft.engine.messages import Command, Event, Failed
from weft.engine.process import MAX_FRAME_BYTES, Launch
from weft.model.open import Checkpoint
from weft.text.tokenizer import Tokenizer

log = logging.getLogger("weft.engine")

_LAST_EVENTS_S = 0.05
# Frames that are handled before anybody else has a turn: an engine may be as fast as we are.
_MAX_FRAMES = 32
# BLAS threads that wait for each other spin: beside other work on two cores, a step of embedded:tiny
# took 6 ms with one thread and 175 ms with two. What the user's environment says comes first.
_ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
_KILL_GRACE_S = 5.0  # beyond the drain: an engine stuck in a step is killed after it


class ProcessClient(FrontClient):
    """Made by `start`, inside a running event loop."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        directory: Path,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(config, tokenizer, metrics)
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._commands: zmq.Socket[bytes] = self._context.socket(zmq.PUSH)
        self._events: zmq.Socket[bytes] = self._context.socket(zmq.PULL)
        for socket in (self._commands, self._events):
            socket.set(zmq.LINGER, 0)
            # Bounded by admission: every command and event belongs to an admitted request.
            socket.set_hwm(0)
        self._events.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._commands.bind(f"ipc://{directory}/commands")
        self._events.bind(f"ipc://{directory}/events")
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Event)
        self._num_frames = 0
        self._failure: Failed | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = asyncio.Event()

    @classmethod
    async def start(
        cls, checkpoint: Checkpoint, config: EngineConfig, metrics: Metrics | None = None
    ) -> "ProcessClient":
        """Start the child and wait until its model is loaded.

        Raises `ConfigError` when the child says that the model cannot run, `EngineDead` when it dies.
        """
        directory = Path(tempfile.mkdtemp(prefix="weft-"))
        process: asyncio.subprocess.Process | None = None
        try:
            process = await _spawn(_launch(directory, config))
            # On a thread: of a large vocabulary it takes a second, and probes are to be answered.
            tokenizer = await asyncio.to_thread(Tokenizer.from_files, checkpoint.tokenizer_files)
            client = cls(config, tokenizer, directory, metrics)
        except BaseException:
            if process is not None and process.returncode is None:
                process.kill()
            shutil.rmtree(directory, ignore_errors=True)
            raise
        client._watch(process)
        try:
            await client._ready
        except BaseException:
            client._kill()
            await client.wait_closed()
            if client._failure is not None and client._failure.is_config:
                raise ConfigError(client._failure.message) from None
            raise
        return client

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine."""
        return None if self._process is None else self._process.pid

    def shutdown(self, timeout: float | None = None) -> None:
        """See `EngineClient`."""
        if self._begin_shutdown(timeout):
            self._tasks.append(
                asyncio.create_task(self._kill_after((timeout or 0) + _KILL_GRACE_S))
            )

    async def wait_closed(self) -> None:
        """See `EngineClient`."""
        await self._closed.wait()

    def _send(self, command: Command) -> None:
        self._commands.send(self._encoder.encode(command), zmq.NOBLOCK)

    def _watch(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        # Not zmq.asyncio: its futures cost more than a frame's decoding.
        self._loop.add_reader(self._events.fileno(), self._take_events)
        self._take_events()
        self._tasks.append(asyncio.create_task(self._await_exit(process)))

    def _take_events(self) -> None:
        """Handle what has arrived. The socket's file says once that something has, so all must be taken."""
        for _ in range(_MAX_FRAMES):
            if self._events.closed or not int(self._events.get(zmq.EVENTS)) & zmq.POLLIN:
                return
            self._num_frames += 1
            event = self._decoder.decode(self._events.recv(zmq.NOBLOCK))
            if isinstance(event, Failed):
                self._failure = event
            self._on_event(event)
        self._loop.call_soon(self._take_events)

    async def _await_exit(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        num_frames = None
        while num_frames != self._num_frames:  # what it said just before it left
            num_frames = self._num_frames
            await asyncio.sleep(_LAST_EVENTS_S)
        self._die(self._death(status))
        self._close_sockets()
        self._closed.set()

    def _death(self, status: int) -> WeftError:
        if self._is_closing:
            return EngineDead("the engine was shut down")
        if self._failure is not None:
            return EngineDead(f"the engine has stopped: {self._failure.message}")
        cause = f"signal {-status}" if status < 0 else f"exit status {status}"
        log.error("the engine process ended: %s", cause)
        return EngineDead(f"the engine process ended unexpectedly ({cause}); restart the server")

    async def _kill_after(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _close_sockets(self) -> None:
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._loop.remove_reader(self._events.fileno())
        self._commands.close()
        self._events.close()
        self._context.term()
        shutil.rmtree(self._directory, ignore_errors=True)


def _launch(directory: Path, config: EngineConfig) -> Launch:
    """The child logs at our level."""
    return Launch(directory=str(directory), config=config, log_level=log.getEffectiveLevel())


async def _spawn(launch: Launch) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "weft.engine.process",
        stdin=asyncio.subprocess.PIPE,
        env=_ONE_BLAS_THREAD | os.environ,
    )
    assert process.stdin is not None
    process.stdin.write(launch.to_frame())
    with suppress(ConnectionError):  # it died already: `_await_exit` will say so
        await process.stdin.drain()
    return process
