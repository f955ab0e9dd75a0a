"""`PoolAccess`: a transfer's right to touch blocks of its engine's pool, and slots beside it, which the engine can
take back."""

import threading

from weft.compute.protocols.runner import BlockCopies, Copies
from weft.engine.ipc.handshake import PeerError


class AccessEnded(PeerError):
    """The blocks are another's by now."""

    def __init__(self) -> None:
        super().__init__("its blocks were taken back")


class PoolAccess:
    """Blocks are read and written inside `with access as copies` alone, where nobody waits for anything.

    So `end` returns soon, and when it has, no thread of a transfer touches them any more. `states` is the same
    right to slots of states, and ends with this one.
    """

    def __init__(self, copies: Copies) -> None:
        slots = copies.state_slots if isinstance(copies, BlockCopies) else None
        self.states = None if slots is None else PoolAccess(slots)
        self._copies = copies
        self._lock = threading.Lock()
        self.is_ended = False

    def __enter__(self) -> Copies:
        self._lock.acquire()
        if self.is_ended:
            self._lock.release()
            raise AccessEnded
        return self._copies

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def end(self) -> None:
        """Take them back."""
        with self._lock:
            self.is_ended = True
        if self.states is not None:
            self.states.end()
