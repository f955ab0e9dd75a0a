"""`ProcessClient`: runs the engine in a child process, so that a crash of the engine does not end this process.

The child reads its configuration from stdin and ends when that pipe closes. Commands and events are sent as msgpack
with fixed schemas over two ZeroMQ sockets in a private directory.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from weft.core.config.engine import EngineConfig
from weft.core.errors import EngineDead, WeftError
from weft.core.observe.metrics import Metrics
from weft.core.values.controls import HUNG_S, STUCK_S
from weft.engine.clients.child import EngineChild
from weft.engine.front.client import FrontClient
from weft.engine.front.event_socket import EventSocket
from weft.engine.ipc.messages import Command, Event
from weft.engine.ipc.weight_files import WeightFiles
from weft.model.open import Checkpoint
from weft.text.tokenizer import Tokenizer

log = logging.getLogger("weft.engine")

_KILL_GRACE_S = (
    5.0  # added to the drain timeout; afterwards an engine that is stuck in a step is killed
)
OnLoading: TypeAlias = Callable[[int, int], None]


class ApartClient(FrontClient):
    """Client of an engine outside this process.

    It waits until the engine has loaded, and kills an engine that hangs.
    """

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer, metrics: Metrics | None = None
    ) -> None:
        super().__init__(config, tokenizer, metrics)
        self._kills: list[asyncio.TimerHandle] = []
        self._watching: asyncio.Task[None] | None = None

    @abstractmethod
    def _kill(self) -> None:
        """Ends the engine at once; idempotent."""

    async def _wait_loaded(self, on_loading: OnLoading) -> None:
        self._on_loading = on_loading
        try:
            await self._ready
        except BaseException:
            self._kill()
            await self.wait_closed()
            raise
        self._watching = asyncio.create_task(self._end_stuck())

    async def _end_stuck(self) -> None:
        await self._calls.stuck()
        log.error("an engine has not answered for %g s, and is killed", STUCK_S)
        self._kill()

    def shutdown(self, timeout: float | None = None) -> None:
        if self._begin_shutdown(timeout):
            self._kill_in((timeout or 0) + _KILL_GRACE_S)

    def _die(self, error: WeftError) -> None:
        super()._die(error)
        self._kill_in(_KILL_GRACE_S)  # an engine that reported its failure should end by itself

    def _end(self, cause: str) -> None:
        """Handles the end of the engine; reports `cause` if the end was neither requested nor explained by the
        engine.
        """
        if self._dead_error is None:
            self._die(self._death(cause))
        for timer in self._kills:
            timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        self._closed.set()

    def _death(self, cause: str) -> WeftError:
        if self._is_closing:
            return EngineDead("the engine was shut down")
        rank = self.vllm_config.data_parallel_rank
        if not self.vllm_config.has_group:
            return EngineDead(
                f"the engine process ended unexpectedly ({cause}); restart the server"
            )
        return EngineDead(f"engine {rank or 0} ended unexpectedly ({cause}); it is started again")

    def _kill_in(self, delay_s: float) -> None:
        """Kills the engine after `delay_s` seconds, unless it has ended by then."""
        self._kills.append(asyncio.get_running_loop().call_later(delay_s, self._kill))


class ProcessClient(ApartClient):
    """Client of an engine in a child process. Made by `start`, inside a running event loop."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        child: EngineChild,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(config, tokenizer, metrics)
        self._child = child
        self._encoder = msgspec.msgpack.Encoder()
        self._events: EventSocket[Event] = EventSocket(child.events, Event, self._on_event)
        self._watcher: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        checkpoint: Checkpoint,
        config: EngineConfig,
        metrics: Metrics | None = None,
        child: EngineChild | None = None,
        on_loading: OnLoading = lambda num_bytes, all_bytes: None,
    ) -> "ProcessClient":
        """Starts the child process and waits until its model is loaded. `child` was already launched with `config`.

        `on_loading` gets the number of loaded bytes of weights and the total number, several times a second.

        Raises `ConfigError` if the child reports that the model cannot run, `EngineDead` if the child dies.
        """
        process = await launched(config) if child is None else child
        try:
            tokenizer = await read_tokenizer(checkpoint)
        except BaseException:
            await process.discard()
            raise
        return await cls.start_with(process, tokenizer, config, metrics, on_loading)

    @classmethod
    async def start_with(
        cls,
        child: EngineChild,
        tokenizer: Tokenizer,
        config: EngineConfig,
        metrics: Metrics | None = None,
        on_loading: OnLoading = lambda num_bytes, all_bytes: None,
    ) -> "ProcessClient":
        """Waits until a child that was launched with `config` has loaded its model; the arguments are those of
        `start`.
        """
        try:
            client = cls(config, tokenizer, child, metrics)
        except BaseException:
            await child.discard()
            raise
        client._watch()
        await client._wait_loaded(on_loading)
        return client

    def _send(self, command: Command) -> None:
        self._child.send(self._encoder.encode(command))

    def _watch(self) -> None:
        self._events.watch()
        self._watcher = asyncio.create_task(self._await_exit())

    async def _await_exit(self) -> None:
        status = await self._child.process.wait()
        await self._events.take_last()
        self._events.leave()
        self._child.close()
        cause = f"signal {-status}" if status < 0 else f"exit status {status}"
        if self._child.is_hung:
            cause = f"it had not answered for {HUNG_S:g} s"
        if self.is_running:
            log.error("the engine process ended: %s", cause)
        self._end(cause)

    def _kill(self) -> None:
        if self._child.process.returncode is None:
            self._child.process.kill()


async def launched(config: EngineConfig, weights: WeightFiles | None = None) -> EngineChild:
    """Spawns and launches an engine process, and returns it while it loads."""
    child = await EngineChild.spawn()
    try:
        await child.launch(config, weights)
    except BaseException:
        await child.discard()
        raise
    return child


async def read_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Reads the tokenizer on a thread: a large vocabulary takes a second, in which health probes must be answered."""
    return await asyncio.to_thread(
        Tokenizer.from_files, checkpoint.tokenizer_files, checkpoint.parsed_tokenizer
    )
