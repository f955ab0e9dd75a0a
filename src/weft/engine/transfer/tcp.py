"""`TcpConnector`: blocks as their bytes over TCP, between machines or on one."""

import ipaddress
import socket
from collections.abc import Iterable

import numpy as np

from weft.compute.host_blocks import Bytes
from weft.engine.transfer.wire import CONNECT_S, Block, Peer, TransferError, length_of

BACKLOG = 64


class TcpPeer(Peer):
    """Uses a few buffers again and again: fresh memory costs more than the copy into it."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._free: list[Bytes] = []  # the last that was used goes first: it may be in a cache
        self._place = np.empty(0, np.uint8)

    def receive_block(self, num_bytes: int) -> Block | None:
        """See `Peer`."""
        if not self._is_block_next(num_bytes):
            return None
        data = self._free.pop() if self._free else np.empty(num_bytes, np.uint8)
        self._fill(data.data)
        return Block(data, lambda: self._free.append(data))

    def begin_blocks(self, num_bytes: int) -> None:
        """See `Peer`."""
        if self._place.nbytes != num_bytes:
            self._place = np.empty(num_bytes, np.uint8)

    def next_place(self) -> Bytes:
        """See `Peer`."""
        return self._place

    def send_block(self, place: Bytes) -> None:
        """See `Peer`."""
        self._put(length_of(place.nbytes))
        self._put(place.data)


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
        for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            found = ipaddress.ip_address(str(address[0]).partition("%")[0])
            if any(found in network for network in allowed):
                return TcpPeer(socket.create_connection((str(found), port), CONNECT_S))
        raise TransferError("its address is not among the peers of --kv-transfer-config")
