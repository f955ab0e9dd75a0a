"""`Offloading`: copies blocks and states between the runner's pool and other places: the second tier, other engines.

Only the engine loop's thread uses this object.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from weft import __version__
from weft.compute.protocols.runner import BlockCopies, Copies, HostBlockCopies, Runner
from weft.core.config.engine import EngineConfig
from weft.core.observe.stats import TransferStats
from weft.core.values.kv_cache import KvEvent
from weft.core.values.kv_transfer import RemotePrompt
from weft.core.values.types import Request, SequenceOutput
from weft.engine.kv.kv_tier import KvTier
from weft.engine.kv.kv_tier_pieces import Arrived
from weft.engine.kv.kv_tier_stores import SIZE_FLAG, DirectoryBlocks, MemoryBlocks
from weft.engine.scheduling.blocks.kv_cache import Content
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import Sequence
from weft.engine.transfer.fetching import KvConsumer
from weft.engine.transfer.joining import ModelLender, block_copies, open_transfer
from weft.engine.weights.engine_model import EngineModel

FIND_S = 5.0  # maximum time at the start to find the blocks of earlier processes
FETCH_CHECK_S = 1.0  # period of checks for a second tier that does not respond
# Maximum time at the end to store the pool's blocks; below the 5 s after which an engine is killed.
FLUSH_S = 3.0

log = logging.getLogger("weft.engine")


def open_tier(config: EngineConfig, model: EngineModel, wake: Callable[[], None]) -> KvTier | None:
    """Opens the second tier; returns None if none is configured. Raises `ConfigError` if the tier cannot be used."""
    wanted = config.kv_offloading_config
    if wanted is None:
        return None
    copies = block_copies(SIZE_FLAG, config, model.runner)
    has_states = config.cache_config.states is not None
    if wanted.path is None:
        return KvTier(MemoryBlocks(), wanted.num_bytes, wake, has_states=has_states)
    # Without an identity of the weights, no other process may find the blocks.
    weights = model.identity() or os.urandom(16).hex()
    block_size, max_model_len = config.cache_config.block_size, config.model_config.max_model_len
    identity = repr((__version__, copies.kv_layout, block_size, max_model_len, weights))
    store = DirectoryBlocks.open(wanted.path, identity)
    log.info("second tier of the KV cache: %s", store.directory)
    tier = KvTier(store, wanted.num_bytes, wake, has_states=has_states)
    tier.wait_until_found(FIND_S)
    return tier


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """All places of blocks outside the pool, as one `SecondTier` for the scheduler.

    `tier` has blocks that were evicted from the pool, `consumer` fetches prompts that other engines have computed,
    `lender` lends blocks to other engines.
    """

    tier: KvTier | None
    consumer: KvConsumer | None
    lender: ModelLender | None

    @property
    def keeps_evicted(self) -> bool:
        return self.tier is not None

    @property
    def is_fetching(self) -> bool:
        """True if a sequence waits for blocks from outside the pool."""
        return any(source.is_fetching for source in self._sources())

    def start_fetch(
        self, sequence: Sequence, block_hashes: list[bytes], num_in_pool: int = 0
    ) -> bool:
        return any(
            source.start_fetch(sequence, block_hashes, num_in_pool) for source in self._sources()
        )

    def num_placed(self, sequence: Sequence) -> int:
        return 0 if self.consumer is None else self.consumer.num_placed(sequence)

    def cancel_fetch(self, sequence: Sequence) -> None:
        for source in self._sources():
            source.cancel_fetch(sequence)

    def forget(self, request: Request) -> None:
        if self.consumer is not None:
            self.consumer.forget(request)

    def clear(self) -> None:
        for source in self._sources():
            source.clear()

    def take_arrived(self) -> list[Arrived]:
        """Returns the pieces that arrived since the last call."""
        return [arrived for source in self._sources() for arrived in source.take_arrived()]

    def take_transfer_stats(self) -> TransferStats | None:
        """Returns statistics of transfers in both directions; None without transfers.

        Received prompts are those since the last call.
        """
        if self.lender is None and self.consumer is None:
            return None
        stats = TransferStats()
        if self.lender is not None:
            self.lender.producer.add_stats(stats)
        if self.consumer is not None:
            self.consumer.take_stats(stats)
        return stats

    def _sources(self) -> tuple[KvConsumer | KvTier, ...]:
        return tuple(source for source in (self.consumer, self.tier) if source is not None)


def open_elsewhere(
    config: EngineConfig, model: EngineModel, wake: Callable[[], None]
) -> Elsewhere | None:
    """Opens the configured tier and transfers; returns None if none are configured.

    Raises `ConfigError` if they cannot be used.
    """
    lender, consumer = open_transfer(config, model, wake)
    tier = open_tier(config, model, wake)
    if tier is None and lender is None and consumer is None:
        return None
    return Elsewhere(tier, consumer, lender)


class Offloading:
    """The engine loop's work, between steps, on blocks outside the pool."""

    def __init__(self, elsewhere: Elsewhere, scheduler: Scheduler) -> None:
        self._elsewhere = elsewhere
        self._scheduler = scheduler

    def timeout_s(self) -> float | None:
        """Returns the maximum time in seconds that the loop may wait for a command; None means without limit."""
        lender = self._elsewhere.lender
        ends_in_s = None if lender is None else lender.producer.ends_in_s
        if not self._elsewhere.is_fetching:
            return ends_in_s
        return FETCH_CHECK_S if ends_in_s is None else min(FETCH_CHECK_S, ends_in_s)

    def end_leases(self) -> list[SequenceOutput]:
        """Returns lent blocks to the pool when other engines have fetched them, or when their lease has expired.

        A request that still computes lent blocks is ended, because no engine will fetch the blocks any more.
        """
        outputs: list[SequenceOutput] = []
        lender, lent = self._elsewhere.lender, self._scheduler.cache.lent
        if lender is not None and lent is not None:
            for request_id in lender.producer.take_ended():
                if lent.is_ahead(request_id):
                    outputs += self._scheduler.abort(request_id)
                else:
                    lent.end(request_id)
        return outputs

    def release(self, source: RemotePrompt) -> None:
        """Releases a prompt's blocks that another engine lends to this engine."""
        if self._elsewhere.consumer is not None:
            self._elsewhere.consumer.release(source)

    def take_events(self) -> list[KvEvent]:
        """Returns the cache events of the second tier since the last call, in order."""
        return [] if self._elsewhere.tier is None else self._elsewhere.tier.take_events()

    def follow_plan(self, runner: Runner | None) -> None:
        """Stores evicted blocks before the next step or a fetch overwrites them; then begins pending fetches."""
        self._store_evicted(runner)
        consumer = self._elsewhere.consumer
        if consumer is not None and consumer.has_pending:
            copies: object = runner
            assert isinstance(copies, HostBlockCopies), "checked at the start"
            consumer.begin_fetches(copies)

    def _store_evicted(self, runner: Runner | None) -> None:
        tier = self._elsewhere.tier
        if tier is None:
            return
        for content in self._scheduler.cache.take_evicted():
            _store(tier, content, runner)

    def take_arrived(self, runner: Runner | None) -> list[SequenceOutput]:
        """Copies arrived pieces into the pool; returns outputs of sequences that failed.

        A sequence that has all its pieces returns to the waiting queue.
        """
        outputs: list[SequenceOutput] = []
        for arrived in self._elsewhere.take_arrived():
            is_taken = self._take(arrived, runner)
            if not is_taken or arrived.is_last:
                outputs += self._scheduler.end_fetch(arrived.sequence, arrived.error)
        return outputs

    def _take(self, arrived: Arrived, runner: Runner | None) -> bool:
        """Copies the next piece of a sequence into the pool; True if the piece is now in the pool."""
        piece, cache = arrived.piece, self._scheduler.cache
        if piece is None or (arrived.data is None and arrived.place is None):
            return False
        adopt = cache.adopt_state if piece.is_state else cache.adopt
        place = adopt(arrived.sequence, piece.block_hash, arrived.place)
        if place is None:
            return False
        if arrived.data is not None:
            # The destination may have held another block, which was just evicted.
            self._store_evicted(runner)
            _copies(runner, is_state=piece.is_state).write_block(place, arrived.data)
        return True

    def close(self, runner: Runner | None) -> None:
        """Ends all transfers after the last step; stores the pool's blocks in a tier whose data outlives this
        process.
        """
        deadline = time.monotonic() + FLUSH_S
        if self._elsewhere.consumer is not None:
            self._elsewhere.consumer.close()
        if self._elsewhere.lender is not None:
            self._elsewhere.lender.producer.close()
        tier = self._elsewhere.tier
        if tier is None:
            return
        if tier.outlives_process and runner is not None:
            for content in self._scheduler.cache.lasting_content():
                if not tier.wait_for_room(deadline - time.monotonic()):
                    break
                _store(tier, content, runner)
        tier.close(max(0.0, deadline - time.monotonic()))


def _store(tier: KvTier, content: Content, runner: Runner | None) -> None:
    """Copies a block or a state from the pool into the second tier, if the tier wants it."""
    is_state = content.stored is None
    if not tier.wants(content.block_hash, is_state=is_state):
        return
    data = _copies(runner, is_state=is_state).read_block(content.place)
    if content.stored is None:
        tier.store_state(content.block_hash, data)
    else:
        tier.store(content.stored, data)


def _copies(runner: object, *, is_state: bool) -> Copies:
    """Returns the runner's object for copies of blocks; with `is_state`, for copies of state slots."""
    assert isinstance(runner, BlockCopies), "checked at the start"
    if not is_state:
        return runner
    assert runner.state_slots is not None
    return runner.state_slots
