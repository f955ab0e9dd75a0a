"""`MemoryQueue`: promises memory to models in the order of their requests, and chooses the models that make room."""

import asyncio
from collections.abc import Callable, Sequence

from weft.core.errors import ConfigError
from weft.core.observe.readable import format_bytes
from weft.web.model_pool.pooled_model import Clock, ModelState, PooledModel, PoolLimits


class MemoryQueue:
    """The models of a pool that wait for memory. `retire` ends a model once its requests have ended.

    The first in the queue is the model with the oldest request, and nobody overtakes it: a small model that fits would
    take the memory that a large one waits for.
    """

    def __init__(
        self,
        entries: Sequence[PooledModel],
        limits: PoolLimits,
        clock: Clock,
        retire: Callable[[PooledModel], None],
    ) -> None:
        self._entries = entries
        self._limits = limits
        self._clock = clock
        self._retire = retire
        self._queue: list[PooledModel] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def used_bytes(self) -> int:
        """Memory of the models that have some, or were promised some."""
        return sum(entry.reserved_bytes for entry in self._entries)

    async def wait_for(self, entry: PooledModel, size_bytes: int) -> None:
        """Returns when memory is promised to an examined model; raises `ConfigError` if there can never be enough."""
        self._check(entry, size_bytes)
        entry.room = asyncio.get_running_loop().create_future()
        self._queue.append(entry)
        self.allot()
        try:
            await entry.room
        finally:
            entry.room = None
            self._queue.remove(entry)

    def _check(self, entry: PooledModel, size_bytes: int) -> None:
        others = (each for each in self._entries if each.source.is_pinned and each is not entry)
        pinned = sum(each.reserved_bytes for each in others)
        limit = self._limits.memory_bytes
        if size_bytes + pinned <= limit:
            return
        beside = f", of which pinned models have {format_bytes(pinned)}" if pinned else ""
        raise ConfigError(
            f"it needs {format_bytes(size_bytes)}, and --models-memory is {format_bytes(limit)}{beside}; make the "
            "model smaller with --kv-cache-bytes, --max-model-len or --quantization"
        )

    def allot(self) -> None:
        """Promises memory to models as far as it goes, and makes room for the first one that does not fit; called
        after every event that may change the answer.
        """
        self.close()
        for entry in sorted(self._queue, key=lambda entry: entry.since):
            if entry.room is None or entry.room.done():
                continue
            assert entry.size_bytes is not None, "the model is examined"
            missing = self.used_bytes + entry.size_bytes - self._limits.memory_bytes
            if missing > 0:
                self._make_room(entry, missing)
                return
            entry.reserved_bytes = entry.size_bytes
            entry.room.set_result(None)

    def close(self) -> None:
        """Forgets the plan to try again later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make_room(self, entry: PooledModel, missing: int) -> None:
        """Retires models until enough memory will be free; tries again later if some must stay for now."""
        missing -= sum(
            each.reserved_bytes for each in self._entries if each.state is ModelState.UNLOADING
        )
        now = self._clock.time()
        later = []
        for victim in self._victims():
            if missing <= 0:
                return
            at = self._leaves_at(victim, entry)
            if at <= now:
                missing -= victim.reserved_bytes
                self._retire(victim)
            else:
                later.append(at)
        if missing > 0 and later:
            self._timer = self._clock.call_later(min(later) - now, self.allot)

    def _victims(self) -> list[PooledModel]:
        """Models that may make room: first those without requests, by their last use; then the others, by their
        stay.
        """
        ready = [
            each
            for each in self._entries
            if each.state is ModelState.READY and not each.source.is_pinned
        ]
        return sorted(
            ready, key=lambda each: (False, each.used_at) if each.is_idle else (True, each.ready_at)
        )

    def _leaves_at(self, victim: PooledModel, entry: PooledModel) -> float:
        """Returns the earliest time at which `victim` makes room for `entry`."""
        at = victim.ready_at + self._limits.min_stay_s
        return at if victim.is_idle else max(at, entry.since + self._limits.min_stay_s)
