"""Engines that let others wait: a fetch has one limit in all, and threads are shared out among them."""

import threading

import pytest

from tests.busy import PATIENCE_S
from tests.engine.test_kv_transfer import LEND, ask, run_engine, tokens_of, watch_transfers
from tests.engine.test_offloading import greedy
from weft.core.values.kv_transfer import KvRole
from weft.engine.transfer.peer_threads import PeerThreads
from weft.engine.transfer.tcp import TcpConnector, TcpPeer

PROMPT = [*range(5, 23)]


class Waiting(TcpPeer):
    """A lender that says for ever that its next block is still being computed."""

    pause_s = 0.0
    num_reads = 0

    def send_block(self, access, block_id, num_bytes, *, is_last):
        Waiting.num_reads += 1
        pause = threading.Event()
        while True:  # until the other side hangs up
            self.send_wait()
            pause.wait(self.pause_s)


@pytest.mark.parametrize("pause_s", [0.0, 0.05], ids=["flooding", "now and then"])
def test_a_fetch_ends_though_its_peer_says_that_it_computes(monkeypatch, pause_s):
    """The prompt is computed here; the peer is not asked again for a while, which would take as long."""
    monkeypatch.setattr(Waiting, "pause_s", pause_s)
    monkeypatch.setattr(Waiting, "num_reads", 0)
    monkeypatch.setattr(TcpConnector, "accept", lambda _, connection: Waiting(connection))
    consuming = run_engine(KvRole.CONSUMER, fetch_timeout_s=0.3)
    with run_engine(KvRole.PRODUCER) as producer, consuming as consumer:
        for number, prompt in enumerate((PROMPT, [4, *PROMPT])):
            [lent] = ask(producer, f"p{number}", prompt, 1, LEND)
            outputs = ask(consumer, f"d{number}", prompt, 3, lent.kv_transfer_params)
            assert tokens_of(outputs) == greedy(prompt, 3)
        watch_transfers(consumer, lambda stats: stats.num_failed_receives == 2)
    assert Waiting.num_reads == 1


@pytest.fixture
def threads():
    found = PeerThreads(8, "test")
    yield found
    found.close()


def test_a_slow_peer_leaves_threads_to_others(threads):
    """It has half of them, whatever waits for it; the next has half of the rest."""
    gate, slow = threading.Event(), threading.Semaphore(0)
    done = threading.Semaphore(0)

    def wait() -> None:
        slow.release()
        gate.wait(PATIENCE_S)
        done.release()

    for port in (1, 2):
        for _ in range(20):
            threads.submit(("10.0.0.1", port), wait)
    for _ in range(4 + 2):
        assert slow.acquire(timeout=PATIENCE_S)
    assert not slow.acquire(blocking=False)
    ran = threading.Event()
    threads.submit(("10.0.0.2", 1), ran.set)
    assert ran.wait(PATIENCE_S)
    gate.set()
    for _ in range(40):
        assert done.acquire(timeout=PATIENCE_S)


def test_without_memory_for_more_threads_one_does_all_work(threads, monkeypatch):
    """In turn: no work is lost, and the engine's thread gets no error."""
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    done = threading.Semaphore(0)
    for port in (1, 2, 3):
        for _ in range(3):
            threads.submit(("10.0.0.1", port), done.release)
    for _ in range(9):
        assert done.acquire(timeout=PATIENCE_S)


def no_thread(_: threading.Thread) -> None:
    """As the system refuses a thread without memory or beyond a limit on processes."""
    raise RuntimeError("can't start new thread")


def test_what_fails_frees_its_thread(threads):
    """And nothing of a peer that has nothing to do is kept."""
    ran = threading.Semaphore(0)

    def fail() -> None:
        ran.release()
        raise OSError

    for _ in range(20):
        threads.submit(("10.0.0.1", 1), fail)
        assert ran.acquire(timeout=PATIENCE_S)
    threads._executor.shutdown()
    assert not threads._num_running
    assert not threads._waiting


def test_nothing_begins_once_all_is_closed(threads):
    """A request may end just then, and have its lease released."""
    threads.close()
    ran = threading.Event()
    threads.submit(("10.0.0.1", 1), ran.set)
    assert not threads._waiting
    assert not ran.is_set()
