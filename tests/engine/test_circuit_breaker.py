"""weft.engine.transfer.circuit_breaker: who has not answered is tried by one at a time."""

import errno
import socket
from contextlib import suppress

import pytest

from tests.busy import PATIENCE_S
from tests.doubles.transfers import computed_at
from tests.engine.test_kv_transfer import ask, run_engine, watch_transfers
from tests.epp.pools import Clock
from weft.core.values.kv_transfer import KvRole
from weft.engine.ipc import handshake
from weft.engine.ipc.handshake import PeerError
from weft.engine.transfer import circuit_breaker
from weft.engine.transfer.circuit_breaker import OPEN_S, CircuitBreaker

SILENCES = [
    TimeoutError("timed out"),
    OSError(errno.EHOSTUNREACH, "No route to host"),
    OSError(errno.ENETUNREACH, "Network is unreachable"),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
]


@pytest.fixture
def clock():
    """Seconds that pass only when told to."""
    return Clock()


@pytest.fixture
def breaker(clock):
    """With that clock."""
    return CircuitBreaker(clock)


def tries(breaker, host="a", error=None):
    """Whether it may be tried; with an error of the connection."""
    try:
        with suppress(OSError), breaker.trying(host, 1):
            if error is not None:
                raise error
    except PeerError:
        return False
    return True


@pytest.mark.parametrize("silence", SILENCES, ids=str)
def test_nobody_waits_again_for_who_has_not_answered(breaker, clock, silence):
    """Others are asked as ever."""
    assert tries(breaker, error=silence)
    assert not tries(breaker)
    assert tries(breaker, "b")
    clock.advance(OPEN_S)
    assert tries(breaker)
    assert tries(breaker)


def test_one_finds_out_whether_a_peer_answers_again(breaker, clock):
    """Meanwhile others do not wait with it."""
    tries(breaker, error=SILENCES[0])
    clock.advance(OPEN_S)
    with breaker.trying("a", 1):
        assert not tries(breaker)
    assert tries(breaker)


@pytest.mark.parametrize("was_silent", [False, True])
def test_a_refusal_is_an_answer(breaker, clock, was_silent):
    """It costs nobody time, and an engine that starts is tried as soon as it is there."""
    if was_silent:
        tries(breaker, error=SILENCES[0])
        clock.advance(OPEN_S)
    assert tries(breaker, error=ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
    assert tries(breaker)


def test_no_more_are_remembered_than_were_waited_for_lately(breaker, clock):
    """A caller may name any address."""
    for number in range(100):
        tries(breaker, f"{number}", error=SILENCES[0])
        clock.advance(OPEN_S)
    assert len(breaker._retry_at) <= 3


def test_an_engine_that_does_not_answer_keeps_one_request_waiting(monkeypatch):
    """Nor does it keep threads from prompts of others."""
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.1)
    monkeypatch.setattr(circuit_breaker, "OPEN_S", PATIENCE_S)
    with run_engine(KvRole.CONSUMER) as consumer, socket.create_server(("127.0.0.1", 0)) as silent:
        given = computed_at(silent.getsockname()[1])
        ask(consumer, "a", [*range(5, 23)], 1, given)
        ask(consumer, "b", [6, *range(5, 23)], 1, given)
        *_, stats = watch_transfers(consumer, lambda stats: stats.num_failed_releases == 2)
        assert stats.num_failed_receives == 2
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
