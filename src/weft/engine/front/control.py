"""`EngineControl`: what a client says to its engine beside requests, and what it knows of its state."""

import asyncio
import itertools
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress

from weft.core.client import EngineClient
from weft.core.config import EngineConfig
from weft.core.engine_info import EngineInfo
from weft.core.errors import BadRequest, EngineDead, Unavailable, WeftError
from weft.core.metrics import Metrics
from weft.core.stats import StepStats
from weft.core.types import EngineLoad, KvEventBatch, LoRARequest, PauseMode
from weft.engine.front.kv_feed import KvEventFeed
from weft.engine.front.lora_table import LoraTable
from weft.engine.front.stat_log import StatLog
from weft.engine.messages import (
    AddLora,
    Call,
    Command,
    Pause,
    Ping,
    Reply,
    ResetPrefixCache,
    Resume,
    Stop,
)

log = logging.getLogger("weft.engine")

STALL_S = 30.0  # an engine that answers nothing for so long is unhealthy; no step takes as long
_LOAD_TIMEOUT_S = 0.5


class EngineControl(EngineClient):
    """The part of `FrontClient` that concerns the engine as a whole."""

    def __init__(self, config: EngineConfig, metrics: Metrics | None) -> None:
        self.vllm_config = config  # by this name to callers written for vLLM
        self.info = EngineInfo.of(config)
        self.model_config = config.model_config
        self._loras = LoraTable(config, self._load_lora, self._send)
        self._metrics = None if metrics is None else metrics.add_engine(config, self._loras.usage)
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._call_ids = itertools.count()
        self._feed = KvEventFeed()
        self._load = EngineLoad()
        self._stats = StepStats()
        self._stat_log = StatLog()
        self._is_paused = False
        self._is_closing = False
        self._dead_error: WeftError | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard_at = time.monotonic()
        self._ping: asyncio.Future[Reply] | None = None
        self._pinged_at: float | None = None  # None once anything was heard since

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hand a command to the engine; never blocks."""

    @abstractmethod
    async def wait_closed(self) -> None:
        """Return when the engine is gone, after `shutdown` or its death."""

    # -- state --------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._dead_error is None and not self._is_closing

    @property
    def is_stopped(self) -> bool:
        return self.errored

    @property
    def errored(self) -> bool:
        """See `EngineClient`. An engine that was told to stop is not in error."""
        return self._dead_error is not None and not self._is_closing

    @property
    def dead_error(self) -> BaseException:
        """See `EngineClient`. A new one each time: a raised exception keeps its traceback."""
        return EngineDead(str(self._dead_error)) if self._dead_error else EngineDead()

    async def check_health(self) -> None:
        """Raise if the engine is dead, or has neither stepped nor answered a ping for long.

        Asks with a ping through the engine's own mailbox; no request is ever queued for it.
        """
        if self._dead_error is not None:
            raise self.dead_error
        now = time.monotonic()
        if self._pinged_at is not None and now - self._pinged_at > STALL_S:
            raise Unavailable(f"the engine has not answered for {now - self._pinged_at:.0f} s")
        if now - self._heard_at > 1.0 and not self._is_closing:
            self._ping_soon()

    async def get_loads(self) -> list[EngineLoad]:
        """See `EngineClient`. A busy engine answers with the load after its last step."""
        self._check_alive()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._ping_soon()), _LOAD_TIMEOUT_S)
        return [self._load]

    def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        self._check_alive()
        return self._feed.subscribe(start_sequence_number)

    async def do_log_stats(self) -> None:
        """See `EngineClient`. An engine that had nothing to do since the last call is not mentioned."""
        line = self._stat_log.line(self._load, self._stats)
        if line is not None:
            log.info("%s", line)

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return self.info.tasks

    # -- control ------------------------------------------------------------------------------

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """See `EngineClient`. `wait_for_inflight_requests` is the older spelling of mode "wait"."""
        if mode not in list(PauseMode):
            allowed = ", ".join(PauseMode)
            raise BadRequest("mode", f"mode must be one of {allowed}, got {mode!r}", mode)
        chosen = PauseMode.WAIT if wait_for_inflight_requests else PauseMode(mode)
        self._is_paused = True
        await self._call(Pause(next(self._call_ids), chosen.value, clear_cache))

    async def resume_generation(self) -> None:
        await self._call(Resume(next(self._call_ids)))
        self._is_paused = False

    async def is_paused(self) -> bool:
        return self._is_paused

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """See `EngineClient`. Without a connector, resetting it has nothing to do and succeeds."""
        del reset_connector
        reply = await self._call(ResetPrefixCache(next(self._call_ids), reset_running_requests))
        return reply.is_done

    # -- adapters -----------------------------------------------------------------------------

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        return self._loras.requests

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        self._check_alive()
        await self._loras.add(lora_request)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        self._check_alive()
        return self._loras.remove(lora_id)

    async def list_loras(self) -> set[int]:
        return self._loras.loaded_ids

    async def pin_lora(self, lora_id: int) -> bool:
        self._check_alive()
        return await self._loras.pin(lora_id)

    def _load_lora(self, lora_id: int, path: str) -> asyncio.Future[Reply]:
        return self._call_soon(AddLora(next(self._call_ids), lora_id, path))

    # -- calls --------------------------------------------------------------------------------

    async def _call(self, command: Call) -> Reply:
        self._check_alive()
        return await self._call_soon(command)

    def _call_soon(self, command: Call) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[command.call_id] = future
        self._send(command)
        return future

    def _ping_soon(self) -> asyncio.Future[Reply]:
        """The one ping that is under way: an engine in a long step must not find a pile of them."""
        if self._ping is None or self._ping.done():
            self._pinged_at = time.monotonic()
            self._ping = self._call_soon(Ping(next(self._call_ids)))
        return self._ping

    # -- for the subclass -----------------------------------------------------------------------

    def _hear(self) -> None:
        """The engine has said something."""
        self._heard_at = time.monotonic()
        self._pinged_at = None

    def _set_load(self, load: EngineLoad) -> None:
        self._load = load
        if self._metrics is not None:
            self._metrics.load = load

    def _on_reply(self, reply: Reply) -> None:
        if reply.load is not None:
            self._set_load(reply.load)
        future = self._calls.pop(reply.call_id, None)
        if future is None or future.done():
            return  # the caller gave up
        future.set_result(reply)

    def _fail_calls(self) -> None:
        """Whoever waits for an answer learns that none will come."""
        for future in self._calls.values():
            if not future.done():
                future.set_exception(self.dead_error)
                future.exception()  # a ping's answer may have nobody waiting for it
        self._calls.clear()

    def _check_alive(self) -> None:
        if self._dead_error is not None:
            raise self.dead_error
        if self._is_closing:
            raise Unavailable("the server is shutting down")

    def _begin_shutdown(self, timeout: float | None) -> bool:
        """Tell the engine to stop; False if it was told before or is dead."""
        if self._is_closing or self._dead_error is not None:
            return False
        self._is_closing = True
        self._send(Stop(timeout or 0.0))
        return True
