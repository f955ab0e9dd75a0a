"""`SilentPeers`: engines that let threads wait in vain are not asked by all of them."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weft.engine.handshake import PeerError

SILENT_S = 5.0  # that nobody asks a peer again which has not answered


class SilentPeers:
    """By address. After `SILENT_S` one thread finds out whether it answers again, and others still do not wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at: dict[tuple[str, int], float] = {}

    @contextmanager
    def asking(self, host: str, port: int) -> Iterator[Callable[[], None]]:
        """`PeerError` where it is too early. What is yielded is to be called once the peer has answered."""
        address, has_answered = (host, port), False
        with self._lock:
            retry_at, now = self._retry_at.get(address), self._clock()
            if retry_at is not None:
                if now < retry_at:
                    raise PeerError("it did not answer a moment ago")
                self._retry_at[address] = now + SILENT_S

        def answered() -> None:
            nonlocal has_answered
            has_answered = True
            with self._lock:
                self._retry_at.pop(address, None)

        try:
            yield answered
        except OSError as error:
            is_silence = isinstance(error, TimeoutError) or error.errno == errno.EHOSTUNREACH
            if is_silence and not has_answered:
                self._add(address)
            raise

    def _add(self, address: tuple[str, int]) -> None:
        now = self._clock()
        with self._lock:
            # What nobody has asked for long is forgotten, so that there are no more than were waited for lately.
            recent = {a: at for a, at in self._retry_at.items() if now < at + SILENT_S}
            self._retry_at = recent | {address: now + SILENT_S}
