"""The wire between two engines: who they are, what is asked for, and which blocks come.

A connection serves one prompt. Both sides first prove, over fresh nonces, that they know the secret; then
they say what their blocks are made of, and the rest is refused unless that is the same. All lengths are
bounded, and a block has the one length that both know. Over a network a block comes with a digest that its sender
has signed. Nothing is encrypted.
"""

import socket
import time
from abc import ABC, abstractmethod
from typing import TypeAlias

import msgspec

from weft.engine.ipc.handshake import PeerError, ProvenSocket, length_of
from weft.engine.transfer.pool_access import PoolAccess

MESSAGE_S = 10.0  # for a message from its first byte to its last, and without a byte of a block
SERVE_S = 60.0  # the same, for who fetches: its engine may be in a long step
MIN_BYTES_PER_S = 2**20  # of a block over a network, beyond that time
_WAIT = 2**32 - 1  # in place of a block's length


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What blocks are made of: only an engine of which all this is the same can use them."""

    version: str
    model: str
    kv_layout: str
    block_size: int
    block_bytes: int
    state_bytes: int = 0  # of a slot; 0: the model keeps no states of sequences


class Read(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Send these blocks of a lease, each named by its hash too, up to the first that is there no more.

    With `is_state` the state behind the last block of the lease, which is the one that is named, is sent as a block.
    """

    request_id: str
    block_ids: list[int]
    block_hashes: list[bytes]
    is_state: bool = False


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


class Peer(ProvenSocket, ABC):
    """The other side of a connection. How blocks travel is what connectors differ in."""

    magic = b"WEFTKVT4"

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.waited_s = 0.0  # for blocks that were being computed

    # -- handshake ----------------------------------------------------------------------------

    def greet(self, secret: bytes, identity: Identity, engine_id: str) -> None:
        """As who has connected, to an engine of that id."""
        self.prove_as_client(secret)
        self.send(identity)
        found, found_id = self.receive(_INTRODUCTION)
        _check_same(identity, found)
        if found_id != engine_id:
            raise PeerError(f"it is the engine {found_id[:80]!a}, not {engine_id[:80]!a}")
        self._timeout_s = MESSAGE_S

    def welcome(self, secret: bytes, identity: Identity, engine_id: str) -> None:
        """As who was connected to."""
        self.prove_as_server(secret)
        found = self.receive(_IDENTITY)
        self.send((identity, engine_id))
        _check_same(identity, found)
        self._timeout_s = SERVE_S

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
            raise PeerError(f"a block has {length} bytes, and should have {num_bytes}")
        return length > 0


def _check_same(ours: Identity, theirs: Identity) -> None:
    for name in Identity.__struct_fields__:
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            raise PeerError(f"it has another {name}: {str(b)[:80]!a}, and this one {a!a}")
