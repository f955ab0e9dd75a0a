"""`KvProducer`: lends the KV blocks of prompts that this engine computed to engines that continue the prompts.

The engine's thread offers and withdraws leases. Each connection is served by its own thread, which sends directly from
the pool. Lent blocks do not change, and are not given to other sequences while they are copied.
"""

import logging
import secrets
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import assert_never

from msgspec import structs

from weft.compute.protocols.runner import HostBlockCopies
from weft.core.errors import ConfigError
from weft.core.observe.stats import TransferStats
from weft.core.values.kv_transfer import KvTransferConfig, KvTransferParams
from weft.engine.ipc.handshake import PeerError
from weft.engine.ipc.unproven import UnprovenConnections
from weft.engine.transfer.connectors import CONNECTORS
from weft.engine.transfer.pool_access import PoolAccess
from weft.engine.transfer.settings import FLAG
from weft.engine.transfer.wire import WANTED, GiveBack, Identity, Peer, Read, Release, Wanted

MAX_CONNECTIONS = 64  # connections with a proven secret; further connections are closed at once
WAIT_S = 2.0  # period of messages to an engine that waits for a block being computed

log = logging.getLogger("weft.engine")


@dataclass(slots=True, eq=False)
class _Lease:
    access: PoolAccess
    hash_by_block: dict[int, bytes]
    ends_at: float
    uncomputed: set[int]  # block ids
    slot: int | None  # slot of the state after the last block, once it is computed
    num_holders: int = 1  # engines that know the lease and have not released it
    # Id for all fetching engines but the first; they must not learn the first engine's request id.
    shared_id: str | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def has(self, block_id: int, block_hash: bytes, *, is_state: bool) -> bool:
        """True if the lease has the block with this hash, computed or not.

        With `is_state`, True if the block is the last one of the lease.
        """
        is_its = self.hash_by_block.get(block_id) == block_hash
        if is_state:
            is_its = is_its and block_id == next(reversed(self.hash_by_block))
        return is_its and not self.access.is_ended

    def wait_for(self, block_id: int, timeout_s: float, *, is_state: bool) -> bool:
        """Waits until the block or state is computed, or the lease has ended; returns False on timeout."""
        with self.changed:
            return self.changed.wait_for(
                lambda: self._is_computed(block_id, is_state) or self.access.is_ended, timeout_s
            )

    def _is_computed(self, block_id: int, is_state: bool) -> bool:
        return self.slot is not None if is_state else block_id not in self.uncomputed

    def advance(self, num_computed: int, slot: int | None, ends_at: float) -> None:
        """Marks the first `num_computed` blocks as computed, and the state after the last block if `slot` is given."""
        with self.changed:
            self.ends_at, self.slot = ends_at, slot
            self.uncomputed.difference_update(islice(self.hash_by_block, num_computed))
            self.changed.notify_all()

    def place_of(self, block_id: int, *, is_state: bool) -> tuple[PoolAccess, int]:
        """Returns the access to a computed block or state, and its index in the pool."""
        if not is_state:
            return self.access, block_id
        assert self.access.states is not None
        assert self.slot is not None
        return self.access.states, self.slot

    def end(self) -> None:
        """Ends the lease; after the return no thread copies its blocks."""
        self.access.end()
        with self.changed:
            self.changed.notify_all()


class KvProducer:
    """Lends prompts to other engines. `wake` is called on another thread when `take_ended` has data."""

    def __init__(
        self,
        config: KvTransferConfig,
        secret: bytes,
        identity: Identity,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._secret = secret
        self._identity = identity
        self._wake = wake
        self._clock = clock
        # By request id; the lease that expires first is first.
        self._leases: OrderedDict[str, _Lease] = OrderedDict()
        self._request_ids: dict[str, str] = {}  # by shared id of the lease
        self._released: deque[str] = deque()
        self._unproven = UnprovenConnections()
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._peers: set[Peer] = set()
        self._lock = threading.Lock()  # guards `_peers` and `_sent`
        self._sent = TransferStats()
        self._num_expired = 0
        self._closed = threading.Event()
        self._connector = CONNECTORS[config.connector]
        try:  # the system may choose the port
            self._listener, self.port = self._connector.listen(config.host, config.port)
        except OSError as error:
            raise ConfigError(
                f"{FLAG}: cannot listen on {config.host} port {config.port}: "
                f"{error.strerror or error}"
            ) from error
        self._thread = threading.Thread(target=self._accept, name="weft-kv-lend", daemon=True)
        self._thread.start()

    # -- the engine's thread ------------------------------------------------------------------

    def offer(
        self,
        request_id: str,
        block_ids: list[int],
        hashes: list[bytes],
        copies: HostBlockCopies,
        num_computed: int,
        slot: int | None = None,
    ) -> dict[str, object]:
        """Lends these blocks; returns the transfer parameters with which another engine fetches them.

        The blocks must not change from their computation until `withdraw`. If the state after the blocks is already in
        a `slot`, the slot is lent and must not change either.
        """
        by_block = dict(zip(block_ids, hashes, strict=True))
        self._leases[request_id] = _Lease(
            PoolAccess(copies), by_block, self._ends_at(), set(block_ids[num_computed:]), slot
        )
        return self._found(request_id, block_ids)

    def share(self, request_id: str) -> dict[str, object]:
        """Lends the same blocks to one more engine, until all engines have released them; the lease time starts
        anew.
        """
        lease = self._leases[request_id]
        lease.num_holders += 1
        lease.ends_at = self._ends_at()
        self._leases.move_to_end(request_id)
        if lease.shared_id is None:
            lease.shared_id = secrets.token_hex(16)
            self._request_ids[lease.shared_id] = request_id
        return self._found(lease.shared_id, list(lease.hash_by_block))

    def _found(self, request_id: str, block_ids: list[int]) -> dict[str, object]:
        """Returns the transfer parameters with which another engine fetches a lease."""
        return {
            **dict.fromkeys(KvTransferParams.__struct_fields__),
            "do_remote_decode": False,
            "do_chunked_transfer": False,
            "do_remote_prefill": True,
            "remote_engine_id": self.config.engine_id,
            "remote_request_id": request_id,
            "remote_block_ids": [block_ids],
            "remote_host": self.config.host,
            "remote_port": self.port,
            "tp_size": 1,
        }

    def advance(self, request_id: str, num_computed: int, slot: int | None = None) -> None:
        """Marks blocks of a lease, and the state after them, as computed, so that they may be sent.

        The lease time starts anew.
        """
        self._leases[request_id].advance(num_computed, slot, self._ends_at())
        self._leases.move_to_end(request_id)

    def withdraw(self, request_id: str) -> None:
        """Ends a lease; after the return no thread copies its blocks."""
        lease = self._leases.pop(request_id)
        if lease.shared_id is not None:
            del self._request_ids[lease.shared_id]
        lease.end()

    def _ends_at(self) -> float:
        return self._clock() + self.config.lease_s

    def take_ended(self) -> list[str]:
        """Returns the leases that were released or have expired, for the caller to withdraw."""
        ended: dict[str, None] = {}
        while self._released:
            request_id = self._released.popleft()
            lease = self._leases.get(request_id)
            if lease is not None:
                lease.num_holders -= 1
                if not lease.num_holders:
                    ended[request_id] = None
        now = self._clock()
        for request_id, lease in self._leases.items():
            if lease.ends_at > now:
                break
            self._num_expired += request_id not in ended
            ended[request_id] = None
        return list(ended)

    def add_stats(self, stats: TransferStats) -> None:
        """Adds the counts of sent blocks to `stats`."""
        with self._lock:
            sent = structs.replace(self._sent)
        stats.num_sent_blocks = sent.num_sent_blocks
        stats.num_sent_bytes = sent.num_sent_bytes
        stats.sent_s = sent.sent_s
        stats.num_failed_sends = sent.num_failed_sends
        stats.num_expired = self._num_expired

    @property
    def ends_in_s(self) -> float | None:
        """Seconds until the next lease expires; None without leases."""
        first = next(iter(self._leases.values()), None)
        return None if first is None else max(0.0, first.ends_at - self._clock())

    def close(self) -> None:
        """Ends all leases and connections."""
        with self._lock:
            self._closed.set()
            peers = list(self._peers)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        for peer in peers:
            peer.hang_up()
        for request_id in list(self._leases):
            self.withdraw(request_id)

    # -- other threads ------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                self._closed.wait(0.1)  # no free file descriptor: retry
                continue
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="weft-kv-lend", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no memory for a thread: the peer computes the prompt
                connection.close()
                self._closed.wait(0.1)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with self._accepted(connection) as peer:
                with self._unproven.proving(peer):
                    peer.welcome(self._secret, self._identity, self.config.engine_id)
                with self._place():
                    while not self._closed.is_set():
                        self._answer(peer, peer.receive(WANTED))
        except (OSError, PeerError, MemoryError) as error:
            log.debug("a transfer has ended: %r", error)

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._slots.acquire(blocking=False):
            raise PeerError("too many connections are open")
        try:
            yield
        finally:
            self._slots.release()

    @contextmanager
    def _accepted(self, connection: socket.socket) -> Iterator[Peer]:
        with self._connector.accept(connection) as peer:
            with self._lock:
                self._peers.add(peer)
            try:
                yield peer
            finally:
                with self._lock:
                    self._peers.discard(peer)

    def _answer(self, peer: Peer, wanted: Wanted) -> None:
        match wanted:
            case Read():
                self._send(peer, wanted)
            case Release(request_id):
                request_id = self._request_ids.get(request_id, request_id)
                if request_id in self._leases:
                    self._released.append(request_id)
                    self._wake()
            case GiveBack():  # GiveBack: all blocks were already sent
                pass
            case _:
                assert_never(wanted)

    def _send(self, peer: Peer, wanted: Read) -> None:
        is_whole = False
        try:
            is_whole = self._send_blocks(peer, wanted)
        finally:
            with self._lock:
                self._sent.num_failed_sends += not is_whole

    def _send_blocks(self, peer: Peer, wanted: Read) -> bool:
        request_id = self._request_ids.get(wanted.request_id, wanted.request_id)
        lease, is_state = self._leases.get(request_id), wanted.is_state
        num_bytes = self._identity.state_bytes if is_state else self._identity.block_bytes
        if not num_bytes:
            raise PeerError("the peer requests a state, but this model has no states")
        peer.begin_blocks(num_bytes)
        blocks = list(zip(wanted.block_ids, wanted.block_hashes, strict=False))
        for num_left, (block_id, block_hash) in enumerate(blocks, 1 - len(blocks)):
            if lease is None or not _is_there(lease, block_id, block_hash, is_state, peer):
                peer.send_end()
                return False
            began = self._clock()
            access, place = lease.place_of(block_id, is_state=is_state)
            peer.send_block(access, place, num_bytes, is_last=not num_left)
            with self._lock:
                self._sent.sent_s += self._clock() - began
                self._sent.num_sent_blocks += not is_state
                self._sent.num_sent_bytes += num_bytes
        return True


def _is_there(lease: _Lease, block_id: int, block_hash: bytes, is_state: bool, peer: Peer) -> bool:
    """Waits until the block is computed; False if the lease does not have the block.

    Sends `send_wait` messages during the wait.
    """
    while lease.has(block_id, block_hash, is_state=is_state):
        if lease.wait_for(block_id, 0, is_state=is_state):
            return not lease.access.is_ended
        peer.send_wait()
        lease.wait_for(block_id, WAIT_S, is_state=is_state)
    return False
