"""`Connector`: how two engines reach each other and what blocks travel in; the table of all of them."""

import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from weft.core.values.kv_transfer import KvConnector
from weft.engine.transfer.shared_memory import ShmConnector
from weft.engine.transfer.tcp import TcpConnector
from weft.engine.transfer.wire import Peer


class Connector(Protocol):
    """Has no state; what goes wrong is an `OSError` or a `PeerError`."""

    def listen(self, host: str, port: int) -> tuple[socket.socket, int]:
        """For who fetches; also the port, which is one that is free where 0 was given."""

    def accept(self, connection: socket.socket) -> Peer:
        """Somebody who has connected; the connection is closed if it may not."""

    def connect(self, host: str, port: int) -> Peer:
        """To an engine at an address that the configuration allows."""


CONNECTORS: Mapping[KvConnector, Connector] = MappingProxyType(
    {KvConnector.TCP: TcpConnector(), KvConnector.SHM: ShmConnector()}
)
