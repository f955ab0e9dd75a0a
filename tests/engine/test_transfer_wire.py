"""What goes between two engines: who gets blocks, and what bytes of others do."""

import select
import socket
import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.fake_runner import FakeRunner
from tests.doubles.transfers import transfer
from weft.core.values.kv_transfer import KvConnector, KvRole
from weft.engine.ipc.handshake import HANDSHAKE_S, PeerError, length_of
from weft.engine.transfer import lending, wire
from weft.engine.transfer.connectors import CONNECTORS
from weft.engine.transfer.pool_access import AccessEnded, PoolAccess
from weft.engine.transfer.tcp import TcpConnector, TcpPeer

SECRET = b"0123456789abcdef"
IDENTITY = wire.Identity(version="1", model="m", kv_layout="l", block_size=4, block_bytes=64)


@pytest.fixture(params=list(KvConnector))
def connector(request) -> KvConnector:
    return request.param


@contextmanager
def listening(connector: KvConnector, secret: bytes = SECRET):
    config = transfer(KvRole.PRODUCER, connector=connector)
    producer = lending.KvProducer(config, secret, IDENTITY, threading.Event().set)
    try:
        yield producer
    finally:
        producer.close()


def connect(producer) -> wire.Peer:
    connector = CONNECTORS[producer.config.connector]
    return connector.connect("127.0.0.1", producer.port)


def greet(producer, secret: bytes = SECRET, identity: wire.Identity = IDENTITY):
    """Somebody who has got through the handshake."""
    peer = connect(producer)
    try:
        peer.greet(secret, identity, "e")
    except BaseException:
        peer.__exit__()
        raise
    return peer


def runner_of(num_blocks: int = 8) -> FakeRunner:
    runner = FakeRunner()
    runner.allocate_kv(num_blocks=num_blocks, block_size=4)
    return runner


LENT = wire.Read("r", [1], [b"h" * 32])


def read_one(peer: wire.Peer, read: wire.Read = LENT):
    """The first of the blocks, as it came into another pool; None if it is not sent."""
    peer.request_blocks(read, IDENTITY.block_bytes)
    target = runner_of()
    if not peer.receive_block(PoolAccess(target), 2, IDENTITY.block_bytes):
        return None
    return target.read_block(2)


def offer(producer) -> FakeRunner:
    runner = runner_of()
    runner.write_block(1, np.arange(64, dtype=np.uint8))
    producer.offer("r", [1], [b"h" * 32], runner, 1)
    return runner


@pytest.mark.parametrize(
    ("secret", "identity", "message"),
    [
        (b"another secret, just as long", IDENTITY, "the secrets differ"),
        (b"", IDENTITY, "the secrets differ"),
        (SECRET, msgspec.structs.replace(IDENTITY, model="n"), "model differs"),
        (SECRET, msgspec.structs.replace(IDENTITY, block_bytes=2), "block_bytes differs"),
    ],
)
def test_who_is_somebody_else_gets_no_block(connector, secret, identity, message):
    """And who should gets them still."""
    with listening(connector) as producer:
        runner = offer(producer)
        with pytest.raises(PeerError, match=message), greet(producer, secret, identity):
            pass
        with greet(producer) as peer:
            assert (read_one(peer) == runner.read_block(1)).all()


HELLO = wire.Peer.magic + bytes(32)
HOSTILE = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(64),
    "half a hello": HELLO[:20],
    "no proof": HELLO,
    "a wrong proof": HELLO + bytes(32),
    "a huge frame": HELLO + b"\xff" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bytes_of_strangers_change_nothing(connector, name):
    """Whatever they send, and however they leave; who should gets blocks still."""
    with listening(connector) as producer:
        runner = offer(producer)
        for _ in range(3):
            with connect(producer) as stranger:
                stranger._socket.sendall(HOSTILE[name])
        with greet(producer) as peer:
            assert (read_one(peer) == runner.read_block(1)).all()


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x03\xc1\xc1\xc1",
        b"\x00\x00\x00\x02\x93\x01",
        b"\x00\x00\x00\x00",
    ],
)
def test_frames_that_are_none_end_their_connection_alone(connector, frame):
    """From who knows the secret, too: no length is believed."""
    with listening(connector) as producer:
        runner = offer(producer)
        with greet(producer) as bad, greet(producer) as peer:
            bad._socket.sendall(frame)
            with pytest.raises(PeerError, match="closed the connection"):
                bad.receive(wire.WANTED)
            assert (read_one(peer) == runner.read_block(1)).all()


@pytest.mark.parametrize(
    "wanted",
    [
        wire.Read("r", [2], [b"h" * 32]),
        wire.Read("r", [1], [b"i" * 32]),
        wire.Read("r", [-1], [b"h" * 32]),
        wire.Read("r", [10**9], [b"h" * 32]),
        wire.Read("s", [1], [b"h" * 32]),
    ],
)
def test_blocks_that_are_not_of_the_lease_are_not_sent(connector, wanted):
    """Each id and each hash is checked."""
    with listening(connector) as producer:
        offer(producer)
        with greet(producer) as peer:
            assert read_one(peer, wanted) is None
            assert read_one(peer) is not None


def test_who_leaves_in_the_middle_leaves_the_lease(connector):
    """It may come back, and the blocks are there until the lease has run out."""
    with listening(connector) as producer:
        offer(producer)
        with greet(producer) as peer:
            assert read_one(peer, wire.Read("r", [1] * 1000, [b"h" * 32] * 1000)) is not None
        with greet(producer) as peer:
            assert read_one(peer) is not None
        assert producer.take_ended() == []


def test_a_block_of_another_length_is_not_taken(connector):
    """No memory is made for a length that somebody sends."""
    with listening(connector) as producer:
        offer(producer)
        with greet(producer) as peer:
            peer.request_blocks(LENT, IDENTITY.block_bytes)
            with pytest.raises(PeerError, match="a block has 64 bytes instead of 32"):
                peer.receive_block(PoolAccess(runner_of()), 0, 32)


def test_a_block_that_is_taken_back_while_it_comes_is_written_no_more(connector):
    """It is another's by then: the engine does not wait for the rest of it, and none of that lands there."""
    with listening(connector) as producer:
        offer(producer)
        target = runner_of()
        access, before = PoolAccess(target), target.read_block(2)
        with greet(producer) as peer:
            peer.request_blocks(LENT, IDENTITY.block_bytes)
            access.end()
            with pytest.raises(AccessEnded):
                peer.receive_block(access, 2, IDENTITY.block_bytes)
        assert (target.read_block(2) == before).all()


def test_a_lease_ends_while_who_fetches_reads_nothing(connector):
    """The engine that lends waits for nobody, and what is written into its blocks later is not sent."""
    lent = wire.Read("r", [1] * 100_000, [b"h" * 32] * 100_000)
    with listening(connector) as producer:
        runner = offer(producer)
        expected = runner.read_block(1)
        target = runner_of()
        with greet(producer) as peer:
            peer.request_blocks(lent, IDENTITY.block_bytes)
            assert peer.receive_block(PoolAccess(target), 2, IDENTITY.block_bytes)
            producer.withdraw("r")
            runner.write_block(1, np.full(64, 255, np.uint8))
            with suppress(PeerError, OSError):
                while peer.receive_block(PoolAccess(target), 3, IDENTITY.block_bytes):
                    assert (target.read_block(3) == expected).all()


STATE_BYTES = 4 * wire.MIN_BYTES_PER_S


class SlowLine:
    """Brings a state in pieces, each after a pause by a clock that nothing else moves."""

    def __init__(self, sender: socket.socket, piece_bytes: int, pause_s: float):
        self.now_s = 0.0
        self._sender, self._piece_bytes, self._pause_s = sender, piece_bytes, pause_s
        state = memoryview(bytes(STATE_BYTES))
        digest = TcpPeer(sender)._digest([state], PoolAccess(SimpleNamespace()))
        self._rest = memoryview(bytes(state) + digest)

    def clock(self) -> float:
        return self.now_s

    def waiter(self, connection: socket.socket, event: int):
        poller = select.poll()
        poller.register(connection, event)

        def wait(timeout_s: float) -> bool:
            self.now_s += min(timeout_s, self._pause_s)
            if timeout_s < self._pause_s:
                return False
            self._sender.sendall(self._rest[: self._piece_bytes])
            self._rest = self._rest[self._piece_bytes :]
            return bool(poller.poll(PATIENCE_S * 1000))

        return wait


def receive_over(piece_bytes: int, pause_s: float) -> float:
    """The time it takes until a state is there; `TimeoutError` where it is given up."""
    target = SimpleNamespace(block_rows=lambda _: [memoryview(bytearray(STATE_BYTES))])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = socket.create_connection(listener.getsockname())
        sender, _ = listener.accept()
        line = SlowLine(sender, piece_bytes, pause_s)
        with sender, TcpPeer(receiver, line.waiter, line.clock) as peer:
            peer.request_blocks(LENT, STATE_BYTES)
            sender.sendall(length_of(STATE_BYTES))
            assert peer.receive_block(PoolAccess(target), 0, STATE_BYTES)
    return line.now_s


def test_a_large_state_may_take_as_long_as_its_bytes():
    """On a slow line it comes all the same; who sends nothing, or a byte now and then, is not waited for."""
    num_pieces, patience_s = 256, HANDSHAKE_S  # of who has not got through the handshake
    taken_s = receive_over(STATE_BYTES // num_pieces, (patience_s + 3) / num_pieces)
    assert taken_s > patience_s
    for piece_bytes, pause_s in ((STATE_BYTES // num_pieces, patience_s + 1), (1, 1)):
        with pytest.raises(TimeoutError):
            receive_over(piece_bytes, pause_s)


class Damaging(TcpPeer):
    """A lender whose block changes on the way, or that a stranger sends in its place."""

    key: bytes | None = None

    def send_block(self, access, block_id, num_bytes, *, is_last):
        rows = [memoryview(bytearray(row)) for row in access._copies.block_rows(block_id)]
        self._key = self.key or self._key
        digest = self._digest(rows, access)
        rows[0][0] ^= self.key is None
        self._socket.sendall(b"".join([length_of(num_bytes), *rows, digest]))


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["damaged", "signed by another"])
def test_a_block_that_is_not_as_it_was_sent_does_not_count(monkeypatch, key):
    """Its digest is made with a key of the connection, which needs the secret."""
    monkeypatch.setattr(Damaging, "key", key)
    monkeypatch.setattr(TcpConnector, "accept", lambda _, connection: Damaging(connection))
    with listening(KvConnector.TCP) as producer:
        offer(producer)
        with greet(producer) as peer, pytest.raises(PeerError, match="damaged in transit"):
            read_one(peer)


def test_more_connections_than_there_may_be_are_closed(connector):
    """And the next one finds a place when one has left."""
    with listening(connector) as producer:
        offer(producer)
        peers = [greet(producer) for _ in range(lending.MAX_CONNECTIONS)]
        with greet(producer) as one_more, pytest.raises((PeerError, OSError)):
            read_one(one_more)
        for peer in peers:
            peer.__exit__()
        for _ in range(int(PATIENCE_S / 0.01)):
            try:
                with greet(producer) as peer:
                    assert read_one(peer) is not None
                return
            except (PeerError, OSError):
                threading.Event().wait(0.01)
        raise AssertionError("no place became free")
