"""`CircuitBreaker`: engines that let threads wait in vain are not tried by all of them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weft.engine.ipc.handshake import PeerError

OPEN_S = 5.0  # that nobody tries an address which has not answered


class CircuitBreaker:
    """By address. After `OPEN_S` one thread finds out whether it answers again, and others still do not wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at: dict[tuple[str, int], float] = {}

    @contextmanager
    def trying(self, host: str, port: int) -> Iterator[None]:
        """Around whatever ends once it has answered, if only to refuse; `PeerError` at once where it is too early."""
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
        """It has answered at first, and then let a thread wait in vain."""
        self._set((host, port), is_silent=True)

    def _set(self, address: tuple[str, int], is_silent: bool) -> None:
        now = self._clock()
        with self._lock:
            self._retry_at.pop(address, None)
            if is_silent:
                # What nobody has tried for long is forgotten: there are no more than were waited for lately.
                recent = {a: at for a, at in self._retry_at.items() if now < at + OPEN_S}
                self._retry_at = recent | {address: now + OPEN_S}
