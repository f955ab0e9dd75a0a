"""`CircuitBreaker`: avoids that threads wait for engines that do not answer."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weft.engine.ipc.handshake import PeerError

OPEN_S = 5.0  # an address that did not answer is not tried again for this time


class CircuitBreaker:
    """Records addresses that do not answer, so that connections to them fail at once.

    After `OPEN_S` seconds one thread tries whether the address answers again; attempts of other threads still fail at
    once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at: dict[tuple[str, int], float] = {}

    @contextmanager
    def trying(self, host: str, port: int) -> Iterator[None]:
        """Context manager around a connection attempt; any answer closes the circuit.

        Raises `PeerError` at once while the circuit of the address is open.
        """
        address = (host, port)
        with self._lock:
            retry_at, now = self._retry_at.get(address), self._clock()
            if retry_at is not None:
                if now < retry_at:
                    raise PeerError("the engine did not answer a connection attempt a moment ago")
                self._retry_at[address] = now + OPEN_S
        is_silent = False
        try:
            yield
        except OSError as error:
            is_silent = not isinstance(error, ConnectionError)  # a refused connection is an answer
            raise
        finally:
            self._set(address, is_silent)

    def open(self, host: str, port: int) -> None:
        """Opens the circuit of an address that answered at first and then timed out."""
        self._set((host, port), is_silent=True)

    def _set(self, address: tuple[str, int], is_silent: bool) -> None:
        now = self._clock()
        with self._lock:
            self._retry_at.pop(address, None)
            if is_silent:
                # Addresses that were not tried for a long time are dropped, which bounds the table.
                recent = {a: at for a, at in self._retry_at.items() if now < at + OPEN_S}
                self._retry_at = recent | {address: now + OPEN_S}
