"""`UnprovenConnections`: connections whose peer has not proven yet that it knows the secret."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from weft.engine.ipc.handshake import ProvenSocket

PROVE_S = 5.0  # timeout of a whole handshake
MAX_UNPROVEN = 64


class UnprovenConnections:
    """Bounds unproven connections apart from the proven ones. A connection above the limit ends the oldest one."""

    def __init__(self, max_connections: int = MAX_UNPROVEN) -> None:
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._connections: dict[ProvenSocket, None] = {}  # the oldest first

    @contextmanager
    def proving(self, connection: ProvenSocket) -> Iterator[None]:
        """Context of a connection's handshake, which may take `PROVE_S`."""
        connection.deadline = time.monotonic() + PROVE_S
        with self._lock:
            self._connections[connection] = None
            if len(self._connections) > self._max_connections:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                oldest.hang_up()
        try:
            yield
        finally:
            with self._lock:
                self._connections.pop(connection, None)
        connection.deadline = math.inf
