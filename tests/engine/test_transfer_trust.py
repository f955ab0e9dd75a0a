"""Whose blocks an engine uses: those of engines that know the secret, or are configured peers, as they were sent."""

import socket
import threading
from contextlib import contextmanager

import pytest

from tests.doubles.fake_runner import FakeRunner
from tests.doubles.transfers import computed_at, transfer
from tests.engine.test_kv_transfer import LEND, ask, run_engine, tokens_of, watch_transfers
from tests.engine.test_offloading import greedy
from tests.engine.test_transfer_wire import Damaging
from weft.core.values.kv_transfer import KvPeer, KvRole
from weft.engine.transfer.lending import KvProducer
from weft.engine.transfer.tcp import TcpConnector
from weft.engine.transfer.wire import Identity

PROMPT = [*range(5, 23)]


@contextmanager
def impostor(secret: bytes):
    """Says that it is the engine that was named, and that it has computed whatever is asked for."""
    runner = FakeRunner()
    runner.allocate_kv(num_blocks=8, block_size=4)
    identity = Identity("1", "m", "l", 4, runner.read_block(0).nbytes)
    producer = KvProducer(transfer(KvRole.PRODUCER), secret, identity, threading.Event().set)
    try:
        yield producer.port
    finally:
        producer.close()


@pytest.mark.parametrize("secret", [b"", b"another secret, just as long"])
def test_blocks_of_who_does_not_know_the_secret_are_not_used(secret):
    """A caller can name any port; the prompt is computed here then."""
    with impostor(secret) as port, run_engine(KvRole.CONSUMER) as consumer:
        outputs = ask(consumer, "d", PROMPT, 6, computed_at(port))
        *_, stats = watch_transfers(consumer, lambda stats: stats.num_failed_receives == 1)
    assert tokens_of(outputs) == greedy(PROMPT, 6)
    assert outputs[-1].num_cached_tokens == 0
    assert stats.num_failed_receives == 1


def test_an_engine_that_is_no_peer_is_not_connected_to():
    """Without a secret the port is what tells a peer from any other process of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        peers = (KvPeer("127.0.0.1/32", port ^ 1),)
        with run_engine(KvRole.CONSUMER, secret_path=None, peers=peers) as consumer:
            outputs = ask(consumer, "d", PROMPT, 6, computed_at(port))
            watch_transfers(consumer, lambda stats: stats.num_failed_receives == 1)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert tokens_of(outputs) == greedy(PROMPT, 6)


def test_a_block_that_was_damaged_is_computed_again(monkeypatch):
    """The tokens are those of one engine alone, and nothing of what came is found as a prefix later."""
    monkeypatch.setattr(TcpConnector, "accept", lambda _, connection: Damaging(connection))
    with run_engine(KvRole.PRODUCER) as producer, run_engine(KvRole.CONSUMER) as consumer:
        [lent] = ask(producer, "p", PROMPT, 1, LEND)
        outputs = ask(consumer, "d", PROMPT, 6, lent.kv_transfer_params)
        watch_transfers(consumer, lambda stats: stats.num_failed_receives == 1)
        again = ask(consumer, "e", PROMPT, 6)
    assert tokens_of(outputs) == tokens_of(again) == greedy(PROMPT, 6)
    assert outputs[-1].num_cached_tokens == 0
