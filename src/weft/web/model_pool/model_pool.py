"""`ModelPool`: starts the models that requests ask for, and stops others to make room.

Memory is promised in the order in which requests came, so no model can starve another. A model stays at least
`PoolLimits.min_stay_s`, so requests for many models in turn cannot keep the server loading.
"""

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from weft.core.errors import (
    ConfigError,
    FailedPrecondition,
    ModelLoading,
    ModelNotStarted,
    NotFound,
    Unavailable,
    WeftError,
)
from weft.core.observe.progress import Progress
from weft.web.model_pool.memory_queue import MemoryQueue
from weft.web.model_pool.pooled_model import (
    Clock,
    Examined,
    ModelSource,
    ModelState,
    PooledModel,
    PoolLimits,
    count_states,
)
from weft.web.served import ModelFacts, Served

log = logging.getLogger("weft.web")

_MAX_SHOWN = 64  # characters of an unknown name in an error
_MAX_LISTED = 20
_RETRY_S = 5.0  # after a failed start, requests get the same error for so long
Report = Callable[[str], Awaitable[None]]


class ModelPool:
    """The models of a server, owned by one event loop. The first one is the default.

    Users of a model are counted: a model is stopped only when it has none, so no answer is cut to make room.
    """

    def __init__(
        self, sources: Sequence[ModelSource], limits: PoolLimits, clock: Clock | None = None
    ) -> None:
        self.entries = tuple(map(PooledModel, sources))
        self.limits = limits
        self._clock: Clock = clock or asyncio.get_running_loop()
        self._by_name: dict[str, PooledModel] = {}
        self._memory = MemoryQueue(self.entries, limits, self._clock, self._retire)
        self._tasks: set[asyncio.Task[None]] = set()
        # `close` waits for these, instead of cancelling them.
        self._stops: set[asyncio.Task[None]] = set()
        self._is_closed = False
        for entry in self.entries:
            for name in entry.source.names:
                if name in self._by_name:
                    raise ConfigError(
                        f"two models have the name {name}; give one of them another name"
                    )
                self._by_name[name] = entry

    # -- names ----------------------------------------------------------------------------------

    @property
    def default(self) -> PooledModel:
        """The model of requests that name none."""
        return self.entries[0]

    @property
    def used_bytes(self) -> int:
        """Memory of the models that are in memory, and of those that were promised room."""
        return self._memory.used_bytes

    def find(self, name: str | None) -> PooledModel:
        """Returns the model with this name or with an adapter of this name; the default for None and "". Raises
        `NotFound` for an unknown name.
        """
        if not name:
            return self.default
        entry = self._by_name.get(name) or self._by_name.get(name.removesuffix(":latest"))
        return entry or self._by_adapter(name)

    def _by_adapter(self, name: str) -> PooledModel:
        for entry in self.entries:
            if entry.served is not None and name in entry.served.client.lora_requests:
                return entry
        shown = name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "..."
        known = ", ".join([*self._by_name][:_MAX_LISTED])
        raise NotFound(f"The model {shown!a} does not exist; this server has {known}", "model")

    # -- use ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the pinned models, one after the other; raises the error of one that does not start."""
        for entry in self.entries:
            if entry.source.is_pinned:
                await self.acquire(entry)
                self.release(entry)

    def take(self, entry: PooledModel) -> Served | None:
        """Returns the model for one more user if it is in memory; else None."""
        if entry.state is not ModelState.READY:
            return None
        return self._give(entry)

    async def acquire(
        self, entry: PooledModel, report: Report | None = None, *, within_s: float | None = None
    ) -> Served:
        """Returns the model for one more user, who must `release` it; starts the model if it is not in memory.

        `report` gets a line about the progress now and then. Raises `ModelLoading` after `within_s` seconds, and the
        model's error if the start fails.
        """
        served = self.take(entry)
        if served is not None:
            return served
        self._refuse(entry)
        waiter: asyncio.Future[Served] = asyncio.get_running_loop().create_future()
        entry.waiters[waiter] = self._clock.time()
        self._want(entry)
        try:
            await self._wait(entry, waiter, report, within_s)
            return waiter.result()
        except BaseException:
            self._leave(entry, waiter)
            raise

    async def _wait(
        self,
        entry: PooledModel,
        waiter: asyncio.Future[Served],
        report: Report | None,
        within_s: float | None,
    ) -> None:
        time = asyncio.get_running_loop().time
        deadline = math.inf if within_s is None else time() + within_s
        while not waiter.done():
            left_s = deadline - time()
            if left_s <= 0:
                raise ModelLoading(
                    f"the model {entry.name} is not ready after {within_s:g} s ({self.describe(entry)}); "
                    "send this request again soon"
                )
            await asyncio.wait({waiter}, timeout=min(self.limits.report_s, left_s))
            if report is not None and not waiter.done():
                await report(f"{entry.name}: {self.describe(entry)}")

    def release(self, entry: PooledModel, keep_alive_s: float | None = None) -> None:
        """Ends a use; the model stays in memory for `keep_alive_s` seconds without use, by default as the user of the
        server says.
        """
        entry.num_users -= 1
        entry.used_at = self._clock.time()
        entry.keep_alive_s = entry.source.idle_s if keep_alive_s is None else keep_alive_s
        if entry.num_users:
            return
        if entry.state is ModelState.UNLOADING:
            self._spawn(self._unload(entry), is_stop=True)
        else:
            self._watch_idle(entry)
            self._memory.allot()

    def describe(self, entry: PooledModel) -> str:
        """Returns the progress of a start in words."""
        if entry.room is not None:
            return "waiting for memory"
        return "unloading" if entry.state is ModelState.UNLOADING else entry.progress.describe()

    async def examine_all(self) -> None:
        """Reads the facts of models for the lists of models, one after the other; loads and downloads nothing."""
        for entry in self.entries:
            if entry.known is None and entry.error is None and entry.source.is_local:
                try:
                    await self.examine(entry)
                except ConfigError as error:
                    entry.error, entry.failed_at = str(error), -math.inf

    async def examine(self, entry: PooledModel) -> ModelFacts:
        """Returns the facts of a model, which need not be in memory; raises `ConfigError` if it cannot be served."""
        return entry.facts or (await self._examine(entry, Progress())).facts

    async def _examine(self, entry: PooledModel, progress: Progress) -> Examined:
        examined = await entry.source.examine(progress)
        entry.known, entry.size_bytes = examined.facts, examined.size_bytes
        return examined

    async def unload(self, entry: PooledModel) -> None:
        """Stops a model as soon as its requests have ended; new ones start it again. Raises `FailedPrecondition` for
        a pinned model.
        """
        if entry.source.is_pinned:
            raise FailedPrecondition(f"the model {entry.name} is pinned, and stays in memory")
        if entry.state is ModelState.READY:
            self._retire(entry)
        while entry.state is ModelState.UNLOADING:
            entry.done.clear()
            await entry.done.wait()

    def expire(self, entry: PooledModel) -> None:
        """Stops a model that has no requests, as soon as it has stayed its least time."""
        entry.keep_alive_s = 0
        self._watch_idle(entry)

    def health(self) -> bytes:
        """The number of models in each state, as JSON. Probes need no key, so names are left out."""
        return json.dumps({"models": count_states(self.entries)}).encode()

    async def close(self) -> None:
        """Stops all models. Requests that wait get an error."""
        self._is_closed = True
        self._memory.close()
        for entry in self.entries:
            if entry.idle_timer is not None:
                entry.idle_timer.cancel()
            self._fail_waiters(entry, _closing)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in self.entries:
            if entry.served is not None:
                self._spawn(self._stop(entry), is_stop=True)
        await asyncio.gather(*self._stops)

    def _give(self, entry: PooledModel) -> Served:
        assert entry.served is not None
        entry.num_users += 1
        entry.used_at = self._clock.time()
        if entry.idle_timer is not None:
            entry.idle_timer.cancel()
            entry.idle_timer = None
        return entry.served

    @contextmanager
    def hold(self, entry: PooledModel) -> Iterator[None]:
        """Counts one more user during the block, which begins while the model has another."""
        self._give(entry)
        try:
            yield
        finally:
            self.release(entry, entry.keep_alive_s)

    def _refuse(self, entry: PooledModel) -> None:
        """Raises the error of a start that has just failed: callers who repeat a request must not start processes."""
        if self._is_closed:
            raise _closing()
        if entry.error is not None and self._clock.time() - entry.failed_at < _RETRY_S:
            raise ModelNotStarted(entry.error)

    def _leave(self, entry: PooledModel, waiter: asyncio.Future[Served]) -> None:
        """Ends a wait without use, even if the model was given at the last moment."""
        entry.waiters.pop(waiter, None)
        if waiter.done():
            if not waiter.cancelled() and waiter.exception() is None:
                self.release(entry)
        elif not entry.waiters and entry.room is not None and not entry.source.is_pinned:
            entry.room.cancel()  # nobody wants the model any more: it takes no room from others

    # -- starts ---------------------------------------------------------------------------------

    def _want(self, entry: PooledModel) -> None:
        if entry.state is ModelState.UNLOADED:
            entry.state = ModelState.LOADING
            entry.progress = Progress()
            self._spawn(self._load(entry))

    async def _load(self, entry: PooledModel) -> None:
        began = self._clock.time()
        try:
            examined = await self._examine(entry, entry.progress)
            if not entry.waiters:
                self._end(entry)  # the requests have gone
                return
            await self._memory.wait_for(entry, examined.size_bytes)
            entry.progress.enter("loading the weights", 0.3)
            served = await examined.start(entry.progress)
        except asyncio.CancelledError:
            self._end(entry)
            if self._is_closed:
                raise
        except Exception as error:  # noqa: BLE001 - a model that fails must not stop the others
            self._fail(entry, error)
        else:
            entry.load_s, entry.num_loads = self._clock.time() - began, entry.num_loads + 1
            self._open(entry, replace(served, hold=partial(self.hold, entry)))

    def _open(self, entry: PooledModel, served: Served) -> None:
        entry.served = served
        entry.state, entry.error = ModelState.READY, None
        entry.progress.finish()
        entry.ready_at = entry.used_at = self._clock.time()
        entry.keep_alive_s = entry.source.idle_s
        log.info("the model %s is ready after %.1f s", entry.name, entry.load_s)
        for waiter in entry.waiters:
            if not waiter.done():
                waiter.set_result(self._give(entry))
        entry.waiters.clear()
        self._watch_idle(entry)
        self._spawn(self._watch_engine(entry, served))
        self._memory.allot()

    def _fail(self, entry: PooledModel, error: Exception) -> None:
        if not isinstance(error, WeftError):
            log.error("the model %s did not start", entry.name, exc_info=error)
        text = f"the model {entry.name} did not start: {_reason(error)}"
        log.warning("%s", text)
        entry.error, entry.failed_at = text, self._clock.time()
        entry.num_failures += 1
        self._fail_waiters(entry, lambda: ModelNotStarted(text))
        self._end(entry)

    def _fail_waiters(self, entry: PooledModel, make: Callable[[], WeftError]) -> None:
        """Fails the requests that wait, each with an exception of its own: raised exceptions keep tracebacks."""
        for waiter in entry.waiters:
            if not waiter.done():
                waiter.set_exception(make())
                waiter.exception()  # the request may be gone
        entry.waiters.clear()

    async def _watch_engine(self, entry: PooledModel, served: Served) -> None:
        """Notes the end of an engine; the requests that it had get their errors from its client."""
        await served.client.wait_closed()
        if entry.served is served and entry.state is ModelState.READY:
            # The next request starts the model again at once.
            entry.error, entry.failed_at = str(served.client.dead_error), -math.inf
            entry.num_failures += 1
            log.error("the model %s ended: %s", entry.name, entry.error)
            self._retire(entry)

    # -- ends -----------------------------------------------------------------------------------

    def _retire(self, entry: PooledModel) -> None:
        """Gives the model to no more requests, and stops it when those that have it have ended."""
        entry.state = ModelState.UNLOADING
        if entry.num_users == 0:
            self._spawn(self._unload(entry), is_stop=True)

    async def _unload(self, entry: PooledModel) -> None:
        began = self._clock.time()
        await self._stop(entry)
        log.info("the model %s was unloaded in %.1f s", entry.name, self._clock.time() - began)
        self._end(entry)

    async def _stop(self, entry: PooledModel) -> None:
        served, entry.served = entry.served, None
        try:
            if served is not None:
                await entry.source.stop(served)
        except Exception:  # the model must not stay in its state
            log.exception("the model %s did not stop as it should", entry.name)

    def _end(self, entry: PooledModel) -> None:
        """Handles the end of a model, or of its start: others get its memory, and waiting requests start it again."""
        entry.state, entry.reserved_bytes = ModelState.UNLOADED, 0
        entry.done.set()
        if entry.waiters and not self._is_closed:
            self._want(entry)
        self._memory.allot()

    def _watch_idle(self, entry: PooledModel) -> None:
        """Stops the model if nobody uses it for as long as it is kept; it stays its least time in any case."""
        keep_s = entry.keep_alive_s
        if keep_s is None or keep_s < 0 or entry.source.is_pinned or not entry.is_idle:
            return
        now = self._clock.time()
        at = max(now + keep_s, entry.ready_at + self.limits.min_stay_s)

        def end_idle() -> None:
            if entry.is_idle:
                self._retire(entry)

        if entry.idle_timer is not None:
            entry.idle_timer.cancel()
        entry.idle_timer = self._clock.call_later(at - now, end_idle)

    def _spawn(self, work: Coroutine[Any, Any, None], *, is_stop: bool = False) -> None:
        tasks = self._stops if is_stop else self._tasks
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def _closing() -> Unavailable:
    return Unavailable("the server is shutting down")


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, WeftError) else f"{type(error).__name__}, see the log"
