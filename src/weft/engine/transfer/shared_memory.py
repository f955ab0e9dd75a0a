"""`ShmConnector`: blocks through memory that two engines of one machine share.

The side that fetches makes a segment for each prompt and passes its descriptor over a Unix socket. A segment
has no name, so the system frees it with the last process that has it, however those end.
"""

import errno
import fcntl
import ipaddress
import mmap
import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weft.compute.host_blocks import Bytes
from weft.engine.transfer.wire import (
    CONNECT_S,
    NUMBER_BYTES,
    SERVE_S,
    WANTED,
    Block,
    GiveBack,
    Peer,
    Read,
    TransferError,
    length_of,
)

MAX_SEGMENT_BYTES = 32 << 20  # of a prompt; one block may have more
MAX_SLOTS = 128  # a socket takes that many small messages that nobody reads
_FIRST_FREE_PORT = 49152
_BACKLOG = 64
_ATTEMPTS = 64


class ShmPeer(Peer):
    """A segment is a row of slots, of a block each. A slot is written by who lends, and then is the other's
    until that gives it back.
    """

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._slots: NDArray[np.uint8] = np.empty((0, 0), np.uint8)  # [slots, bytes of a block]
        self._free: dict[int, None] = {}  # the last that was used goes first: it may be in a cache
        self._changed = threading.Condition()  # a slot is given back on another thread
        self._has_ended = False

    def __exit__(self, *error: object) -> None:
        with self._changed:
            super().__exit__(*error)

    def hang_up(self) -> None:
        """See `Peer`."""
        super().hang_up()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def send(self, message: object) -> None:
        """See `Peer`."""
        with self._changed:
            super().send(message)

    # -- who fetches --------------------------------------------------------------------------

    def request_blocks(self, read: Read, num_bytes: int) -> None:
        """See `Peer`."""
        num_slots = min(len(read.block_ids), _max_slots(num_bytes))
        descriptor = _make_segment(num_slots * num_bytes)
        try:
            with self._changed:
                self._slots = _map_slots(descriptor, num_slots, num_bytes)
                self._free = dict.fromkeys(range(num_slots))
            super().request_blocks(read, num_bytes)
            self._socket.settimeout(self._timeout_s)
            socket.send_fds(self._socket, [length_of(num_slots)], [descriptor])
        finally:
            os.close(descriptor)

    def receive_block(self, num_bytes: int) -> Block | None:
        """See `Peer`. Nothing can come while no slot is free: its own engine may be in a long step."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._has_ended, SERVE_S)
        if not self._is_block_next(num_bytes):
            return None
        slot = self._receive_number()
        with self._changed:
            if slot not in self._free:
                raise TransferError(f"a block is in slot {slot}, which is not free")
            del self._free[slot]
        return Block(self._slots[slot], partial(self._give_back, self._slots, slot))

    def _give_back(self, slots: NDArray[np.uint8], slot: int) -> None:
        """Never waits: at most every slot is on its way."""
        with self._changed:
            if slots is self._slots:
                self._free[slot] = None
                self._changed.notify_all()
                with suppress(OSError):  # it has been closed
                    super().send(GiveBack(slot))

    # -- who lends ----------------------------------------------------------------------------

    def begin_blocks(self, num_bytes: int) -> None:
        """See `Peer`. A segment that could become smaller, or is not what was said, is not touched."""
        self._socket.settimeout(self._timeout_s)
        said, descriptors, *_ = socket.recv_fds(
            self._socket, NUMBER_BYTES, 1, socket.MSG_CMSG_CLOEXEC
        )
        try:
            if len(said) < NUMBER_BYTES or len(descriptors) != 1:
                raise TransferError("it shares no memory")
            num_slots = int.from_bytes(said, "big")
            if not 1 <= num_slots <= _max_slots(num_bytes):
                raise TransferError(f"its segment has {num_slots} slots")
            _check_segment(descriptors[0], num_slots * num_bytes)
            self._slots = _map_slots(descriptors[0], num_slots, num_bytes)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._free = dict.fromkeys(range(num_slots))

    def next_place(self) -> Bytes:
        """See `Peer`."""
        while self._is_one_back():
            given = self.receive(WANTED)
            if not isinstance(given, GiveBack):
                raise TransferError("it wants something else before all blocks have gone")
            if not 0 <= given.slot < len(self._slots) or given.slot in self._free:
                raise TransferError(f"it gives back slot {given.slot}, which it has not got")
            self._free[given.slot] = None
        place: Bytes = self._slots[next(reversed(self._free))]
        return place

    def send_block(self, place: Bytes) -> None:
        """See `Peer`."""
        slot, _ = self._free.popitem()
        self._put(length_of(place.nbytes) + length_of(slot))

    def _is_one_back(self) -> bool:
        """Whether a slot comes back: now, or, while none is free, later."""
        if not self._free:
            return True
        self._socket.settimeout(0)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False


class ShmConnector:
    """See `Connector`. A port is a name of this machine here, and nothing listens on the network."""

    def listen(self, host: str, port: int) -> tuple[socket.socket, int]:
        """See `Connector`."""
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
        """See `Connector`."""
        return _of_same_user(connection)

    def connect(self, host: str, port: int, networks: Iterable[str]) -> Peer:
        """See `Connector`."""
        try:
            is_here = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_here = False
        if not is_here:
            raise TransferError(
                "it is on another machine, and ShmConnector shares the memory of one: take TcpConnector"
            )
        address = ipaddress.ip_address(host)
        if not any(address in ipaddress.ip_network(network) for network in networks):
            raise TransferError("its address is not among the peers of --kv-transfer-config")
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(_name(host, port))
        except OSError as error:
            connection.close()
            raise TransferError(
                "no engine shares its memory there: both need ShmConnector, on one machine and in one "
                f"network namespace ({error.strerror or error})"
            ) from error
        return _of_same_user(connection)


def _name(host: str, port: int) -> bytes:
    """Of an abstract socket, which leaves no file behind."""
    return b"\0weft-kv-" + str(ipaddress.ip_address(host)).encode() + b"-%d" % port


def _bind_any(listener: socket.socket, host: str) -> int:
    """Give it a number that nobody has."""
    for _ in range(_ATTEMPTS):
        number = _FIRST_FREE_PORT + secrets.randbelow(2**16 - _FIRST_FREE_PORT)
        with suppress(OSError):
            listener.bind(_name(host, number))
            return number
    raise OSError(errno.EADDRINUSE, "no port is free")


def _of_same_user(connection: socket.socket) -> ShmPeer:
    """Who else is on this machine may have the name that was looked for, or know ours."""
    form = struct.Struct("3i")  # process, user, group
    _, user, _ = form.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    )
    if user != os.geteuid():
        connection.close()
        raise TransferError(f"it runs as user {user}, and this one as {os.geteuid()}")
    return ShmPeer(connection)


def _max_slots(num_bytes: int) -> int:
    return min(MAX_SLOTS, max(1, MAX_SEGMENT_BYTES // num_bytes))


def _make_segment(num_bytes: int) -> int:
    descriptor = os.memfd_create("weft-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, num_bytes)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _check_segment(descriptor: int, num_bytes: int) -> None:
    """It has to stay as large as it is: to touch what is gone is a crash."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0  # no memory at all
    if not seals & fcntl.F_SEAL_SHRINK or seals & fcntl.F_SEAL_WRITE:
        raise TransferError("its segment is not sealed as it should be")
    if (size := os.fstat(descriptor).st_size) != num_bytes:
        raise TransferError(f"its segment has {size} bytes, and should have {num_bytes}")


def _map_slots(descriptor: int, num_slots: int, num_bytes: int) -> NDArray[np.uint8]:
    """Mapped for as long as a slot of it is in use."""
    mapped = mmap.mmap(descriptor, num_slots * num_bytes)
    return np.frombuffer(mapped, np.uint8).reshape(num_slots, num_bytes)
