"""weft.engine.transfer.silent_peers: who has not answered is asked by one at a time."""

import errno
import socket
from contextlib import suppress

import pytest

from tests.busy import PATIENCE_S
from tests.doubles.transfers import computed_at
from tests.engine.test_kv_transfer import ask as ask_engine
from tests.engine.test_kv_transfer import run_engine, watch_transfers
from tests.epp.pools import Clock
from weft.core.kv_transfer import KvRole
from weft.engine import handshake
from weft.engine.handshake import PeerError
from weft.engine.transfer import silent_peers
from weft.engine.transfer.silent_peers import SILENT_S, SilentPeers

SILENCES = [TimeoutError("timed out"), OSError(errno.EHOSTUNREACH, "No route to host")]


@pytest.fixture
def clock():
    """Seconds that pass only when told to."""
    return Clock()


@pytest.fixture
def peers(clock):
    """With that clock."""
    return SilentPeers(clock)


def ask(peers, host="a", *, error=None, answers=False):
    """Whether it may be asked; with an error of the connection, before or after an answer."""
    try:
        with suppress(OSError), peers.asking(host, 1) as answered:
            if answers:
                answered()
            if error is not None:
                raise error
    except PeerError:
        return False
    return True


@pytest.mark.parametrize("silence", SILENCES, ids=str)
def test_nobody_waits_again_for_who_has_not_answered(peers, clock, silence):
    """Others are asked as ever."""
    assert ask(peers, error=silence)
    assert not ask(peers)
    assert ask(peers, "b")
    clock.advance(SILENT_S)
    assert ask(peers, answers=True)
    assert ask(peers)


def test_one_finds_out_whether_a_peer_answers_again(peers, clock):
    """Meanwhile others do not wait with it."""
    ask(peers, error=SILENCES[0])
    clock.advance(SILENT_S)
    with peers.asking("a", 1) as answered:
        assert not ask(peers)
        answered()
        assert ask(peers)


@pytest.mark.parametrize(
    ("error", "answers"),
    [(ConnectionRefusedError(errno.ECONNREFUSED, "refused"), False), (SILENCES[0], True)],
    ids=["refused", "late"],
)
def test_an_answer_of_any_kind_is_no_silence(peers, error, answers):
    """A refusal costs nobody time, and who has answered may be slow."""
    assert ask(peers, error=error, answers=answers)
    assert ask(peers)


def test_no_more_are_remembered_than_were_waited_for_lately(peers, clock):
    """A caller may name any address."""
    for number in range(100):
        ask(peers, f"{number}", error=SILENCES[0])
        clock.advance(SILENT_S)
    assert len(peers._retry_at) <= 3


def test_an_engine_that_does_not_answer_keeps_one_request_waiting(monkeypatch):
    """Nor does it keep threads from prompts of others."""
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.1)
    monkeypatch.setattr(silent_peers, "SILENT_S", PATIENCE_S)
    with run_engine(KvRole.CONSUMER) as consumer, socket.create_server(("127.0.0.1", 0)) as silent:
        given = computed_at(silent.getsockname()[1])
        ask_engine(consumer, "a", [*range(5, 23)], 1, given)
        ask_engine(consumer, "b", [6, *range(5, 23)], 1, given)
        *_, stats = watch_transfers(consumer, lambda stats: stats.num_failed_releases == 2)
        assert stats.num_failed_receives == 2
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
