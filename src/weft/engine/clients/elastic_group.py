"""`ElasticGroup`: starts several engines, restarts the ones that die, and adds or removes engines."""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

from weft.compute.backends import backend_of
from weft.core.aio.pauses import Pauses, warn_not_started
from weft.core.aio.tasks import gather_all, gather_available
from weft.core.checks.validate import check_integer, check_number
from weft.core.config.elastic import MAX_DRAIN_S, refuse_scaling
from weft.core.config.engine import EngineConfig
from weft.core.config.ranks import local_ranks, served_ranks
from weft.core.engine_info import EngineInfo
from weft.core.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Overloaded,
    Unavailable,
)
from weft.core.observe.kv_feed import KvEventFeed
from weft.core.observe.metrics import Metrics
from weft.core.observe.readable import format_bytes
from weft.core.values.types import AllBlocksCleared, KvEvent
from weft.engine.clients.child import EngineChild
from weft.engine.clients.engine_group import EngineGroup
from weft.engine.clients.process_client import OnLoading, ProcessClient, launched
from weft.engine.front.client import FrontClient
from weft.engine.front.kv_publisher import KvEventStream
from weft.engine.front.prefix_index import PrefixIndex
from weft.engine.ipc.weight_files import WeightFiles
from weft.engine.start.configure import MAX_DATA_PARALLEL_SIZE
from weft.text.prepare import InputProcessor
from weft.text.tokenizer import Tokenizer

log = logging.getLogger("weft.engine")

# Weight of an unfinished answer in the backlog, in prompt tokens: about what a short answer has still to generate.
ANSWER_TOKENS = 64


@dataclass(slots=True, eq=False)
class Rank:
    """One of several engines. `client` is None while the engine is down. `events` is the stream for ZeroMQ
    subscribers.

    A draining rank takes no more requests. `idle` is set while no request of the rank is followed (`num_open` is
    0).
    """

    number: int
    client: FrontClient | None = None
    supervisor: asyncio.Task[None] | None = None
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    events: KvEventStream | None = None
    chosen_at: int = 0
    is_stalled: bool = False
    is_draining: bool = False
    is_leaving: bool = False
    num_open: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def is_live(self) -> bool:
        """True if the engine is running."""
        return self.client is not None and self.client.is_running

    @property
    def engine(self) -> FrontClient:
        """Client of a live rank."""
        assert self.client is not None
        return self.client

    @property
    def backlog(self) -> int:
        """Work to compute here, in prompt tokens."""
        return self.engine.num_uncached_tokens + ANSWER_TOKENS * self.engine.num_open_answers

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Counts a request as open while it is followed."""
        self.num_open += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            if not self.num_open:
                self.idle.set()


class Nodes(Protocol):
    """Other machines, whose engines join the engines of this machine."""

    def expect(self, fingerprint: str) -> None:
        """Sets the fingerprint of the weights that every joining engine must have."""

    async def join(
        self,
        rank: int,
        tokenizer: Tokenizer,
        metrics: Metrics | None,
        on_loading: OnLoading = ...,
    ) -> FrontClient:
        """Waits until the engine of that rank has joined and loaded; returns its client."""

    def close(self) -> None:
        """Accepts no more engines."""


class ElasticGroup(EngineGroup):
    """Part of `DataParallelClient` that owns the engines."""

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer, metrics: Metrics | None = None
    ) -> None:
        super().__init__()
        self.model_config = config.model_config
        self.renderer: Tokenizer = tokenizer
        self._use(config)
        self._metrics = metrics
        self._ranks = _new_ranks(config, served_ranks(config))
        self._nodes: Nodes | None = None
        self._scaling: asyncio.Task[None] | None = None
        self._feed = KvEventFeed()
        self._is_closing = False

    async def is_tracing_enabled(self) -> bool:
        return self._metrics is not None and self._metrics.tracer is not None

    def _use(self, config: EngineConfig) -> None:
        self.vllm_config = config  # the name that callers written for vLLM use
        self.info = EngineInfo.of(config)
        self._inputs = InputProcessor(config, self.renderer)

    async def _start_all(self, ranks: Sequence[Rank], config: EngineConfig) -> None:
        """Starts an engine for each rank; all or none."""
        numbers = [rank.number for rank in ranks]
        children = await launch_all(config, numbers, weights=self._weights)
        await self._open_all(ranks, children, config)

    async def _open_all(
        self,
        ranks: Sequence[Rank],
        children: Sequence[EngineChild],
        config: EngineConfig,
        on_loading: OnLoading = lambda num_bytes, all_bytes: None,
    ) -> None:
        """Waits until the children, which are the first ranks, have loaded and the other ranks have joined. If any
        fails, all are ended.
        """
        loaded = dict.fromkeys(ranks, 0)

        async def open_one(rank: Rank, child: EngineChild | None) -> None:
            def report(num_bytes: int, all_bytes: int) -> None:
                loaded[rank] = num_bytes
                on_loading(sum(loaded.values()), all_bytes * len(ranks))

            if child is not None:
                rank.client = await self._open(config.of_rank(rank.number), child, report)
                if self._nodes is not None:
                    self._nodes.expect(*await rank.client.collective_rpc("fingerprint"))
            elif self._nodes is not None:
                rank.client = await self._nodes.join(
                    rank.number, self.renderer, self._metrics, report
                )

        pairs = zip_longest(ranks, children)
        try:
            await gather_all(open_one(rank, child) for rank, child in pairs)
        except BaseException:
            for rank in ranks:
                await self._end(rank)
            await asyncio.gather(*(child.discard() for child in children))
            raise

    async def _open(
        self, config: EngineConfig, child: EngineChild, on_loading: OnLoading = lambda *_: None
    ) -> ProcessClient:
        return await ProcessClient.start_with(
            child, self.renderer, config, self._metrics, on_loading
        )

    def _clients(self) -> list[FrontClient]:
        """Returns the clients of all engines, draining ones included."""
        return [rank.client for rank in self._ranks if rank.client is not None]

    # -- while it serves ----------------------------------------------------------------------

    async def _supervise(self, rank: Rank) -> None:
        """Follows the events of an engine until it ends, and restarts it with growing pauses."""
        pauses = Pauses()
        while True:
            began_at = time.monotonic()
            await self._take_events(rank)
            await rank.engine.wait_closed()
            if self._is_closing or rank.is_leaving:
                return
            self._forget_blocks(rank)
            pauses.lasted(time.monotonic() - began_at)
            rank.client = None
            while rank.client is None:
                if self._is_elsewhere(rank):
                    log.warning("engine %d has left; it may join again", rank.number)
                else:
                    pause_s = pauses.next_s()
                    log.warning("engine %d is started again in %.3g s", rank.number, pause_s)
                    await asyncio.sleep(pause_s)
                try:
                    await self._restart(rank)
                except Exception as error:  # noqa: BLE001 - whatever failed, the next try may succeed
                    warn_not_started(log, f"engine {rank.number}", error)

    async def _restart(self, rank: Rank) -> None:
        config, weights = self.vllm_config.of_rank(rank.number), self._weights_key
        if self._nodes is not None and self._is_elsewhere(rank):
            client: FrontClient = await self._nodes.join(rank.number, self.renderer, self._metrics)
        else:
            client = await self._open(config, await launched(config, self._weights))
        try:
            await self._catch_up(client)
            self._check_weights(weights)
        except BaseException:
            client.shutdown()
            await client.wait_closed()
            raise
        rank.client, rank.is_stalled = client, False
        # The number of engines changed meanwhile.
        if config != self.vllm_config.of_rank(rank.number):
            await client.use_share(self.vllm_config.of_rank(rank.number))

    def _is_elsewhere(self, rank: Rank) -> bool:
        return self._nodes is not None and rank.number not in local_ranks(self.vllm_config)

    @property
    def _weights_key(self) -> str | None:
        return None if self._weights is None else self._weights.current.key

    def _check_weights(self, key: str | None) -> None:
        """Raises if the weights were replaced since an engine was started: the engine must not join with old
        weights.
        """
        if key != self._weights_key:
            raise Unavailable("the weights were replaced while an engine was started")

    async def _take_events(self, rank: Rank) -> None:
        """Takes in and publishes the cache events of an engine until it ends."""
        while True:
            try:
                async with aclosing(rank.engine.subscribe_kv_events()) as batches:
                    async for batch in batches:
                        rank.prefixes.take(batch.events)
                        self._publish(rank, batch.events)
            except Unavailable:  # the engine is dead or shut down
                return
            except Overloaded:  # events were missed: the index is incomplete
                self._forget_blocks(rank)

    def _forget_blocks(self, rank: Rank) -> None:
        rank.prefixes.clear()
        self._publish(rank, [AllBlocksCleared()])

    def _publish(self, rank: Rank, events: list[KvEvent]) -> None:
        self._feed.publish_next(events, rank.number)
        if rank.events is not None:
            rank.events.publish(events)

    async def _end(self, rank: Rank) -> None:
        """Ends an engine that has no requests, and forgets its state."""
        rank.is_leaving = True
        if rank.client is not None:
            rank.client.shutdown()
            await rank.client.wait_closed()
        elif rank.supervisor is not None:
            rank.supervisor.cancel()
        if rank.supervisor is not None:
            await asyncio.gather(rank.supervisor, return_exceptions=True)
            self._forget_blocks(rank)
        close_events([rank])
        if self._metrics is not None:
            self._metrics.remove_engine(rank.number)

    # -- more or fewer ------------------------------------------------------------------------

    async def scale_elastic_ep(
        self, new_data_parallel_size: int, drain_timeout: float = 300.0
    ) -> None:
        """See `EngineClient`. Once scaling has begun, it goes on if its caller is cancelled."""
        if self.vllm_config.elastic_config is None:
            refuse_scaling()
        check_integer("new_data_parallel_size", new_data_parallel_size, 1, MAX_DATA_PARALLEL_SIZE)
        check_number("drain_timeout", drain_timeout, 0, MAX_DRAIN_S, above=True)
        if self._is_closing:
            raise Unavailable("the server is shutting down")
        if await self.is_scaling_elastic_ep():
            raise Unavailable("the number of engines is being changed already; try again later")
        self._scaling = asyncio.create_task(self._scale(new_data_parallel_size, drain_timeout))
        self._scaling.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._scaling)

    async def is_scaling_elastic_ep(self) -> bool:
        return self._scaling is not None and not self._scaling.done()

    async def _scale(self, size: int, drain_timeout: float) -> None:
        former = len(self._ranks)
        if size == former:
            return
        config = self.vllm_config.of_size(size)
        if size > former:
            await self._add(config)
        else:
            await self._drain(self._ranks[size:], drain_timeout)
            leaving, self._ranks = self._ranks[size:], self._ranks[:size]
            self._use(config)
            await asyncio.gather(*(self._end(rank) for rank in leaving))
        log.info("scaled to %d engines, from %d", size, former)
        shared = self._ranks[: min(size, former)]  # new engines were started with their share
        await gather_available(
            rank.engine.use_share(config.of_rank(rank.number)) for rank in shared if rank.is_live
        )

    async def _add(self, config: EngineConfig) -> None:
        """Starts the missing engines; if one fails, none joins."""
        numbers = range(len(self._ranks), config.data_parallel_size)
        _check_room(config, len(numbers))
        ranks = _new_ranks(config, numbers)
        weights = self._weights_key
        try:
            await self._start_all(ranks, config)
        except BaseException:
            close_events(ranks)
            raise
        try:
            await self._catch_up(*(rank.engine for rank in ranks))
            self._check_weights(weights)
        except BaseException:
            await asyncio.gather(*(self._end(rank) for rank in ranks))
            raise
        self._ranks = [*self._ranks, *ranks]
        self._use(config)
        for rank in ranks:
            rank.supervisor = asyncio.create_task(self._supervise(rank))

    async def _drain(self, ranks: Sequence[Rank], timeout_s: float) -> None:
        """Sends these ranks no more requests, and waits until their open requests are finished."""
        if self._may_be_paused and any(rank.num_open for rank in ranks):
            raise FailedPrecondition(
                "requests of the engines to remove cannot finish while paused: call resume_generation first"
            )
        for rank in ranks:
            rank.is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                for rank in ranks:
                    await rank.idle.wait()
        except BaseException as error:
            for rank in ranks:
                rank.is_draining = False
            if not isinstance(error, TimeoutError):
                raise
            count = sum(rank.num_open for rank in ranks)
            raise DeadlineExceeded(
                f"after {timeout_s:g} s the engines to remove still had {count} open requests; "
                "no engine was removed"
            ) from None


def _new_ranks(config: EngineConfig, numbers: Iterable[int]) -> list[Rank]:
    """Makes all ranks or none: raises `ConfigError` if a rank cannot publish its events."""
    ranks: list[Rank] = []
    try:
        for number in numbers:
            given = config.kv_events_config
            ranks.append(
                Rank(number, events=None if given is None else KvEventStream(given, number))
            )
    except BaseException:
        close_events(ranks)
        raise
    return ranks


def close_events(ranks: Iterable[Rank]) -> None:
    """Stops publishing the events of these ranks."""
    for rank in ranks:
        if rank.events is not None:
            rank.events.close()
            rank.events = None


def _check_room(config: EngineConfig, num_new: int) -> None:
    elastic, size = config.elastic_config, config.data_parallel_size
    assert elastic is not None
    if elastic.num_threads < size:
        raise FailedPrecondition(
            f"{size} engines need at least {size} threads, but --num-threads is {elastic.num_threads}"
        )
    needed, free = num_new * elastic.engine_bytes, backend_of(config).free_bytes()
    if needed > free:
        raise FailedPrecondition(
            f"{size} engines need {format_bytes(needed)} more memory, {format_bytes(elastic.engine_bytes)} for each "
            f"new engine, but only {format_bytes(free)} are free; a smaller --kv-cache-bytes reduces this"
        )


async def launch_all(
    config: EngineConfig,
    numbers: Sequence[int],
    *,
    begun: EngineChild | None = None,
    weights: WeightFiles | None = None,
) -> list[EngineChild]:
    """Launches a process for each rank; all or none. `begun` is the process of the first rank, if it was launched
    already.
    """
    children = [] if begun is None else [begun]
    weights = weights if begun is None else begun.weights
    try:
        for number in numbers[len(children) :]:
            child = await launched(config.of_rank(number), weights)
            children.append(child)
            weights = child.weights
    except BaseException:
        await asyncio.gather(*(child.discard() for child in children))
        raise
    return children
