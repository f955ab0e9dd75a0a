"""`CircuitBreaker`: keeps threads from waiting for engines that do not answer."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weft.engine.ipc.handshake import PeerError

OPEN_S = 5.0  # time for which an address that did not answer is not tried again


class CircuitBreaker:
    """Circuits by address. After `OPEN_S` one thread tries whether the address answers again; others still fail at
    once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at: dict[tuple[str, int], float] = {}

    @contextmanager
    def trying(self, host: str, port: int) -> Iterator[None]:
        """Context of a connection attempt, which ends with any answer. Raises `PeerError` at once while the circuit
        is open.
        """
        address = (host, port)
        with self._lock:
            retry_at, now = self._retry_at.get(address), self._clock()
            if retry_at is not None:
                if now < retry_at:
                    raise PeerError("it did not answer a moment ago")
                self._retry_at[address] = now + OPEN_S
        is_silent = False
        try:
            yield
        except OSError as error:
            is_silent = not isinstance(error, ConnectionError)  # a refusal is an answer
            raise
        finally:
            self._set(address, is_silent)

    def open(self, host: str, port: int) -> None:
        """Opens the circuit of an address that answered first, and then timed out."""
        self._set((host, port), is_silent=True)

    def _set(self, address: tuple[str, int], is_silent: bool) -> None:
        now = self._clock()
        with self._lock:
            self._retry_at.pop(address, None)
            if is_silent:
                # Addresses that were not tried for long are dropped, which bounds the table.
                recent = {a: at for a, at in self._retry_at.items() if now < at + OPEN_S}
                self._retry_at = recent | {address: now + OPEN_S}
