"""`EngineControls`: the calls by which an operator pauses, empties and puts to sleep an engine."""

from abc import abstractmethod
from collections.abc import Iterable

from weft.core.client import EngineClient
from weft.core.errors import BadRequest, FailedPrecondition
from weft.core.metrics import EngineMetrics
from weft.core.types import PauseMode, SleepTag
from weft.engine.front.calls import EngineCalls
from weft.engine.messages import Call, Pause, Reply, ResetPrefixCache, Resume, Wake

MAX_SLEEP_LEVEL = 2


class EngineControls(EngineClient):
    """The part of `FrontClient` that only sends calls and waits for their replies."""

    _calls: EngineCalls
    _metrics: EngineMetrics | None
    _is_paused = False
    _sleep_level = 0

    @abstractmethod
    def _check_alive(self) -> None:
        """Raise where no engine is there to answer."""

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """See `EngineClient`. `wait_for_inflight_requests` is the older spelling of mode "wait"."""
        named = _mode(mode)
        chosen = PauseMode.WAIT if wait_for_inflight_requests else named
        await self._pause(Pause(self._calls.next_id(), chosen.value, clear_cache))

    async def resume_generation(self) -> None:
        await self._checked(Resume(self._calls.next_id()))
        self._is_paused = False

    async def is_paused(self) -> bool:
        return self._is_paused

    async def sleep(self, level: int = 1, mode: PauseMode | str = PauseMode.ABORT) -> None:
        if level not in range(MAX_SLEEP_LEVEL + 1):
            message = f"level must be from 0 to {MAX_SLEEP_LEVEL}, got {level!r}"
            raise BadRequest("level", message, level)
        reply = await self._pause(Pause(self._calls.next_id(), _mode(mode).value, False, level))
        if not reply.is_done:
            raise FailedPrecondition("the engine was resumed before it slept")
        self._set_sleep_level(max(level, self._sleep_level))

    async def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        named = list(SleepTag) if tags is None else list(tags)
        for tag in named:
            if tag not in list(SleepTag):
                allowed = ", ".join(SleepTag)
                raise BadRequest("tags", f"tags must be of {allowed}, got {tag!r}", tag)
        reply = await self._checked(Wake(self._calls.next_id(), [str(tag) for tag in named]))
        if reply.is_done:
            self._is_paused = False
            self._set_sleep_level(0)
        return reply.is_done

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """See `EngineClient`. Without a connector, resetting it has nothing to do and succeeds."""
        del reset_connector
        reply = await self._call(ResetPrefixCache(self._calls.next_id(), reset_running_requests))
        return reply.is_done

    def _set_sleep_level(self, level: int) -> None:
        self._sleep_level = level
        if self._metrics is not None:
            self._metrics.sleep_level = level

    async def _pause(self, command: Pause) -> Reply:
        was_paused, self._is_paused = self._is_paused, True
        try:
            return await self._checked(command)
        except FailedPrecondition:
            self._is_paused = was_paused
            raise

    async def _checked(self, command: Call) -> Reply:
        reply = await self._call(command)
        if reply.refusal is not None:
            raise FailedPrecondition(reply.refusal)
        return reply

    async def _call(self, command: Call) -> Reply:
        self._check_alive()
        return await self._calls.send(command)


def _mode(mode: PauseMode | str) -> PauseMode:
    if mode not in list(PauseMode):
        raise BadRequest("mode", f"mode must be one of {', '.join(PauseMode)}, got {mode!r}", mode)
    return PauseMode(mode)
