"""`Connector`: the way in which two engines connect and blocks are sent; the table of all connectors."""

import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from weft.core.values.kv_transfer import KvConnector
from weft.engine.transfer.shared_memory import ShmConnector
from weft.engine.transfer.tcp import TcpConnector
from weft.engine.transfer.wire import Peer


class Connector(Protocol):
    """Opens connections to other engines. A connector has no state; its errors are `OSError` or `PeerError`."""

    def listen(self, host: str, port: int) -> tuple[socket.socket, int]:
        """Listens for engines that fetch blocks. Returns the socket and its port.

        For port 0 the system chooses the port.
        """

    def accept(self, connection: socket.socket) -> Peer:
        """Accepts the connection of another engine; closes the connection if the engine is not allowed."""

    def connect(self, host: str, port: int) -> Peer:
        """Connects to an engine at an address that the configuration allows."""


CONNECTORS: Mapping[KvConnector, Connector] = MappingProxyType(
    {KvConnector.TCP: TcpConnector(), KvConnector.SHM: ShmConnector()}
)
