"""`EngineGroup`: starts several engines, restarts engines that die, and adds or removes engines."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import zip_longest

from weft.core.aio.failover import Resuming
from weft.core.aio.pauses import Pauses, keep
from weft.core.aio.tasks import gather_all, gather_available
from weft.core.checks.scalars import check_integer, check_number
from weft.core.config.elastic import MAX_DRAIN_S, refuse_scaling
from weft.core.config.engine import EngineConfig
from weft.core.config.ranks import local_ranks, served_ranks
from weft.core.errors import (
    BadRequest,
    EngineDead,
    Overloaded,
    Unavailable,
)
from weft.core.observe.kv_feed import KvEventFeed
from weft.core.observe.metrics import Metrics
from weft.core.values.kv_cache import AllBlocksCleared, KvEvent
from weft.core.values.kv_transfer import HAND_OVER_S
from weft.engine.clients.child import EngineChild
from weft.engine.clients.draining import Draining
from weft.engine.clients.engine_rank import Nodes, Rank, close_events, launch_all, new_ranks
from weft.engine.clients.group_checks import OtherWeights, WeightsIdentity, check_room
from weft.engine.clients.group_controls import GroupControls
from weft.engine.clients.process_client import OnLoading, ProcessClient, launched
from weft.engine.front.client import FrontClient
from weft.engine.start.configure import MAX_DATA_PARALLEL_SIZE
from weft.text.tokenizer import Tokenizer

log = logging.getLogger("weft.engine")


class EngineGroup:
    """The engines of one `DataParallelClient`. `on_config` gets the configuration when the number of engines changes.

    `nodes`, which only a head node has, are closed with the group.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        metrics: Metrics | None,
        on_config: Callable[[EngineConfig], None],
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._on_config = on_config
        self.ranks = new_ranks(config, served_ranks(config))
        self.controls = GroupControls(self.engines, config.weight_transfer_config)
        self.draining = Draining(lambda: self.ranks, lambda: self.controls.may_be_paused)
        self.feed = KvEventFeed()
        self.resuming = Resuming(lambda request: self.able(), lambda: not self.is_closing)
        self._nodes: Nodes | None = None
        self._scaling: asyncio.Task[None] | None = None
        self._identity = WeightsIdentity()
        self.failure: EngineDead | None = None  # set if no engine is started again
        self.is_closing = False
        self.closed = asyncio.Event()

    def use(self, config: EngineConfig) -> None:
        """Replaces the configuration of the group."""
        self._config = config
        self._on_config(config)

    async def start(
        self, children: Sequence[EngineChild], nodes: Nodes | None, on_loading: OnLoading
    ) -> None:
        """Waits until the children have loaded and the other engines have joined, and then supervises all engines."""
        self.controls.weights = children[0].weights if children else None
        self._nodes = nodes
        await self._open_all(self.ranks, children, self._config, on_loading)
        self._supervise_all(self.ranks)

    def clients(self) -> list[FrontClient]:
        """Returns the clients of all live engines, including draining ones."""
        return [rank.client for rank in self.ranks if rank.client is not None]

    def engines(self) -> list[FrontClient]:
        """Returns the clients of the live engines; raises if no engine is live."""
        self.able()
        return [rank.engine for rank in self.ranks if rank.is_live]

    @property
    def dead_error(self) -> BaseException:
        """The error to raise if no engine is live."""
        return self.failure or EngineDead("no engine is running; the engines are being restarted")

    def able(self, number: int | None = None) -> list[Rank]:
        """Returns the ranks that can take requests, or only the rank `number`; raises if there are none."""
        if self.failure is not None:
            raise EngineDead(str(self.failure))
        if self.is_closing:
            raise Unavailable("the server is shutting down")
        ranks = [rank for rank in self.ranks if rank.takes_requests]
        if number is not None:
            ranks = [self._pinned(number)]
        live = [rank for rank in ranks if rank.is_live]
        if not live:
            raise self.dead_error
        return [rank for rank in live if not rank.is_stalled] or live

    def _pinned(self, number: int) -> Rank:
        pinned = next((rank for rank in self.ranks if rank.number == number), None)
        if pinned is None:  # the rank was removed after the check of the request
            raise BadRequest("data_parallel_rank", f"data_parallel_rank {number} does not exist")
        if not pinned.takes_requests:
            raise Unavailable(
                f"engine {number} accepts no requests; it is drained or being removed"
            )
        if not pinned.is_live:
            raise EngineDead(f"engine {number} is not running; it is being restarted")
        return pinned

    # -- starts -------------------------------------------------------------------------------

    async def _start_all(self, ranks: Sequence[Rank], config: EngineConfig) -> None:
        """Starts an engine for each rank; if one fails, none is started."""
        numbers = [rank.number for rank in ranks]
        children = await launch_all(config, numbers, weights=self.controls.weights)
        await self._open_all(ranks, children, config)

    async def _open_all(
        self,
        ranks: Sequence[Rank],
        children: Sequence[EngineChild],
        config: EngineConfig,
        on_loading: OnLoading = lambda num_bytes, all_bytes: None,
    ) -> None:
        """Waits until the children, which are the first ranks, have loaded and the other ranks have joined.

        If a rank fails, all are stopped.
        """
        loaded = dict.fromkeys(ranks, 0)

        async def open_one(rank: Rank, child: EngineChild | None) -> None:
            def report(num_bytes: int, all_bytes: int) -> None:
                loaded[rank] = num_bytes
                on_loading(sum(loaded.values()), all_bytes * len(ranks))

            if child is not None:
                rank.client = await self._open(config.of_rank(rank.number), child, report)
                if self.controls.weights is None:
                    await self._identity.note(rank.client)
                if self._nodes is not None:
                    self._nodes.expect(*await rank.client.collective_rpc("fingerprint"))
            elif self._nodes is not None:
                rank.client = await self._join(self._nodes, rank, report)

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
            child, self._tokenizer, config, self._metrics, on_loading
        )

    async def _join(
        self, nodes: Nodes, rank: Rank, on_loading: OnLoading = lambda *_: None
    ) -> FrontClient:
        on_leaving = partial(self.draining.leave, rank)
        return await nodes.join(rank.number, self._tokenizer, self._metrics, on_loading, on_leaving)

    # -- while it serves ----------------------------------------------------------------------

    def _supervise_all(self, ranks: Iterable[Rank]) -> None:
        for rank in ranks:
            rank.supervisor = asyncio.create_task(self._supervise(rank))

    async def _supervise(self, rank: Rank) -> None:
        """Follows the events of an engine until it ends, and restarts it as often as the configuration allows.

        An engine of another node rejoins by itself.
        """
        is_elsewhere = self._is_elsewhere(rank)
        why = "has left; it may join again" if is_elsewhere else "has ended"

        async def run() -> str | None:
            await self._take_events(rank)
            await rank.engine.wait_closed()
            if self.is_closing or rank.is_leaving:
                return None
            self._forget_blocks(rank)
            rank.client = None
            return why

        pauses = Pauses(0.0, 0.0) if is_elsewhere else Pauses(most=self._config.engine_restarts)

        async def start() -> None:
            try:
                await self._restart(rank)
            except OtherWeights:
                pauses.end()
                raise

        await keep(f"engine {rank.number}", run, start, log, pauses=pauses)
        if not (self.is_closing or rank.is_leaving):
            self._give_up(rank)

    def _give_up(self, rank: Rank) -> None:
        """Notes that an engine is not started again. Without any engine the group ends."""
        rank.is_given_up = True
        if all(rank.is_given_up for rank in self.ranks):
            self.failure = EngineDead(
                "no engine is running, and none is started again; the log has the reasons"
            )
            self.shutdown()

    async def _restart(self, rank: Rank) -> None:
        config, weights = self._config.of_rank(rank.number), self.controls.weights_key
        if self._nodes is not None and self._is_elsewhere(rank):
            client = await self._join(self._nodes, rank)
        else:
            if not self.controls.has_lasting_weights:
                raise OtherWeights("the engine's weights were sent to it, and no file has them")
            if self._metrics is not None and not config.has_ranks:
                self._metrics.remove_engine(rank.number)  # an engine without a rank replaces none
            client = await self._open(config, await launched(config, self.controls.weights))
        try:
            if not self._is_elsewhere(rank):
                await self._identity.check(client)
            await self.controls.catch_up(client)
            self.controls.check_weights(weights)
            # The number of engines changed during the start.
            while config != (share := self._config.of_rank(rank.number)):
                await client.use_share(config := share)
        except BaseException:
            client.shutdown()
            await client.wait_closed()
            raise
        rank.client, rank.is_stalled, rank.is_drained = client, False, False
        self.resuming.announce()

    def _is_elsewhere(self, rank: Rank) -> bool:
        return self._nodes is not None and rank.number not in local_ranks(self._config)

    async def _take_events(self, rank: Rank) -> None:
        """Adds the cache events of an engine to the group's index, and publishes them, until the engine ends."""
        while True:
            try:
                async with aclosing(rank.engine.subscribe_kv_events()) as batches:
                    async for batch in batches:
                        if self._config.has_ranks:
                            rank.prefixes.take(batch.events)
                        self._publish(rank, batch.events)
            except Unavailable:  # the engine is dead or shut down
                return
            except Overloaded:  # events were missed, so the index is incomplete
                self._forget_blocks(rank)

    def _forget_blocks(self, rank: Rank) -> None:
        rank.prefixes.clear()
        self._publish(rank, [AllBlocksCleared()])

    def _publish(self, rank: Rank, events: list[KvEvent]) -> None:
        self.feed.publish_next(events, rank.number)
        if rank.events is not None:
            rank.events.publish(events)

    async def _end(self, rank: Rank) -> None:
        """Stops an engine that has no requests, when others have fetched what it lends them, and drops the group's data
        about it.
        """
        rank.is_leaving = True
        if rank.client is not None:
            rank.client.shutdown(HAND_OVER_S)
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

    async def scale(self, new_data_parallel_size: int, drain_timeout: float) -> None:
        """Changes the number of engines. A change that has begun continues even if its caller is cancelled."""
        if self._config.elastic_config is None:
            refuse_scaling()
        check_integer("new_data_parallel_size", new_data_parallel_size, 1, MAX_DATA_PARALLEL_SIZE)
        check_number("drain_timeout", drain_timeout, 0, MAX_DRAIN_S, above=True)
        if self.is_closing:
            raise Unavailable("the server is shutting down")
        if self.is_scaling:
            raise Unavailable("the number of engines is being changed already; try again later")
        self._scaling = asyncio.create_task(self._scale(new_data_parallel_size, drain_timeout))
        self._scaling.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._scaling)

    @property
    def is_scaling(self) -> bool:
        """True while the number of engines is being changed."""
        return self._scaling is not None and not self._scaling.done()

    async def _scale(self, size: int, drain_timeout: float) -> None:
        former = len(self.ranks)
        if size == former:
            return
        config = self._config.of_size(size)
        if size > former:
            await self._add(config)
        else:
            await self.draining.empty(self.ranks[size:], drain_timeout)
            leaving, self.ranks = self.ranks[size:], self.ranks[:size]
            self.use(config)
            await asyncio.gather(*(self._end(rank) for rank in leaving))
        log.info("scaled to %d engines, from %d", size, former)
        shared = self.ranks[: min(size, former)]  # new engines were started with their share
        await gather_available(
            rank.engine.use_share(config.of_rank(rank.number)) for rank in shared if rank.is_live
        )

    async def _add(self, config: EngineConfig) -> None:
        """Starts the missing engines; if one fails, none joins the group."""
        numbers = range(len(self.ranks), config.data_parallel_size)
        check_room(config, len(numbers))
        ranks = new_ranks(config, numbers)
        weights = self.controls.weights_key
        try:
            await self._start_all(ranks, config)
        except BaseException:
            close_events(ranks)
            raise
        try:
            await self.controls.catch_up(*(rank.engine for rank in ranks))
            self.controls.check_weights(weights)
        except BaseException:
            await asyncio.gather(*(self._end(rank) for rank in ranks))
            raise
        self.ranks = [*self.ranks, *ranks]
        self.resuming.announce()
        self.use(config)
        self._supervise_all(ranks)

    # -- the end ------------------------------------------------------------------------------

    def shutdown(self, timeout: float | None = None) -> None:
        """Stops all engines; `closed` is set when they have stopped."""
        if self.is_closing:
            return
        self.is_closing = True
        self.resuming.announce()
        if self._scaling is not None:
            self._scaling.cancel()
        for rank in self.ranks:
            if rank.client is not None:
                rank.client.shutdown(timeout)
            elif rank.supervisor is not None:
                rank.supervisor.cancel()
        self._closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        tasks = [self._scaling, *(rank.supervisor for rank in self.ranks)]
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)
        self.feed.close(EngineDead("the engines were shut down"))
        close_events(self.ranks)
        if self._nodes is not None:
            self._nodes.close()
        self.closed.set()
