"""Memory that two engines share: what is not as it was said is not touched, and nothing of it is left."""

import fcntl
import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.busy import PATIENCE_S
from tests.engine.test_kv_transfer import LEND, ask, run_engine, wait_for_held
from tests.engine.test_offloading import greedy
from tests.engine.test_transfer_wire import (
    LENT,
    greet,
    listening,
    offer,
    read_one,
    runner_of,
)
from weft.core.values.kv_transfer import KvConnector, KvRole
from weft.engine.ipc.handshake import PeerError, length_of
from weft.engine.transfer.connectors import CONNECTORS
from weft.engine.transfer.pool_access import PoolAccess
from weft.engine.transfer.wire import WANTED, Read

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
            with pytest.raises((PeerError, OSError)):
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
            with pytest.raises((PeerError, OSError)):
                bad.receive(WANTED)


def test_a_slot_is_filled_again_when_it_was_given_back_and_no_sooner():
    """Two slots and three blocks: the third waits, and whatever else comes meanwhile is not taken."""
    here, there = socket.socketpair()
    ring = Read("r", [1, 1], [b"h" * 32] * 2)
    with CONNECTORS[SHM].accept(here) as lender, CONNECTORS[SHM].accept(there) as peer:
        source, target = runner_of(), runner_of()
        source.write_block(1, np.arange(64, dtype=np.uint8))
        peer.request_blocks(ring, 64)
        assert lender.receive(WANTED) == ring
        lender.begin_blocks(64)
        for _ in ring.block_ids:
            lender.send_block(PoolAccess(source), 1, 64, is_last=False)
        assert peer.receive_block(PoolAccess(target), 2, 64)
        lender.send_block(PoolAccess(source), 3, 64, is_last=False)
        assert peer.receive_block(PoolAccess(target), 3, 64)
        assert (target.read_block(3) == source.read_block(1)).all()
        peer.send(ring)
        lender.send_block(PoolAccess(source), 1, 64, is_last=False)
        with pytest.raises(PeerError, match="another request before all blocks were sent"):
            lender.send_block(PoolAccess(source), 1, 64, is_last=False)


def test_an_engine_with_another_connector_is_refused_with_the_reason():
    """Which is in the log of the one that fetches."""
    connect = CONNECTORS[SHM].connect
    other = pytest.raises(PeerError, match="both need ShmConnector, on one machine")
    with listening(KvConnector.TCP) as producer, other:
        connect("127.0.0.1", producer.port)


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
