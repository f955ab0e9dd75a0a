"""`KvConsumer`: fetches the KV blocks of prompts that other engines have computed, and the states after these blocks.

The scheduler uses the consumer as a second tier. The engine's thread never waits for a fetch: several threads fetch one
prompt each, directly into blocks of the pool that the sequence already holds. Blocks that cannot be fetched are
computed here. The lease at the other engine is always released, whatever happens to the request.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from weft.compute.protocols.runner import HostBlockCopies
from weft.core.observe.log import of_request
from weft.core.observe.stats import TransferStats
from weft.core.values.kv_transfer import KvTransferConfig, RemotePrompt, remote_prompt
from weft.core.values.types import Request
from weft.engine.ipc.handshake import PeerError
from weft.engine.kv.kv_tier_pieces import Arrived, Piece
from weft.engine.scheduling.sequence import Sequence
from weft.engine.transfer.circuit_breaker import CircuitBreaker
from weft.engine.transfer.connectors import CONNECTORS
from weft.engine.transfer.peer_threads import PeerThreads
from weft.engine.transfer.pool_access import PoolAccess
from weft.engine.transfer.wire import Identity, Peer, Read, Release

MAX_FETCHES = 64  # at the same time; most fetches wait for prompts that are being computed
RELEASE_S = 10.0
_ABSENT = "the other engine no longer has them, or they belong to another prompt"

log = logging.getLogger("weft.engine")


@dataclass(slots=True, eq=False)
class _Fetch:
    """A fetch of a prompt's blocks for the first answer of a request; the other answers find the blocks in the pool."""

    source: RemotePrompt
    block_ids: list[int]  # ids of the blocks at the other engine
    block_hashes: list[bytes]
    sequences: list[Sequence]
    state: Read | None  # requests the state after the blocks, if the model has states
    deadline: float = math.inf
    places: list[int] = field(default_factory=list)  # blocks of the first sequence, here
    slot: int | None = None  # state slot of the first sequence, in this engine
    access: PoolAccess | None = None  # access to `places` and `slot`, once the fetch has begun
    peer: Peer | None = None
    num_received: int = 0
    has_state: bool = False  # True once the state was received
    is_over: bool = False  # further received data is dropped

    def cancel(self) -> None:
        """Cancels the fetch. After the return no thread writes into the fetch's blocks or slot."""
        self.is_over = True
        if self.access is not None:
            self.access.end()
        if self.peer is not None:  # the thread may wait for blocks that are still being computed
            self.peer.hang_up()


class KvConsumer:
    """Fetches prompts from other engines. `wake` is called on another thread when `take_arrived` has data."""

    def __init__(
        self,
        config: KvTransferConfig,
        secret: bytes,
        identity: Identity,
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._secret = secret
        self._identity = identity
        self._wake = wake
        self._threads = PeerThreads(MAX_FETCHES, "weft-kv-fetch")
        self._lock = threading.Lock()  # guards the attributes below
        self._fetches: dict[str, _Fetch] = {}  # by engine id of the request
        self._pending: list[_Fetch] = []  # fetches that have not begun
        self._arrived: list[Arrived] = []
        self._peers: set[Peer] = set()
        self._breaker = CircuitBreaker()
        self._is_closed = False
        self._stats = TransferStats()
        self._begun: set[str] = set()  # requests whose leases were already fetched or released

    # -- the engine's thread ------------------------------------------------------------------

    @property
    def is_fetching(self) -> bool:
        """True if a sequence waits for blocks of another engine."""
        return bool(self._fetches or self._arrived)

    def start_fetch(
        self, sequence: Sequence, block_hashes: list[bytes], num_in_pool: int = 0
    ) -> bool:
        """Fetches the rest of a sequence's prompt from another engine; True if the sequence must wait for the blocks.

        A prompt is fetched once: the answers of a request share the fetch.
        """
        request = sequence.request
        source = remote_prompt(request.params.extra_args)
        if source is None:
            return False
        with self._lock:
            running = self._fetches.get(request.engine_id)
            if running is not None and not running.is_over:
                running.sequences.append(sequence)
                return True
            if request.engine_id in self._begun:
                return False
            self._begun.add(request.engine_id)
            first = sequence.block_hashes.index(block_hashes[0]) if block_hashes else 0
            block_ids = source.block_ids[first : first + len(block_hashes)]
            if not block_ids:
                self.release(source)
                return False
            hashes = block_hashes[: len(block_ids)]
            state = None
            if self._identity.state_bytes:
                state = Read(source.request_id, block_ids[-1:], hashes[-1:], is_state=True)
            block_ids, hashes = block_ids[num_in_pool:], hashes[num_in_pool:]
            fetch = _Fetch(source, block_ids, hashes, [sequence], state)
            self._fetches[request.engine_id] = fetch
            self._pending.append(fetch)
        return True

    def num_placed(self, sequence: Sequence) -> int:
        fetch = self._fetches.get(sequence.request.engine_id)
        if fetch is None or fetch.is_over or fetch.sequences[0] is not sequence:
            return 0
        return len(fetch.block_ids)

    @property
    def has_pending(self) -> bool:
        """True if `begin_fetches` has work."""
        return bool(self._pending)

    def begin_fetches(self, copies: HostBlockCopies) -> None:
        """Begins pending fetches. The caller must have stored the former content of the blocks elsewhere."""
        pending, self._pending = self._pending, []
        for fetch in pending:
            sequence = fetch.sequences[0]
            first = sequence.num_computed_tokens // self._identity.block_size
            fetch.places = sequence.block_ids[first : first + len(fetch.block_ids)].tolist()
            fetch.slot, fetch.access = sequence.state_slot, PoolAccess(copies)
            fetch.deadline = time.monotonic() + self._config.fetch_timeout_s
            run = partial(self._run, sequence.request.engine_id, fetch)
            self._threads.submit(fetch.source.address, run)

    def take_arrived(self) -> list[Arrived]:
        """Returns the data that was fetched since the last call."""
        if not self._arrived:
            return []
        with self._lock:
            arrived, self._arrived = self._arrived, []
        return arrived

    def take_stats(self, stats: TransferStats) -> None:
        """Adds the counts of fetches to `stats`; each received prompt is reported once."""
        with self._lock:
            stats.received, self._stats.received = self._stats.received, []
            stats.num_failed_receives = self._stats.num_failed_receives
            stats.num_failed_releases = self._stats.num_failed_releases

    def cancel_fetch(self, sequence: Sequence) -> None:
        """Cancels a sequence's fetch. Other answers of the request continue with the blocks that have arrived."""
        with self._lock:
            fetch = self._fetches.get(sequence.request.engine_id)
            if fetch is not None and fetch.sequences[0] is sequence:
                fetch.cancel()

    def forget(self, request: Request) -> None:
        """Handles the end of a request: releases its lease if its blocks were never fetched."""
        source = remote_prompt(request.params.extra_args)
        if source is None:
            return
        with self._lock:
            is_begun = request.engine_id in self._begun
            self._begun.discard(request.engine_id)
        if not is_begun:
            self.release(source)

    def clear(self) -> None:
        with self._lock:
            for fetch in self._fetches.values():
                fetch.cancel()
            self._arrived.clear()

    def release(self, source: RemotePrompt) -> None:
        """Releases the other engine's lease of a prompt."""
        self._threads.submit(source.address, partial(self._release, source))

    def close(self) -> None:
        """Ends all fetches."""
        self.clear()
        with self._lock:
            self._is_closed = True
            for peer in self._peers:
                peer.hang_up()
        self._threads.close()

    # -- other threads ------------------------------------------------------------------------

    def _run(self, engine_id: str, fetch: _Fetch) -> None:
        error, is_released, began = None, False, time.monotonic()
        try:
            with self._connected(fetch.source, fetch.deadline) as peer:
                error = self._receive(peer, fetch)
                began += peer.waited_s
                peer.send(Release(fetch.source.request_id))
                is_released = True
        except (OSError, PeerError) as reason:
            if isinstance(reason, TimeoutError):
                self._breaker.open(*fetch.source.address)
            if not fetch.is_over:
                error = str(reason) or type(reason).__name__
        except Exception:  # top of a thread's job: sequences wait for its end
            log.exception("a prompt could not be fetched")
            error = "the log has the details"
        if error is not None:
            source = fetch.source
            error = f"the prompt's KV could not be fetched from {source.host} port {source.port}: {error}"
            request = fetch.sequences[0].request
            extra = of_request(request.request_id, request.trace_headers)
            log.warning("%s, request_id=%s", error, request.request_id, extra=extra)
        with self._lock:
            if error is not None:
                self._stats.num_failed_receives += 1
            elif not fetch.is_over:
                num_bytes = fetch.num_received * self._identity.block_bytes
                num_bytes += fetch.has_state * self._identity.state_bytes
                taken_s = time.monotonic() - began
                self._stats.received.append((taken_s, num_bytes, fetch.num_received))
            del self._fetches[engine_id]
            is_handed_over = fetch.sequences[0].request.resumption is not None
            fails = self._config.fails_requests and not is_handed_over
            self._arrived += self._arrivals(fetch, error if fails else None)
        self._wake()
        if not is_released:
            self._release(fetch.source)

    def _receive(self, peer: Peer, fetch: _Fetch) -> str | None:
        """Receives the blocks one by one; returns an error message if some are missing."""
        assert fetch.access is not None
        with self._lock:
            fetch.peer = peer
            if fetch.is_over:
                return None
        if fetch.places:
            num_bytes = self._identity.block_bytes
            read = Read(fetch.source.request_id, fetch.block_ids, fetch.block_hashes)
            peer.request_blocks(read, num_bytes)
            for place in fetch.places:
                if not peer.receive_block(fetch.access, place, num_bytes):
                    return _ABSENT
                fetch.num_received += 1
        if fetch.state is not None:
            return self._receive_state(peer, fetch, fetch.state)
        return None

    def _receive_state(self, peer: Peer, fetch: _Fetch, read: Read) -> str | None:
        """Receives the state after the blocks; returns an error message if it is missing."""
        access, num_bytes = fetch.access, self._identity.state_bytes
        assert access is not None
        assert access.states is not None
        assert fetch.slot is not None
        peer.request_blocks(read, num_bytes)
        fetch.has_state = peer.receive_block(access.states, fetch.slot, num_bytes)
        return None if fetch.has_state else _ABSENT

    @staticmethod
    def _arrivals(fetch: _Fetch, error: str | None) -> list[Arrived]:
        """Returns the received data of a fetch, and its end for every sequence that waits."""
        first, came = fetch.sequences[0], []
        if not fetch.is_over:
            came = list(zip(map(Piece, fetch.block_hashes), fetch.places, strict=True))
            del came[fetch.num_received :]
            if fetch.has_state and fetch.state is not None and fetch.slot is not None:
                came.append((Piece(fetch.state.block_hashes[0], is_state=True), fetch.slot))
        placed = [Arrived(first, piece, None, is_last=False, place=place) for piece, place in came]
        return placed + [Arrived(each, None, None, True, error) for each in fetch.sequences]

    def _release(self, source: RemotePrompt) -> None:
        try:
            with self._connected(source, time.monotonic() + RELEASE_S) as peer:
                peer.send(Release(source.request_id))
        except (OSError, PeerError) as error:  # the lease will expire
            log.debug("%s could not be released: %s", source.request_id, error)
            with self._lock:
                self._stats.num_failed_releases += 1

    @contextmanager
    def _connected(self, source: RemotePrompt, deadline: float) -> Iterator[Peer]:
        """Context manager: a connection to the engine that lends the prompt; all calls must end by the deadline."""
        connector = CONNECTORS[self._config.connector]
        with ExitStack() as closing:
            if not self._config.is_peer(source.host, source.port):
                raise PeerError("its address is not among the peers of --kv-transfer-config")
            with self._breaker.trying(*source.address):
                peer = connector.connect(source.host, source.port)
                closing.enter_context(peer)
                peer.deadline = deadline
                with self._lock:
                    if self._is_closed:
                        raise PeerError("the engine is shutting down")
                    self._peers.add(peer)
                closing.callback(self._leave, peer)
                peer.greet(self._secret, self._identity, source.engine_id)
            yield peer

    def _leave(self, peer: Peer) -> None:
        with self._lock:
            self._peers.discard(peer)
