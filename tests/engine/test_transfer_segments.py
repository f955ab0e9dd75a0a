"""Memory that two engines share: what is not as it was said is not touched, and nothing of it is left."""

import fcntl
import os
import socket
import threading
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.engine.test_kv_transfer import LEND, ask, run_engine, wait_for_held
from tests.engine.test_offloading import greedy
from tests.engine.test_transfer_wire import LENT, greet, listening, offer, read_one
from weft.core.kv_transfer import KvConnector, KvRole
from weft.engine.transfer.connectors import CONNECTORS
from weft.engine.transfer.settings import LOOPBACK
from weft.engine.transfer.wire import WANTED, GiveBack, Read, TransferError, length_of

SHM = KvConnector.SHM
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def segment(num_bytes: int, seals: int = SEALS) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, num_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize(
    ("num_slots", "make"),
    [
        (1, lambda: segment(64, 0)),
        (1, lambda: segment(64, SEALS | fcntl.F_SEAL_WRITE)),
        (1, lambda: segment(63)),
        (1, lambda: segment(128)),
        (2, lambda: segment(64)),
        (0, lambda: segment(64)),
        (2**32 - 1, lambda: segment(64)),
        (1, lambda: os.open(os.devnull, os.O_RDWR)),
        (1, lambda: os.open("/proc/self/exe", os.O_RDONLY)),
    ],
)
def test_a_segment_that_is_not_as_said_is_not_touched(num_slots, make):
    """It could become smaller, or is: to write there would end the engine. The next one gets its block."""
    with listening(SHM) as producer:
        runner = offer(producer)
        with greet(producer) as bad:
            bad.send(LENT)
            descriptor = make()
            socket.send_fds(bad._socket, [length_of(num_slots)], [descriptor])
            os.close(descriptor)
            with pytest.raises((TransferError, OSError)):
                bad.receive(WANTED)
        with greet(producer) as peer:
            assert (read_one(peer) == runner.read_block(1)).all()


def test_who_shares_no_segment_gets_no_block():
    """A number without a descriptor."""
    with listening(SHM) as producer:
        offer(producer)
        with greet(producer) as bad:
            bad.send(LENT)
            bad._socket.sendall(length_of(1))
            with pytest.raises((TransferError, OSError)):
                bad.receive(WANTED)


@pytest.mark.parametrize("slot", [1, 2, -1, 2**62])
def test_a_slot_that_is_not_lent_is_not_taken_back(slot):
    """Slot 1 has not been used yet, and others never were there."""
    here, there = socket.socketpair()
    with CONNECTORS[SHM].accept(here) as lender, CONNECTORS[SHM].accept(there) as peer:
        peer.request_blocks(Read("r", [1, 1], [b"h" * 32] * 2), 64)
        assert lender.receive(WANTED).block_ids == [1, 1]
        lender.begin_blocks(64)
        lender.next_place()
        peer.send(GiveBack(slot))
        with pytest.raises(TransferError, match=f"it gives back slot {slot}, which"):
            lender.next_place()


def test_a_block_in_a_slot_that_is_not_free_is_not_read():
    """Whatever a lender says of slots, what has not been used yet does not change."""
    here, there = socket.socketpair()
    with CONNECTORS[SHM].accept(here) as peer, there:
        peer.request_blocks(Read("r", [1, 1], [b"h" * 32] * 2), 64)
        there.sendall(length_of(64) + length_of(2))
        with pytest.raises(TransferError, match="slot 2, which is not free"):
            peer.receive_block(64)
        there.sendall((length_of(64) + length_of(0)) * 2)
        assert peer.receive_block(64) is not None
        with pytest.raises(TransferError, match="slot 0, which is not free"):
            peer.receive_block(64)


def test_blocks_wait_for_an_engine_in_a_long_step():
    """Longer than a message may take: the one slot that there is comes back when the step is over."""
    here, there = socket.socketpair()
    with CONNECTORS[SHM].accept(here) as peer, there:
        peer.request_blocks(LENT, 64)
        there.sendall((length_of(64) + length_of(0)) * 2)
        first = peer.receive_block(64)
        step = threading.Timer(0.1, first.release)
        step.start()
        assert peer.receive_block(64) is not None
        step.join()


def test_an_engine_of_another_machine_is_refused_with_the_reason():
    """Whatever the networks are; and one that has another connector, too."""
    connect = CONNECTORS[SHM].connect
    with pytest.raises(TransferError, match="it is on another machine"):
        connect("10.0.0.1", 14579, ["0.0.0.0/0"])
    other = pytest.raises(TransferError, match="both need ShmConnector, on one machine")
    with listening(KvConnector.TCP) as producer, other:
        connect("127.0.0.1", producer.port, LOOPBACK)


def test_a_port_that_another_engine_has_is_refused():
    """As one of TCP is."""
    with listening(SHM) as producer, pytest.raises(OSError, match="in use"):
        CONNECTORS[SHM].listen("127.0.0.1", producer.port)


def num_segments() -> int:
    """Mapped or open, in this process."""
    places = Path("/proc/self/maps").read_text().splitlines()
    files = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            files.append(str(each.readlink()))
        except OSError:  # the descriptor of this very listing
            continue
    return sum("memfd:weft-kv" in name for name in [*places, *files])


def wait_for_segments(count: int) -> None:
    """Until no more than these are there: the thread that fetched may not have ended yet."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if num_segments() <= count:
            return
        pause.wait(0.01)
    raise AssertionError(f"{num_segments() - count} segments are left")


def test_no_segment_is_left_when_its_prompt_is_there():
    """On either side, however often."""
    before = num_segments()
    with (
        run_engine(KvRole.PRODUCER, connector=SHM) as producer,
        run_engine(KvRole.CONSUMER, connector=SHM) as consumer,
    ):
        for start in range(3, 9):
            prompt = [start, *range(5, 22)]
            [lent] = ask(producer, f"p{start}", prompt, 1, LEND)
            outputs = ask(consumer, f"d{start}", prompt, 3, lent.kv_transfer_params)
            assert [t for o in outputs for t in o.token_ids] == greedy(prompt, 3)
            assert outputs[-1].num_cached_tokens == 16
            wait_for_held(producer, 0)
    wait_for_segments(before)
