"""`TcpConnector`: sends blocks as bytes over TCP, between machines or on one machine.

The system copies blocks directly from one pool into the other, without a buffer between. Each block is followed by a
digest, made with a key that only the two engines of this connection have.
"""

import hashlib
import hmac
import ipaddress
import select
import socket
import time
from collections.abc import Callable

import xxhash

from weft.engine.ipc.handshake import CONNECT_S, NUMBER_BYTES, PeerError, length_of
from weft.engine.transfer.pool_access import PoolAccess
from weft.engine.transfer.wire import MIN_BYTES_PER_S, Peer, Read

BACKLOG = 64
DIGEST_BYTES = 32
_DIGESTED_BYTES = 1 << 20  # bytes that are digested at a time, while the pool access is held
_MAX_ROWS = 64  # maximum number of rows per system call
_MORE = getattr(socket, "MSG_MORE", 0)  # exists only on Linux


def _waiter(connection: socket.socket, event: int) -> Callable[[float], bool]:
    """Returns a function that waits up to a number of seconds for the event; it returns True if the event occurred."""
    poller = select.poll()
    poller.register(connection, event)
    return lambda timeout_s: bool(poller.poll(timeout_s * 1000))


class TcpPeer(Peer):
    """A peer over TCP. A block is sent as its length, its rows as they are in the pool, and its digest.

    The next block's length is read together with a block: reading these four bytes alone took a quarter of the time for
    the stream, 6 of 22 ms for 117 MB (benchmarks/kv_transfer.py).
    """

    def __init__(
        self,
        connection: socket.socket,
        waiter: Callable[[socket.socket, int], Callable[[float], bool]] = _waiter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waiter = waiter
        self._clock = clock
        self._num_left = 0  # number of blocks still to receive
        self._num_blocks = 0  # number of blocks sent over this connection, in either direction
        self._ahead = bytearray()

    def request_blocks(self, read: Read, num_bytes: int) -> None:
        self._num_left = len(read.block_ids)
        super().request_blocks(read, num_bytes)

    def receive_block(self, access: PoolAccess, block_id: int, num_bytes: int) -> bool:
        if not self._is_block_next(num_bytes):
            return False
        with access as copies:
            rows = copies.block_rows(block_id)
        self._num_left -= 1
        digest = bytearray(DIGEST_BYTES)
        beside = [memoryview(digest)]
        if self._num_left:
            self._ahead = bytearray(NUMBER_BYTES)
            beside.append(memoryview(self._ahead))
        self._move(
            rows + beside, access, select.POLLIN, lambda some: self._socket.recvmsg_into(some)[0]
        )
        if not hmac.compare_digest(digest, self._digest(rows, access)):
            raise PeerError("a block was damaged in transit")
        return True

    def _receive_number(self) -> int:
        ahead, self._ahead = self._ahead, bytearray()
        return int.from_bytes(ahead, "big") if ahead else super()._receive_number()

    def begin_blocks(self, num_bytes: int) -> None:
        """Needs no preparation."""

    def send_block(
        self, access: PoolAccess, block_id: int, num_bytes: int, *, is_last: bool
    ) -> None:
        """Sends a block.

        Its last bytes are sent with the next block: sending them alone took a fifth more system time.
        """
        flags = 0 if is_last else _MORE
        with access as copies:
            rows = copies.block_rows(block_id)
        digest = self._digest(rows, access)
        rows = [memoryview(length_of(num_bytes)), *rows, memoryview(digest)]
        send = self._socket.sendmsg
        self._move(rows, access, select.POLLOUT, lambda some: send(some, (), flags))

    def _digest(self, rows: list[memoryview], access: PoolAccess) -> bytes:
        """Returns the signed digest of the next block.

        The block's number is signed too, so that a block cannot be replayed or moved. A cryptographic digest of all
        bytes, keyed BLAKE2b, took eight times as long as sending them; this digest and its signature take about as long
        as sending (docs/decisions/0068).
        """
        number = self._num_blocks.to_bytes(8, "big")
        self._num_blocks += 1
        made = xxhash.xxh3_128(seed=int.from_bytes(self._key[:8], "big"))
        for row in rows:
            for start in range(0, len(row), _DIGESTED_BYTES):
                with access:
                    made.update(row[start : start + _DIGESTED_BYTES])
        return hmac.digest(self._key, number + made.digest(), hashlib.sha256)

    def _move(
        self,
        rows: list[memoryview],
        access: PoolAccess,
        event: int,
        move: Callable[[list[memoryview]], int],
    ) -> None:
        """Sends or receives all bytes of these rows, as many per system call as possible; waits outside of `access`.

        The time limit grows with the size, because a large state takes long on a slow connection. The call fails for a
        peer that stalls, or that sends only single bytes from time to time.
        """
        left = sum(map(len, rows))
        deadline = self._clock() + self._limit(self._timeout_s + left / MIN_BYTES_PER_S)
        self._wait_at_most(0)
        wait = self._waiter(self._socket, event)
        while left:
            try:
                with access:
                    count = move(rows[:_MAX_ROWS])
            except BlockingIOError:
                if not wait(max(0.0, min(self._timeout_s, deadline - self._clock()))):
                    raise TimeoutError("timed out") from None
                continue
            if not count:
                raise PeerError("the peer closed the connection")
            left -= count
            rows = _after(rows, count) if left else []


def _after(rows: list[memoryview], count: int) -> list[memoryview]:
    """Returns the rows without their first `count` bytes."""
    for index, row in enumerate(rows):
        if count < len(row):
            return [row[count:], *rows[index + 1 :]]
        count -= len(row)
    return []


class TcpConnector:
    def listen(self, host: str, port: int) -> tuple[socket.socket, int]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        return listener, listener.getsockname()[1]

    def accept(self, connection: socket.socket) -> Peer:
        return TcpPeer(connection)

    def connect(self, host: str, port: int) -> Peer:
        return TcpPeer(socket.create_connection((str(ipaddress.ip_address(host)), port), CONNECT_S))
