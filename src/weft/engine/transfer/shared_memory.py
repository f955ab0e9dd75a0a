"""`ShmConnector`: sends blocks through memory that two engines of one machine share.

The fetching side creates a memory segment for each prompt and passes its descriptor over a Unix socket. A segment has
no name, so the system frees it with the last process that has it, however the processes end.
"""

import errno
import fcntl
import ipaddress
import mmap
import os
import secrets
import socket
import struct
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from weft.compute.host_blocks import Bytes
from weft.engine.ipc.handshake import CONNECT_S, NUMBER_BYTES, PeerError, length_of
from weft.engine.transfer.pool_access import PoolAccess
from weft.engine.transfer.wire import (
    WANTED,
    GiveBack,
    Peer,
    Read,
)

# Size of a segment per prompt, unless two blocks are larger: small enough for the CPU's cache.
SEGMENT_BYTES = 4 << 20
MIN_SLOTS = 2  # one is filled while the other is read
MAX_SLOTS = 64  # a socket buffers at least this many small unread messages
_FIRST_FREE_PORT = 49152
_BACKLOG = 64
_ATTEMPTS = 64


class ShmPeer(Peer):
    """A peer with a shared memory segment: a ring of slots of one block each.

    The lending side fills the slots, and the fetching side reads them.
    """

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._use(np.empty((0, 0), np.uint8))

    def _use(self, slots: NDArray[np.uint8]) -> None:
        self._slots = slots  # [slots, bytes of a block]
        self._num_moved = 0  # number of blocks that went through the slots
        self._num_given_back = 0

    # -- the fetching side --------------------------------------------------------------------

    def request_blocks(self, read: Read, num_bytes: int) -> None:
        num_slots = min(len(read.block_ids), _max_slots(num_bytes))
        descriptor = _make_segment(num_slots * num_bytes)
        try:
            self._use(_map_slots(descriptor, num_slots, num_bytes))
            super().request_blocks(read, num_bytes)
            self._wait_at_most(self._limit(self._timeout_s))
            socket.send_fds(self._socket, [length_of(num_slots)], [descriptor])
        finally:
            os.close(descriptor)

    def receive_block(self, access: PoolAccess, block_id: int, num_bytes: int) -> bool:
        if not self._is_block_next(num_bytes):
            return False
        with access as copies:
            copies.write_block(block_id, self._next_slot())
        self._num_moved += 1
        num_slots = self._num_moved - self._num_given_back
        if num_slots >= len(self._slots) // 2:
            self._num_given_back = self._num_moved
            self.send(GiveBack(num_slots))
        return True

    # -- the lending side ---------------------------------------------------------------------

    def begin_blocks(self, num_bytes: int) -> None:
        """Prepares for the first block.

        Rejects, without access, a segment that could shrink or has an unexpected size.
        """
        self._wait_at_most(self._limit(self._timeout_s))
        said, descriptors, *_ = socket.recv_fds(
            self._socket, NUMBER_BYTES, 1, socket.MSG_CMSG_CLOEXEC
        )
        try:
            if len(said) < NUMBER_BYTES or len(descriptors) != 1:
                raise PeerError("the peer sent no shared memory")
            num_slots = int.from_bytes(said, "big")
            if not 1 <= num_slots <= _max_slots(num_bytes):
                raise PeerError(f"its segment has {num_slots} slots")
            _check_segment(descriptors[0], num_slots * num_bytes)
            self._use(_map_slots(descriptors[0], num_slots, num_bytes))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def send_block(
        self, access: PoolAccess, block_id: int, num_bytes: int, *, is_last: bool
    ) -> None:
        if self._num_moved - self._num_given_back == len(self._slots):
            given = self.receive(WANTED)
            if not isinstance(given, GiveBack):
                raise PeerError("the peer sent another request before all blocks were sent")
            if not 1 <= given.num_slots <= len(self._slots):
                raise PeerError(f"it gives back {given.num_slots} slots")
            self._num_given_back += given.num_slots
        with access as copies:
            copies.copy_block(block_id, self._next_slot())
        self._num_moved += 1
        self._put(length_of(num_bytes))

    def _next_slot(self) -> Bytes:
        slot: Bytes = self._slots[self._num_moved % len(self._slots)]
        return slot


class ShmConnector:
    """Connects engines on one machine. A port is only part of a socket's name; no network socket listens."""

    def listen(self, host: str, port: int) -> tuple[socket.socket, int]:
        listener = socket.socket(socket.AF_UNIX)
        try:
            number = port or _bind_any(listener, host)
            if port:
                listener.bind(_name(host, port))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener, number

    def accept(self, connection: socket.socket) -> Peer:
        return _of_same_user(connection)

    def connect(self, host: str, port: int) -> Peer:
        """Connects to an engine of this machine; its address is always a loopback address."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(_name(host, port))
        except OSError as error:
            connection.close()
            raise PeerError(
                "no engine shares its memory there: both need ShmConnector, on one machine and in one "
                f"network namespace ({error.strerror or error})"
            ) from error
        return _of_same_user(connection)


def _name(host: str, port: int) -> bytes:
    """Returns the name of an abstract Unix socket, which leaves no file behind."""
    return b"\0weft-kv-" + str(ipaddress.ip_address(host)).encode() + b"-%d" % port


def _bind_any(listener: socket.socket, host: str) -> int:
    """Binds the listener to a free port number and returns the number."""
    for _ in range(_ATTEMPTS):
        number = _FIRST_FREE_PORT + secrets.randbelow(2**16 - _FIRST_FREE_PORT)
        with suppress(OSError):
            listener.bind(_name(host, number))
            return number
    raise OSError(errno.EADDRINUSE, "no port is free")


def _of_same_user(connection: socket.socket) -> ShmPeer:
    """Returns the peer; raises if its process belongs to another user.

    Another user's process could have taken the expected name, or could know this process's name.
    """
    form = struct.Struct("3i")  # process id, user id, group id
    _, user, _ = form.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    )
    if user != os.geteuid():
        connection.close()
        raise PeerError(f"the peer runs as user {user}, this process as {os.geteuid()}")
    return ShmPeer(connection)


def _max_slots(num_bytes: int) -> int:
    return min(MAX_SLOTS, max(MIN_SLOTS, SEGMENT_BYTES // num_bytes))


def _make_segment(num_bytes: int) -> int:
    descriptor = os.memfd_create("weft-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, num_bytes)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _check_segment(descriptor: int, num_bytes: int) -> None:
    """Raises unless the segment cannot shrink: access to a removed page would crash this process."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0  # the descriptor is not an in-memory file
    if not seals & fcntl.F_SEAL_SHRINK or seals & fcntl.F_SEAL_WRITE:
        raise PeerError("the peer's segment is not sealed against shrinking")
    if (size := os.fstat(descriptor).st_size) != num_bytes:
        raise PeerError(f"the peer's segment has {size} bytes instead of {num_bytes}")


def _map_slots(descriptor: int, num_slots: int, num_bytes: int) -> NDArray[np.uint8]:
    """Maps the segment as [slots, bytes of a block]; it stays mapped while a slot is in use."""
    mapped = mmap.mmap(descriptor, num_slots * num_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return np.frombuffer(mapped, np.uint8).reshape(num_slots, num_bytes)
