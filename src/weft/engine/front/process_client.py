"""`ProcessClient`: the engine in a child process, so that its crash is an event and not our end.

The child gets its configuration on stdin and lives no longer than that pipe. Commands and events are
msgpack of fixed schemas over two ZeroMQ sockets in a private directory.
"""

import asyncio
import logging

import msgspec
import zmq

from weft.core.config import EngineConfig
from weft.core.errors import ConfigError, EngineDead, WeftError
from weft.core.metrics import Metrics
from weft.engine.front.child import Child
from weft.engine.front.client import FrontClient
from weft.engine.messages import Command, Event, Failed
from weft.model.open import Checkpoint
from weft.text.tokenizer import Tokenizer

log = logging.getLogger("weft.engine")

_LAST_EVENTS_MS = 50
_KILL_GRACE_S = 5.0  # beyond the drain: an engine stuck in a step is killed after it


class ProcessClient(FrontClient):
    """Made by `start`, inside a running event loop."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        child: Child,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(config, tokenizer, metrics)
        self._child = child
        self._commands, self._events = child.commands, child.events
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Event)
        self._failure: Failed | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = asyncio.Event()

    @classmethod
    async def start(
        cls,
        checkpoint: Checkpoint,
        config: EngineConfig,
        metrics: Metrics | None = None,
        child: Child | None = None,
    ) -> "ProcessClient":
        """Start the child and wait until its model is loaded. `child` was launched with `config` already.

        Raises `ConfigError` when the child says that the model cannot run, `EngineDead` when it dies.
        """
        if child is None:
            child = await Child.spawn()
            await child.launch(config)
        try:
            tokenizer = Tokenizer.from_files(checkpoint.tokenizer_files, checkpoint.library)
            client = cls(config, tokenizer, child, metrics)
        except BaseException:
            await child.discard()
            raise
        client._watch()
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
        return self._child.process.pid

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

    def _watch(self) -> None:
        self._tasks.append(asyncio.create_task(self._read_events()))
        self._tasks.append(asyncio.create_task(self._await_exit()))

    async def _read_events(self) -> None:
        while True:
            await self._events.poll()
            await self._take_events()

    async def _take_events(self) -> None:
        """Handle all that has arrived. Never waits, so a cancelled reader loses nothing."""
        while True:
            try:
                frame = await self._events.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            event = self._decoder.decode(frame)
            if isinstance(event, Failed):
                self._failure = event
            self._on_event(event)

    async def _await_exit(self) -> None:
        status = await self._child.process.wait()
        while await self._events.poll(_LAST_EVENTS_MS):  # what it said just before it left
            await self._take_events()
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
        if self._child.process.returncode is None:
            self._child.process.kill()

    def _close_sockets(self) -> None:
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._child.close()
