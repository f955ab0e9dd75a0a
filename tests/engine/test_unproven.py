"""weft.engine.ipc.unproven: strangers who say nothing take no place of engines that know the secret."""

import math
import socket
import threading

import pytest

from tests.engine.test_slow_peers import no_thread
from tests.engine.test_transfer_wire import connect, greet, listening, offer, read_one
from weft.core.values.kv_transfer import KvConnector
from weft.engine.ipc import unproven
from weft.engine.ipc.handshake import PeerError, ProvenSocket
from weft.engine.ipc.unproven import MAX_UNPROVEN, UnprovenConnections


@pytest.fixture(params=list(KvConnector))
def connector(request) -> KvConnector:
    return request.param


def test_silent_connections_keep_nobody_out():
    """Ten more than a lender keeps of them, and it lends at once."""
    with listening(KvConnector.TCP) as producer:
        offer(producer)
        strangers = [connect(producer) for _ in range(MAX_UNPROVEN + 10)]
        with greet(producer) as peer:
            assert read_one(peer) is not None
        for stranger in strangers:
            stranger.__exit__()


def test_a_lender_without_memory_for_a_thread_lends_to_the_next(monkeypatch):
    """A connection that gets no thread is closed, and its peer computes the prompt."""
    with listening(KvConnector.TCP) as producer:
        offer(producer)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises((PeerError, OSError)):
                greet(producer)
        with greet(producer) as peer:
            assert read_one(peer) is not None


def test_the_oldest_goes_first():
    """Whoever came last has as much time to prove the secret as ever."""
    ends = [socket.socketpair() for _ in range(3)]
    peers = [ProvenSocket(near) for near, _ in ends]
    found = UnprovenConnections(2)
    with found.proving(peers[0]), found.proving(peers[1]), found.proving(peers[2]):
        assert ends[0][1].recv(1) == b""
        for _, far in ends[1:]:
            far.setblocking(False)
            with pytest.raises(BlockingIOError):
                far.recv(1)
    for near, far in ends:
        near.close()
        far.close()


def test_a_proven_connection_has_no_deadline():
    """It stays as long as blocks are to be fetched."""
    near, far = socket.socketpair()
    with near, far:
        peer = ProvenSocket(near)
        with UnprovenConnections().proving(peer):
            assert peer.deadline < math.inf
        assert peer.deadline == math.inf


def test_whoever_sends_a_byte_now_and_then_has_a_limit_too(connector, monkeypatch):
    """It is for the whole handshake."""
    monkeypatch.setattr(unproven, "PROVE_S", 0.2)
    with listening(connector) as producer, connect(producer) as stranger:
        ended = threading.Event()
        stranger._socket.settimeout(0.02)
        while not ended.is_set():
            try:
                stranger._socket.sendall(b"W")
                if not stranger._socket.recv(1):
                    ended.set()
            except TimeoutError:
                continue
            except OSError:
                ended.set()
