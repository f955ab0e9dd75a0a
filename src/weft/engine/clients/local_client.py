"""`LocalClient`: runs the engine on a thread of this process, for `weft.LLM` and tests."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial

from weft.compute.pooler import Pooler
from weft.compute.protocols.runner import Runner
from weft.core.config.engine import EngineConfig
from weft.core.errors import ConfigError, EngineDead
from weft.core.observe.metrics import Metrics
from weft.engine.clients.process_client import read_tokenizer
from weft.engine.front.client import FrontClient
from weft.engine.ipc.messages import Command, Event, Failed
from weft.engine.loop import EngineLoop
from weft.engine.weights.draft_model import DraftModel
from weft.engine.weights.engine_model import EngineModel
from weft.engine.weights.packed_cache import PackedCache
from weft.model.open import Checkpoint
from weft.text.tokenizer import Tokenizer

log = logging.getLogger("weft.engine")


class QueueMailbox:
    """Queue of commands from other threads of this process to the engine's thread."""

    def __init__(self) -> None:
        # None is not a command: it only makes `receive` return.
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    def post(self, command: Command) -> None:
        """Adds a command to the queue; never blocks."""
        self._queue.put(command)

    def wake(self) -> None:
        self._queue.put(None)

    def receive(self, timeout_s: float | None) -> list[Command]:
        received: list[Command | None] = []
        try:
            if timeout_s != 0.0:
                received.append(self._queue.get(timeout=timeout_s))
            while True:
                received.append(self._queue.get_nowait())
        except queue.Empty:
            return [command for command in received if command is not None]


class LocalClient(FrontClient):
    """Client of an engine on a thread of this process. Made by `start`, inside a running event loop."""

    _thread: threading.Thread  # the engine's thread; set by `_start`

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer, metrics: Metrics | None = None
    ) -> None:
        super().__init__(config, tokenizer, metrics)
        self._mailbox = QueueMailbox()
        self._event_loop = asyncio.get_running_loop()

    @classmethod
    async def start(
        cls, checkpoint: Checkpoint, config: EngineConfig, metrics: Metrics | None = None
    ) -> "LocalClient":
        """Loads the model and starts the engine. Raises `ConfigError` for a model that cannot run."""
        model = await asyncio.to_thread(
            EngineModel.load, config, checkpoint, packed=PackedCache.of(config)
        )
        model.draft = await asyncio.to_thread(DraftModel.load, config)
        return await cls._start(model, await read_tokenizer(checkpoint), config, metrics)

    @classmethod
    async def start_with(
        cls,
        runner: Runner,
        tokenizer: Tokenizer,
        config: EngineConfig,
        metrics: Metrics | None = None,
        pooler: Pooler | None = None,
    ) -> "LocalClient":
        """Starts the engine with a runner whose model is already loaded; such an engine cannot sleep."""
        return await cls._start(EngineModel(config, runner, pooler), tokenizer, config, metrics)

    @classmethod
    async def _start(
        cls, model: EngineModel, tokenizer: Tokenizer, config: EngineConfig, metrics: Metrics | None
    ) -> "LocalClient":
        client = cls(config, tokenizer, metrics)
        client._thread = threading.Thread(
            target=client._run, args=(model,), name="weft-engine", daemon=True
        )
        client._thread.start()
        await client._ready
        return client

    def shutdown(self, timeout: float | None = None) -> None:
        self._begin_shutdown(timeout)

    async def wait_closed(self) -> None:
        await super().wait_closed()
        self._thread.join()  # the thread holds the model's memory until it ends

    def _send(self, command: Command) -> None:
        self._mailbox.post(command)

    def _run(self, model: EngineModel) -> None:
        """Runs the engine; this is the target function of the engine thread."""
        emit = partial(self._to_event_loop, self._on_event)
        try:
            model.allocate_kv()
            read_tokenizer = self.renderer.to_json
            EngineLoop(self.vllm_config, model, self._mailbox, emit, read_tokenizer).run()
        except ConfigError as error:
            emit(Failed(str(error), is_config=True))
        except Exception as error:  # the thread's outermost function: callers get the reason
            log.exception("the engine has stopped")
            emit(Failed(type(error).__name__))
        self._to_event_loop(self._on_closed)

    def _to_event_loop(self, callback: Callable[..., None], *arguments: Event) -> None:
        try:
            self._event_loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            log.debug("the event loop is closed: an event is dropped")

    def _on_closed(self) -> None:
        self._die(EngineDead("the engine was shut down"))
        self._closed.set()
