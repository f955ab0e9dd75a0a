"""Protocol between two engines: handshake, comparison of their models, requests for blocks, and the blocks.

A connection serves one prompt. First both sides prove, with fresh nonces, that they know the secret. Then they exchange
the identity of their blocks, and stop unless the identities are equal. All lengths are bounded, and all blocks have the
length that both sides know. Over a network each block has a digest that its sender has signed. Nothing is encrypted.
"""

import socket
import time
from abc import ABC, abstractmethod
from typing import TypeAlias

import msgspec

from weft.engine.ipc.handshake import PeerError, ProvenSocket, length_of
from weft.engine.transfer.pool_access import PoolAccess

MESSAGE_S = 10.0  # timeout of a whole message, and of the next byte of a block
SERVE_S = 60.0  # the same timeouts on the lending side, whose peer may be in a long step
MIN_BYTES_PER_S = 2**20  # of a block over a network: longer timeout for large blocks
_WAIT = 2**32 - 1  # sent in place of a block's length


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Properties of KV blocks: only an engine with equal values can use them."""

    version: str
    model: str
    kv_layout: str
    block_size: int
    block_bytes: int
    state_bytes: int = 0  # size of a slot; 0 for a model without states


class Read(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Requests blocks of a lease, each with its hash.

    Blocks are sent up to the first block that the lease no longer has. With `is_state` the named block is the last one
    of the lease, and the state after it is sent in the form of a block.
    """

    request_id: str
    block_ids: list[int]
    block_hashes: list[bytes]
    is_state: bool = False


class Release(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Releases the lease."""

    request_id: str


class GiveBack(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Returns the `num_slots` slots of a segment that were filled first to the sender, which may fill them again."""

    num_slots: int


Wanted: TypeAlias = Read | Release | GiveBack
WANTED: msgspec.msgpack.Decoder[Wanted] = msgspec.msgpack.Decoder(Wanted)
_IDENTITY = msgspec.msgpack.Decoder(Identity)
_INTRODUCTION = msgspec.msgpack.Decoder(tuple[Identity, str])


class Peer(ProvenSocket, ABC):
    """The other side of a connection between two engines. Subclasses define how blocks are sent."""

    magic = b"WEFTKVT4"

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.waited_s = 0.0  # time spent waiting for blocks that were being computed

    # -- handshake ----------------------------------------------------------------------------

    def greet(self, secret: bytes, identity: Identity, engine_id: str) -> None:
        """Performs the handshake of the connecting side with the engine `engine_id`."""
        self.prove_as_client(secret)
        self.send(identity)
        found, found_id = self.receive(_INTRODUCTION)
        _check_same(identity, found)
        if found_id != engine_id:
            raise PeerError(f"the peer is the engine {found_id[:80]!a}, not {engine_id[:80]!a}")
        self._timeout_s = MESSAGE_S

    def welcome(self, secret: bytes, identity: Identity, engine_id: str) -> None:
        """Performs the handshake of the accepting side, whose engine is `engine_id`."""
        self.prove_as_server(secret)
        found = self.receive(_IDENTITY)
        self.send((identity, engine_id))
        _check_same(identity, found)
        self._timeout_s = SERVE_S

    # -- blocks -------------------------------------------------------------------------------

    def request_blocks(self, read: Read, num_bytes: int) -> None:
        """Requests blocks of `num_bytes` bytes each; for the fetching side."""
        self.send(read)

    @abstractmethod
    def receive_block(self, access: PoolAccess, block_id: int, num_bytes: int) -> bool:
        """Receives the next block into a block of the pool; False if the lease no longer has the requested block.

        The former content of the pool's block is lost in any case.
        """

    @abstractmethod
    def begin_blocks(self, num_bytes: int) -> None:
        """Prepares for sending the first block of a `Read`; for the lending side."""

    @abstractmethod
    def send_block(
        self, access: PoolAccess, block_id: int, num_bytes: int, *, is_last: bool
    ) -> None:
        """Sends a block of the pool. Unless the block `is_last`, its end may arrive only with the next data.

        After an error nothing else can be sent on this connection.
        """

    def send_end(self) -> None:
        """Tells the peer that no further requested block follows."""
        self._put(length_of(0))

    def send_wait(self) -> None:
        """Tells the peer that the next block is still being computed."""
        self._put(length_of(_WAIT))

    def _is_block_next(self, num_bytes: int) -> bool:
        length, began = self._receive_number(), time.monotonic()
        while length == _WAIT:
            length = self._receive_number()
            self.waited_s += time.monotonic() - began
            began = time.monotonic()
        if length not in (0, num_bytes):
            raise PeerError(f"a block has {length} bytes instead of {num_bytes}")
        return length > 0


def _check_same(ours: Identity, theirs: Identity) -> None:
    for name in Identity.__struct_fields__:
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            raise PeerError(f"{name} differs: {str(b)[:80]!a} there, {a!a} here")
