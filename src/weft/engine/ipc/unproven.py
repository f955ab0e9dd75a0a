"""`UnprovenConnections`: connections whose peer has not yet proven that it knows the secret."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from weft.engine.ipc.handshake import ProvenSocket

PROVE_S = 5.0  # timeout of a whole handshake
MAX_UNPROVEN = 64


class UnprovenConnections:
    """Limits the number of unproven connections. A connection above the limit closes the oldest unproven one."""

    def __init__(self, max_connections: int = MAX_UNPROVEN) -> None:
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._connections: dict[ProvenSocket, None] = {}  # oldest first

    @contextmanager
    def proving(self, connection: ProvenSocket) -> Iterator[None]:
        """Context manager around a connection's handshake, which may take `PROVE_S` seconds."""
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
