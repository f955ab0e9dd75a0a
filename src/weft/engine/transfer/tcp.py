"""`TcpConnector`: blocks as their bytes over TCP, between machines or on one.

The system copies them out of one pool and into the other; nothing lies between.
"""

import ipaddress
import select
import socket
import time
from collections.abc import Callable, Iterable

from weft.engine.handshake import CONNECT_S, NUMBER_BYTES, PeerError, length_of
from weft.engine.transfer.pool_access import PoolAccess
from weft.engine.transfer.wire import MIN_BYTES_PER_S, Peer, Read

BACKLOG = 64
_MAX_ROWS = 64  # that one call of the system gets
_MORE = getattr(socket, "MSG_MORE", 0)  # of Linux


def _waiter(connection: socket.socket, event: int) -> Callable[[float], bool]:
    """What waits for the event for so many seconds at most, and says whether it is there."""
    poller = select.poll()
    poller.register(connection, event)
    return lambda timeout_s: bool(poller.poll(timeout_s * 1000))


class TcpPeer(Peer):
    """A block is its length and its rows, as they lie in the pool.

    The number behind a block is read with it: to read four bytes alone took a quarter of all its time for the
    stream, 6 of 22 ms for 117 MB (benchmarks/kv_transfer.py).
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
        self._num_left = 0  # blocks that are wanted still
        self._ahead = bytearray()

    def request_blocks(self, read: Read, num_bytes: int) -> None:
        """See `Peer`."""
        self._num_left = len(read.block_ids)
        super().request_blocks(read, num_bytes)

    def receive_block(self, access: PoolAccess, block_id: int, num_bytes: int) -> bool:
        """See `Peer`."""
        if not self._is_block_next(num_bytes):
            return False
        with access as copies:
            rows = copies.block_rows(block_id)
        self._num_left -= 1
        if self._num_left:
            self._ahead = bytearray(NUMBER_BYTES)
            rows.append(memoryview(self._ahead))
        self._move(rows, access, select.POLLIN, lambda some: self._socket.recvmsg_into(some)[0])
        return True

    def _receive_number(self) -> int:
        ahead, self._ahead = self._ahead, bytearray()
        return int.from_bytes(ahead, "big") if ahead else super()._receive_number()

    def begin_blocks(self, num_bytes: int) -> None:
        """See `Peer`. Nothing is needed."""

    def send_block(
        self, access: PoolAccess, block_id: int, num_bytes: int, *, is_last: bool
    ) -> None:
        """See `Peer`. The end of a block waits for the next: it took a fifth more of the system's time without."""
        flags = 0 if is_last else _MORE
        with access as copies:
            rows = copies.block_rows(block_id)
        rows.insert(0, memoryview(length_of(num_bytes)))
        send = self._socket.sendmsg
        self._move(rows, access, select.POLLOUT, lambda some: send(some, (), flags))

    def _move(
        self,
        rows: list[memoryview],
        access: PoolAccess,
        event: int,
        move: Callable[[list[memoryview]], int],
    ) -> None:
        """All bytes of these rows, as many at a time as the system takes at once: it waits outside of `access`.

        A large state takes its time on a slow line. Who sends nothing, or a byte now and then, is given up.
        """
        left = sum(map(len, rows))
        deadline = self._clock() + self._timeout_s + left / MIN_BYTES_PER_S
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
                raise PeerError("it closed the connection")
            left -= count
            rows = _after(rows, count) if left else []


def _after(rows: list[memoryview], count: int) -> list[memoryview]:
    """What is left of them behind so many bytes."""
    for index, row in enumerate(rows):
        if count < len(row):
            return [row[count:], *rows[index + 1 :]]
        count -= len(row)
    return []


class TcpConnector:
    """See `Connector`."""

    def listen(self, host: str, port: int) -> tuple[socket.socket, int]:
        """See `Connector`."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        return listener, listener.getsockname()[1]

    def accept(self, connection: socket.socket) -> Peer:
        """See `Connector`."""
        return TcpPeer(connection)

    def connect(self, host: str, port: int, networks: Iterable[str]) -> Peer:
        """See `Connector`. There is no connection to an address outside of `networks`."""
        allowed = [ipaddress.ip_network(network) for network in networks]
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise PeerError("no host can have that name") from None
        for *_, address in addresses:
            found = ipaddress.ip_address(str(address[0]).partition("%")[0])
            if any(found in network for network in allowed):
                return TcpPeer(socket.create_connection((str(found), port), CONNECT_S))
        raise PeerError("its address is not among the peers of --kv-transfer-config")
