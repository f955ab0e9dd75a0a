"""Handshake and messages of two Weft processes that are connected over a network.

Both sides prove, with fresh nonces, that they know the secret: a peer without the secret learns nothing, and a proof
cannot be replayed to another peer. After the handshake the sides exchange frames of bounded length. Nothing is
encrypted.
"""

import hashlib
import hmac
import math
import os
import socket
import time
from contextlib import suppress
from typing import Self, TypeVar

import msgspec

NONCE_BYTES = 32
MAX_FRAME_BYTES = 4 << 20
CONNECT_S = 5.0
HANDSHAKE_S = 5.0
NUMBER_BYTES = 4

T = TypeVar("T")


class PeerError(Exception):
    """The peer is not the expected process, or violates the protocol."""


class ProvenSocket:
    """A connection that this object owns and closes. The methods block, with timeouts.

    `magic` names the protocol and its version.
    """

    magic: bytes

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._timeout_s = HANDSHAKE_S  # timeout of a whole message, in either direction
        self.deadline = math.inf  # deadline of all calls, on the monotonic clock
        self._key = b""  # set once the secret is proven; signs the messages of this connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def hang_up(self) -> None:
        """Shuts the connection down; callable from any thread.

        A call that waits for the peer then returns with an error.
        """
        with suppress(OSError):  # the socket is already closed
            self._socket.shutdown(socket.SHUT_RDWR)

    # -- handshake ----------------------------------------------------------------------------

    def prove_as_client(self, secret: bytes) -> None:
        """Performs the handshake of the connecting side. Raises `PeerError` if the peer does not know the secret."""
        ours = os.urandom(NONCE_BYTES)
        self._put(self.magic + ours)
        theirs = self._nonce()
        self._put(self._proof(secret, b"client", ours, theirs))
        self._check_proof(self._proof(secret, b"server", ours, theirs))
        self._key = self._proof(secret, b"key", ours, theirs)

    def prove_as_server(self, secret: bytes) -> None:
        """Performs the handshake of the accepting side. A peer that does not know the secret learns nothing."""
        theirs, ours = self._nonce(), os.urandom(NONCE_BYTES)
        self._put(self.magic + ours)
        self._check_proof(self._proof(secret, b"client", theirs, ours))
        self._put(self._proof(secret, b"server", theirs, ours))
        self._key = self._proof(secret, b"key", theirs, ours)

    def _nonce(self) -> bytes:
        hello = self._exactly(len(self.magic) + NONCE_BYTES)
        if not hello.startswith(self.magic):
            raise PeerError("the peer speaks another protocol, or another version of it")
        return hello[len(self.magic) :]

    def _check_proof(self, expected: bytes) -> None:
        try:
            is_right = hmac.compare_digest(self._exactly(len(expected)), expected)
        except PeerError:
            # The peer closed the connection because this side's proof did not match the peer's secret.
            is_right = False
        if not is_right:
            raise PeerError("the secrets differ")

    def _proof(self, secret: bytes, use: bytes, client: bytes, server: bytes) -> bytes:
        """Returns a proof that is valid only for this protocol and use, even if other protocols use the same secret."""
        return hmac.digest(secret, self.magic + use + client + server, hashlib.sha256)

    # -- messages -----------------------------------------------------------------------------

    def send(self, message: object) -> None:
        """Sends one message as a frame."""
        body = msgspec.msgpack.encode(message)
        if len(body) > MAX_FRAME_BYTES:
            raise PeerError(f"a message of {len(body)} bytes is too long")
        self._put(length_of(len(body)) + body)

    def receive(self, decoder: msgspec.msgpack.Decoder[T]) -> T:
        """Receives one frame and returns its message."""
        length = self._receive_number()
        if length > MAX_FRAME_BYTES:
            raise PeerError(f"a frame of {length} bytes is too long")
        try:
            return decoder.decode(self._exactly(length))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError(f"invalid frame: {error}") from None

    # -- bytes --------------------------------------------------------------------------------

    def _put(self, data: bytes | memoryview) -> None:
        self._wait_at_most(self._limit(self._timeout_s))
        self._socket.sendall(data)

    def _receive_number(self) -> int:
        return int.from_bytes(self._exactly(NUMBER_BYTES), "big")

    def _exactly(self, num_bytes: int) -> bytes:
        data = bytearray(num_bytes)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, rest: memoryview) -> None:
        limit_s = self._limit(self._timeout_s)
        deadline = time.monotonic() + limit_s
        self._wait_at_most(limit_s)
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise PeerError("the peer closed the connection")
            rest = rest[count:]
            if rest:
                self._wait_at_most(max(0.001, deadline - time.monotonic()))

    def _limit(self, timeout_s: float) -> float:
        """Returns the timeout in seconds, at most the time to the deadline; raises `TimeoutError` after the
        deadline.
        """
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the peer took too long")
        return min(timeout_s, left_s)

    def _wait_at_most(self, timeout_s: float) -> None:
        if self._socket.gettimeout() != timeout_s:  # setting the timeout costs a system call
            self._socket.settimeout(timeout_s)


def length_of(num_bytes: int) -> bytes:
    """Returns the encoded length that precedes a frame or a block."""
    return num_bytes.to_bytes(NUMBER_BYTES, "big")
