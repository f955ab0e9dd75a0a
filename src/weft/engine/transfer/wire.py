"""The wire between two engines: who they are, what is asked for, and which blocks come.

A connection serves one prompt. Both sides first prove, over fresh nonces, that they know the secret; then
they say what their blocks are made of, and the rest is refused unless that is the same. All lengths are
bounded, and a block has the one length that both know. Nothing is encrypted.
"""

import hashlib
import hmac
import os
import socket
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TypeAlias, TypeVar

import msgspec

from weft.engine.transfer.pool_access import PoolAccess, TransferError

MAGIC = b"WEFTKVT1"
NONCE_BYTES = 32
MAX_FRAME_BYTES = 4 << 20
CONNECT_S = 5.0
HANDSHAKE_S = 5.0
MESSAGE_S = 10.0  # for a message or a block, from its first byte to its last
SERVE_S = 60.0  # the same, for who fetches: its engine may be in a long step
NUMBER_BYTES = 4
_WAIT = 2**32 - 1  # in place of a block's length

T = TypeVar("T")


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What blocks are made of: only an engine of which all this is the same can use them."""

    version: str
    model: str
    kv_layout: str
    block_size: int
    block_bytes: int


class Read(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Send these blocks of a lease, each named by its hash too, up to the first that is there no more."""

    request_id: str
    block_ids: list[int]
    block_hashes: list[bytes]


class Release(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The lease is needed no more."""

    request_id: str


class GiveBack(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """So many slots of a segment, those that were filled first, can be filled again."""

    num_slots: int


Wanted: TypeAlias = Read | Release | GiveBack
WANTED: msgspec.msgpack.Decoder[Wanted] = msgspec.msgpack.Decoder(Wanted)
_IDENTITY = msgspec.msgpack.Decoder(Identity)
_INTRODUCTION = msgspec.msgpack.Decoder(tuple[Identity, str])


class Peer(ABC):
    """The other side of a connection that has been made, and is closed with this.

    How blocks travel is what connectors differ in.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._timeout_s = HANDSHAKE_S  # of a whole message, either way
        self.waited_s = 0.0  # for blocks that were being computed

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def hang_up(self) -> None:
        """From another thread: wake whoever waits for the other side."""
        with suppress(OSError):  # it has been closed
            self._socket.shutdown(socket.SHUT_RDWR)

    # -- handshake ----------------------------------------------------------------------------

    def greet(self, secret: bytes, identity: Identity, engine_id: str) -> None:
        """As who has connected, to an engine of that id."""
        ours = os.urandom(NONCE_BYTES)
        self._put(MAGIC + ours)
        theirs = self._nonce()
        self._put(_proof(secret, b"client", ours, theirs))
        self._check_proof(_proof(secret, b"server", ours, theirs))
        self.send(identity)
        found, found_id = self.receive(_INTRODUCTION)
        _check_same(identity, found)
        if found_id != engine_id:
            raise TransferError(f"it is the engine {found_id[:80]!a}, not {engine_id[:80]!a}")
        self._timeout_s = MESSAGE_S

    def welcome(self, secret: bytes, identity: Identity, engine_id: str) -> None:
        """As who was connected to. Nothing is said of this engine to who does not know the secret."""
        theirs, ours = self._nonce(), os.urandom(NONCE_BYTES)
        self._put(MAGIC + ours)
        self._check_proof(_proof(secret, b"client", theirs, ours))
        self._put(_proof(secret, b"server", theirs, ours))
        found = self.receive(_IDENTITY)
        self.send((identity, engine_id))
        _check_same(identity, found)
        self._timeout_s = SERVE_S

    def _nonce(self) -> bytes:
        hello = self._exactly(len(MAGIC) + NONCE_BYTES)
        if not hello.startswith(MAGIC):
            raise TransferError("it speaks another protocol, or another version of this one")
        return hello[len(MAGIC) :]

    def _check_proof(self, expected: bytes) -> None:
        try:
            is_right = hmac.compare_digest(self._exactly(len(expected)), expected)
        except TransferError:  # it hung up: our proof did not convince it either
            is_right = False
        if not is_right:
            raise TransferError("the secrets are not the same")

    # -- messages -----------------------------------------------------------------------------

    def send(self, message: object) -> None:
        """One frame."""
        body = msgspec.msgpack.encode(message)
        if len(body) > MAX_FRAME_BYTES:
            raise TransferError(f"a message of {len(body)} bytes is too long")
        self._put(length_of(len(body)) + body)

    def receive(self, decoder: msgspec.msgpack.Decoder[T]) -> T:
        """One frame, as a value of the decoder's kind."""
        length = self._receive_number()
        if length > MAX_FRAME_BYTES:
            raise TransferError(f"a frame of {length} bytes is too long")
        try:
            return decoder.decode(self._exactly(length))
        except msgspec.DecodeError as error:
            raise TransferError(f"a frame is not as it should be: {error}") from None

    # -- blocks -------------------------------------------------------------------------------

    def request_blocks(self, read: Read, num_bytes: int) -> None:
        """As who fetches: have blocks of that many bytes sent."""
        self.send(read)

    @abstractmethod
    def receive_block(self, access: PoolAccess, block_id: int, num_bytes: int) -> bool:
        """The next block, of that size, into a block of the pool; False if it is there no more.

        What was there before is lost in any case.
        """

    @abstractmethod
    def begin_blocks(self, num_bytes: int) -> None:
        """As who lends, before the first block of a `Read`."""

    @abstractmethod
    def send_block(
        self, access: PoolAccess, block_id: int, num_bytes: int, *, is_last: bool
    ) -> None:
        """A block of the pool, of that size; one that is not the last may arrive with what is sent next.

        After an error nothing else can be sent.
        """

    def send_end(self) -> None:
        """No block follows, of those that were wanted."""
        self._put(length_of(0))

    def send_wait(self) -> None:
        """The next block is still being computed."""
        self._put(length_of(_WAIT))

    def _is_block_next(self, num_bytes: int) -> bool:
        length, began = self._receive_number(), time.monotonic()
        while length == _WAIT:
            length = self._receive_number()
            self.waited_s += time.monotonic() - began
            began = time.monotonic()
        if length not in (0, num_bytes):
            raise TransferError(f"a block has {length} bytes, and should have {num_bytes}")
        return length > 0

    # -- bytes --------------------------------------------------------------------------------

    def _put(self, data: bytes | memoryview) -> None:
        self._wait_at_most(self._timeout_s)
        self._socket.sendall(data)

    def _receive_number(self) -> int:
        return int.from_bytes(self._exactly(NUMBER_BYTES), "big")

    def _exactly(self, num_bytes: int) -> bytes:
        data = bytearray(num_bytes)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, rest: memoryview) -> None:
        deadline = time.monotonic() + self._timeout_s
        self._wait_at_most(self._timeout_s)
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise TransferError("it closed the connection")
            rest = rest[count:]
            if rest:
                self._wait_at_most(max(0.001, deadline - time.monotonic()))

    def _wait_at_most(self, timeout_s: float) -> None:
        if self._socket.gettimeout() != timeout_s:  # to set it is a call of the system
            self._socket.settimeout(timeout_s)


def _proof(secret: bytes, side: bytes, client: bytes, server: bytes) -> bytes:
    return hmac.digest(secret, side + client + server, hashlib.sha256)


def _check_same(ours: Identity, theirs: Identity) -> None:
    for name in Identity.__struct_fields__:
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            raise TransferError(f"it has another {name}: {str(b)[:80]!a}, and this one {a!a}")


def length_of(num_bytes: int) -> bytes:
    """As it goes before a frame or a block."""
    return num_bytes.to_bytes(NUMBER_BYTES, "big")
