"""`PoolAccess`: a transfer's revocable access to blocks of its engine's pool, and to state slots."""

import threading

from weft.compute.protocols.runner import HostBlockCopies, HostCopies
from weft.engine.ipc.handshake import PeerError


class AccessEnded(PeerError):
    """The access was revoked: the blocks may already belong to another sequence."""

    def __init__(self) -> None:
        super().__init__("its blocks were released")


class PoolAccess:
    """Revocable access to the KV pool, for one transfer.

    Blocks are read and written only inside `with access as copies`, where no thread may wait. So `end` returns soon,
    and afterwards no transfer thread accesses the blocks. `states` is the same access to state slots, and ends together
    with the access to blocks.
    """

    def __init__(self, copies: HostCopies) -> None:
        slots = copies.state_slots if isinstance(copies, HostBlockCopies) else None
        self.states = None if slots is None else PoolAccess(slots)
        self._copies = copies
        self._lock = threading.Lock()
        self.is_ended = False

    def __enter__(self) -> HostCopies:
        self._lock.acquire()
        if self.is_ended:
            self._lock.release()
            raise AccessEnded
        return self._copies

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def end(self) -> None:
        """Revokes the access; waits until no thread is inside a `with` block."""
        with self._lock:
            self.is_ended = True
        if self.states is not None:
            self.states.end()
