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
from weft.engine.front.child import EngineChild
from weft.engine.front.client import FrontClient
from weft.engine.messages import Command, Event, Failed
from weft.model.open import Checkpoint
from weft.text.tokenizer import Tokenizer

log = logging.getLogger("weft.engine")

_LAST_EVENTS_S = 0.05
# Frames that are handled before anybody else has a turn: an engine may be as fast as we are.
_MAX_FRAMES = 32
_KILL_GRACE_S = 5.0  # beyond the drain: an engine stuck in a step is killed after it


class ProcessClient(FrontClient):
    """Made by `start`, inside a running event loop."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        child: EngineChild,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(config, tokenizer, metrics)
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._commands, self._events = child.commands, child.events
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Event)
        self._num_frames = 0
        self._failure: Failed | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = asyncio.Event()

    @classmethod
    async def start(
        cls,
        checkpoint: Checkpoint,
        config: EngineConfig,
        metrics: Metrics | None = None,
        child: EngineChild | None = None,
    ) -> "ProcessClient":
        """Start the child and wait until its model is loaded. `child` was launched with `config` already.

        Raises `ConfigError` when the child reports that the model cannot run, `EngineDead` when it dies.
        """
        process = await EngineChild.spawn() if child is None else child
        try:
            if child is None:
                await process.launch(config)
            # On a thread: of a large vocabulary it takes a second, and probes are to be answered.
            tokenizer = await asyncio.to_thread(
                Tokenizer.from_files, checkpoint.tokenizer_files, checkpoint.parsed_tokenizer
            )
            client = cls(config, tokenizer, process, metrics)
        except BaseException:
            await process.discard()
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

    def shutdown(self, timeout: float | None = None) -> None:
        if self._begin_shutdown(timeout):
            self._tasks.append(
                asyncio.create_task(self._kill_after((timeout or 0) + _KILL_GRACE_S))
            )

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def _send(self, command: Command) -> None:
        self._commands.send(self._encoder.encode(command), zmq.NOBLOCK)

    def _watch(self) -> None:
        # Not zmq.asyncio: its futures cost more than a frame's decoding.
        self._loop.add_reader(self._events.fileno(), self._take_events)
        self._take_events()
        self._tasks.append(asyncio.create_task(self._await_exit()))

    def _take_events(self) -> None:
        """Handle what has arrived. The socket's file is readable once for all of it, so all must be taken."""
        for _ in range(_MAX_FRAMES):
            if self._events.closed or not int(self._events.get(zmq.EVENTS)) & zmq.POLLIN:
                return
            self._num_frames += 1
            event = self._decoder.decode(self._events.recv(zmq.NOBLOCK))
            if isinstance(event, Failed):
                self._failure = event
            self._on_event(event)
        self._loop.call_soon(self._take_events)

    async def _await_exit(self) -> None:
        status = await self._child.process.wait()
        num_frames = None
        while num_frames != self._num_frames:  # events sent just before its end
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
        if self._child.process.returncode is None:
            self._child.process.kill()

    def _close_sockets(self) -> None:
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._loop.remove_reader(self._events.fileno())
        self._child.close()
