"""`KvTier`: a second tier for KV blocks, and states after blocks, that were evicted from the pool.

Blocks are found by hash. The tier's own thread reads and writes the data; the engine's thread never waits for that
thread. Data that cannot be queued is dropped. A store that fails or does not respond is switched off: then there is no
tier, and every request runs without it.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial

from msgspec import structs

from weft.compute.host_blocks import Bytes
from weft.core.observe.stats import TierStats
from weft.core.values.kv_cache import BlockRemoved, BlockStored, KvEvent, Medium
from weft.engine.kv.kv_tier_pieces import Arrived, Fetch, Piece, Write
from weft.engine.kv.kv_tier_stores import BlockStore, DamagedBlock
from weft.engine.scheduling.sequence import Sequence

MAX_QUEUED_BYTES = 256 << 20  # limit of data that was copied from the pool and is not yet written
MAX_ARRIVED_BYTES = 64 << 20  # limit of data that was read and is not yet copied into the pool
STALLED_S = 5.0  # a store that reads no block for this time is switched off

log = logging.getLogger("weft.engine")


class KvTier:
    """A second tier of at most `max_bytes`; the least recently used block is evicted first, together with its state.

    `wake` is called on the tier's thread when `take_arrived` has data. For a model with states (`has_states`) a read
    ends at the last block that has a state.
    """

    def __init__(
        self,
        store: BlockStore,
        max_bytes: int,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        has_states: bool = False,
    ) -> None:
        self._store = store
        self._has_states = has_states
        self._max_bytes = max_bytes
        self._wake = wake
        self._clock = clock
        self._changed = threading.Condition()  # guards all attributes below
        self._sizes: OrderedDict[str, int] = (
            OrderedDict()
        )  # bytes by name, least recently used first
        self._num_bytes = 0
        self._writes: OrderedDict[str, Write] = OrderedDict()
        self._num_queued_bytes = 0
        self._fetches: deque[Fetch] = deque()
        self._arrived: deque[Arrived] = deque()
        self._num_arrived_bytes = 0
        self._cleared: list[str] = []
        self._events: list[KvEvent] = []
        self._stats = TierStats()
        self._progressed_at = 0.0
        self._has_looked = self._is_closing = self._has_failed = self._was_cleared = False
        self._thread = threading.Thread(target=self._run, name="weft-kv-tier", daemon=True)
        self._thread.start()

    # -- the engine's thread ------------------------------------------------------------------

    def wait_until_found(self, timeout_s: float) -> None:
        """Waits until the tier has listed the data of earlier processes; before that no lookup finds a block."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_looked or self._has_failed, timeout_s)

    @property
    def outlives_process(self) -> bool:
        """True if a later process can find the stored blocks."""
        return self._store.medium is Medium.DISK

    @property
    def is_fetching(self) -> bool:
        """True if a sequence waits for blocks of the second tier."""
        return bool(self._fetches or self._arrived)

    def stats(self) -> TierStats:
        """Returns the statistics of the tier, counted since the start."""
        with self._changed:
            return structs.replace(self._stats, num_bytes=self._num_bytes)

    def take_events(self) -> list[KvEvent]:
        """Returns the cache events since the last call, in order."""
        with self._changed:
            events, self._events = self._events, []
            return events

    def start_fetch(
        self, sequence: Sequence, block_hashes: list[bytes], num_in_pool: int = 0
    ) -> bool:
        with self._changed:
            self._stats.num_queried_blocks += len(block_hashes) - num_in_pool
            if not self._has_looked:
                return False
            pieces = self._find(block_hashes, num_in_pool)
            if not pieces:
                return False
            for piece in reversed(pieces):  # the first blocks of a prompt must be evicted last
                self._touch(self._name_of(piece))
            if pieces[-1].is_state:  # a state is evicted with its block
                self._touch(self._name_of(pieces[-1]))
            for fetch in self._fetches:
                if pieces[0] in fetch.pieces:
                    fetch.followers.append(sequence)
                    return True
            if not self._fetches:
                self._progressed_at = self._clock()
            self._fetches.append(Fetch(sequence, pieces))
            self._changed.notify_all()
        return True

    def cancel_fetch(self, sequence: Sequence) -> None:
        """Cancels the read for a sequence. Pieces that were already read may still arrive."""
        with self._changed:
            for fetch in list(self._fetches):
                if sequence in fetch.followers:
                    fetch.followers.remove(sequence)
                elif sequence is fetch.sequence:
                    self._fetches.remove(fetch)
                    self._release(fetch, fetch.followers)

    def take_arrived(self) -> list[Arrived]:
        """Returns the pieces that were read since the last call."""
        with self._changed:
            is_waiting = self._fetches and not self._arrived
            is_stalled = is_waiting and self._clock() - self._progressed_at > STALLED_S
        if is_stalled:
            self._fail(f"it has read nothing for {STALLED_S:g} s")
        with self._changed:
            arrived = list(self._arrived)
            self._arrived.clear()
            self._num_arrived_bytes = 0
            if arrived:  # the reading thread may have waited for this space
                self._progressed_at = self._clock()
                self._changed.notify_all()
        return arrived

    def wants(self, block_hash: bytes, *, is_state: bool = False) -> bool:
        """True if `store` should be called for the block: the tier does not have the block, and the queue has space."""
        name = self._store.name_of(block_hash, is_state=is_state)
        with self._changed:
            if self._has_failed or name in self._writes or self._touch(name):
                return False
            has_room = self._num_queued_bytes < MAX_QUEUED_BYTES
            self._stats.num_dropped += not has_room
            return has_room

    def store(self, stored: BlockStored, data: Bytes) -> None:
        """Queues a block for writing; lookups find the block from now on."""
        self._queue(Piece(stored.block_hashes[0]), Write(stored, data))

    def store_state(self, block_hash: bytes, data: Bytes) -> None:
        """Queues the state after a block for writing."""
        self._queue(Piece(block_hash, is_state=True), Write(None, data))

    def _queue(self, piece: Piece, write: Write) -> None:
        with self._changed:
            if self._has_failed:  # the tier failed after `wants` returned True
                return
            self._writes[self._name_of(piece)] = write
            self._num_queued_bytes += write.data.nbytes
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._was_cleared = True
            self._cleared += self._sizes
            self._drop_all()
            self._fetches.clear()
            self._arrived.clear()
            self._num_arrived_bytes = 0
            self._events.clear()  # the event of the pool applies to all media
            self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Waits until the queue has space; for an engine that has no other work."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._has_failed or self._num_queued_bytes < MAX_QUEUED_BYTES, timeout_s
            )

    def close(self, timeout_s: float) -> None:
        """Writes the queued data within `timeout_s` seconds, and ends the thread."""
        with self._changed:
            self._is_closing = True
            self._fetches.clear()
            self._changed.notify_all()
        self._thread.join(timeout_s)

    # -- the tier's thread --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            found = self._store.find()
            with self._changed:
                if self._was_cleared:  # the tier was cleared before the names were known
                    self._cleared += [name for name, _ in found]
                else:
                    self._sizes = OrderedDict(found)
                    self._num_bytes = sum(self._sizes.values())
                self._has_looked = True
                self._changed.notify_all()
            while (job := self._next_job()) is not None:
                job()
        except (OSError, MemoryError) as error:
            self._fail(str(error) or type(error).__name__)
        finally:
            self._store.close()

    def _next_job(self) -> Callable[[], None] | None:
        """Returns the next job, None at the end. Reads that a sequence waits for come before writes."""
        with self._changed:
            while not self._has_failed:
                if self._fetches and self._num_arrived_bytes < MAX_ARRIVED_BYTES:
                    return partial(self._read, self._fetches[0])
                if self._cleared:  # removed before new data is written under the same names
                    return partial(self._store.remove, self._cleared.pop())
                queued = next(iter(self._writes.items()), None)
                size = 0 if queued is None else self._store.size_of(queued[1].data)
                if self._sizes and self._num_bytes + size > self._max_bytes:
                    return partial(self._store.remove, self._evict())
                if queued is not None:
                    return partial(self._write, *queued, size)
                if self._is_closing:
                    return None
                self._changed.wait()
        return None

    def _read(self, fetch: Fetch) -> None:
        piece = fetch.pieces[fetch.num_read]
        name = self._name_of(piece)
        with self._changed:
            queued = self._writes.get(name)
        data = self._checked(name) if queued is None else queued.data
        with self._changed:
            if not self._fetches or self._fetches[0] is not fetch:
                return  # the fetch was cleared or cancelled during the read
            fetch.num_read += 1
            is_last = data is None or fetch.num_read == len(fetch.pieces)
            self._arrived.append(Arrived(fetch.sequence, piece, data, is_last))
            if is_last:
                self._fetches.popleft()
                self._release(fetch, fetch.followers)
            if data is not None:
                self._num_arrived_bytes += data.nbytes
                self._stats.num_loaded_blocks += not piece.is_state
                self._stats.num_loaded_bytes += data.nbytes
            self._progressed_at = self._clock()
        self._notify()

    def _checked(self, name: str) -> Bytes | None:
        """Returns the data of a block; None, and removes the block's record, if the data is missing or damaged."""
        try:
            data = self._store.read(name)
        except DamagedBlock:
            self._store.remove(name)
            data = None
            with self._changed:
                self._stats.num_damaged += 1
        if data is None:
            with self._changed:
                self._forget(name)
        return data

    def _write(self, name: str, write: Write, size: int) -> None:
        self._store.write(name, write.data)
        with self._changed:
            if self._writes.get(name) is not write:
                self._cleared.append(name)
                return
            del self._writes[name]
            self._num_queued_bytes -= write.data.nbytes
            # The write may replace a file of an earlier process.
            self._num_bytes += size - self._sizes.get(name, 0)
            self._sizes[name] = size
            self._stats.num_stored_bytes += write.data.nbytes
            if write.stored is not None:
                self._events.append(structs.replace(write.stored, medium=self._store.medium))
            self._changed.notify_all()
            is_done = not self._writes
        if is_done:  # so that an idle engine reports the events now
            self._notify()

    # -- both threads, with the lock ----------------------------------------------------------

    def _name_of(self, piece: Piece) -> str:
        return self._store.name_of(piece.block_hash, is_state=piece.is_state)

    def _has(self, piece: Piece) -> bool:
        name = self._name_of(piece)
        return name in self._sizes or name in self._writes

    def _find(self, block_hashes: list[bytes], num_in_pool: int) -> list[Piece]:
        """Returns the pieces to read so that the sequence can start with as many of these blocks as possible."""
        blocks = [Piece(block_hash) for block_hash in block_hashes]
        absent = (i for i in range(num_in_pool, len(blocks)) if not self._has(blocks[i]))
        end = next(absent, len(blocks))
        if not self._has_states:
            return blocks[num_in_pool:end]
        states = (Piece(block_hash, is_state=True) for block_hash in reversed(block_hashes[:end]))
        for num_before, state in zip(range(end, 0, -1), states, strict=True):
            if self._has(state):
                return [*blocks[num_in_pool:num_before], state]
        return []

    def _touch(self, name: str) -> bool:
        """Marks the data with this name as just used. Returns True if the data is stored."""
        is_there = name in self._sizes
        if is_there:
            self._sizes.move_to_end(name)
        return is_there

    def _evict(self) -> str:
        """Drops the least recently used entry and returns its name; the caller removes the data from the store."""
        oldest = next(iter(self._sizes))
        self._forget(oldest)
        self._stats.num_evicted += 1
        return oldest

    def _forget(self, name: str) -> None:
        size = self._sizes.pop(name, None)
        if size is None:
            return
        self._num_bytes -= size
        self._report_removed([name])
        block_hash = self._store.hash_of(name)
        if block_hash is not None and self._has_states:  # a state is useless without its block
            self._drop_state(self._name_of(Piece(block_hash, is_state=True)))

    def _drop_state(self, name: str) -> None:
        size = self._sizes.pop(name, None)
        if size is not None:
            self._num_bytes -= size
            self._cleared.append(name)

    def _release(self, fetch: Fetch, sequences: Iterable[Sequence]) -> None:
        """Ends the waiting of these sequences for the fetch."""
        self._arrived += [Arrived(each, None, None, True) for each in sequences]

    def _report_removed(self, names: Iterable[str]) -> None:
        found = map(self._store.hash_of, names)
        block_hashes = [block_hash for block_hash in found if block_hash is not None]
        if block_hashes:
            removed = BlockRemoved(block_hashes=block_hashes, medium=self._store.medium)
            self._events.append(removed)

    def _drop_all(self) -> None:
        self._sizes.clear()
        self._writes.clear()
        self._num_bytes = self._num_queued_bytes = 0

    def _fail(self, reason: str) -> None:
        """Switches the tier off: it is empty from now on, and no sequence waits for blocks any more."""
        with self._changed:
            if self._has_failed:
                return
            self._has_failed = True
            self._report_removed(self._sizes)
            self._drop_all()
            for fetch in self._fetches:
                self._release(fetch, [fetch.sequence, *fetch.followers])
            self._fetches.clear()
            self._changed.notify_all()
        medium = self._store.medium
        log.warning("the second tier of the KV cache (%s) is off: %s", medium, reason)
        self._notify()

    def _notify(self) -> None:
        if not self._is_closing:  # during closing, the engine may no longer exist
            self._wake()
