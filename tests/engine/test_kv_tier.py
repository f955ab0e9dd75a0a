"""The KV cache's second tier by itself: what it holds, what it trusts, and what it does when a disk fails."""

import random
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.stepping import make_request
from weft.core.errors import ConfigError
from weft.core.values.kv_cache import BlockRemoved, BlockStored, Medium
from weft.core.values.types import SamplingParams
from weft.engine.kv.kv_tier import MAX_QUEUED_BYTES, STALLED_S, KvTier
from weft.engine.kv.kv_tier_stores import (
    HEADER_BYTES,
    MAX_ENGINES,
    DamagedBlock,
    DirectoryBlocks,
    MemoryBlocks,
)
from weft.engine.scheduling.sequence import Sequence

BLOCK = np.frombuffer(random.Random(1).randbytes(5000), np.uint8)
PAGES = 8192  # what a file of such a block takes


def hash_of(number: int) -> bytes:
    """The hash of a block that the test calls so."""
    return number.to_bytes(32, "big")


def stored(number: int) -> BlockStored:
    """What a router is told of it."""
    return BlockStored(
        block_hashes=[hash_of(number)], parent_block_hash=None, token_ids=[7], block_size=1
    )


def sequence() -> Sequence:
    """Somebody who waits for blocks."""
    return Sequence(make_request("r", [5, 6], SamplingParams()), 0, (0, 0))


@contextmanager
def tier_on(store, max_bytes=1 << 20, clock=time.monotonic, **how):
    """A tier, which has written everything when it is left."""
    tier = KvTier(store, max_bytes, lambda: None, clock, **how)
    try:
        yield tier
    finally:
        tier.close(PATIENCE_S)


def wait(is_so):
    """Until something that the tier's thread does has happened."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def put(tier, *numbers):
    """Have these blocks stored, one after the other."""
    for number in numbers:
        assert tier.wants(hash_of(number))
        tier.store(stored(number), BLOCK)
    wait(lambda: not tier._writes)


def fetch(tier, *numbers):
    """The blocks that come of these, and whether any was there."""
    arrived = []
    if not tier.start_fetch(sequence(), [hash_of(n) for n in numbers]):
        return None

    def has_all():
        arrived.extend(tier.take_arrived())
        return arrived and arrived[-1].is_last

    wait(has_all)
    return [each.data for each in arrived if each.data is not None]


def files(path):
    """Those of blocks."""
    return sorted(path.glob("engine-*/??/*"))


@pytest.fixture(params=["memory", "directory"])
def store(request, tmp_path):
    """Each kind."""
    return MemoryBlocks() if request.param == "memory" else DirectoryBlocks.open(str(tmp_path), "a")


def test_blocks_come_back_as_far_as_they_are_there(store):
    """To the bit, in order, and none behind one that is missing: it would not continue the prefix."""
    with tier_on(store) as tier:
        put(tier, 1, 2, 4)
        found = fetch(tier, 1, 2, 3, 4)
        assert [np.array_equal(each, BLOCK) for each in found] == [True, True]
        assert fetch(tier, 3, 4) is None
        assert tier.stats().num_loaded_blocks == 2


def test_what_was_used_least_recently_goes_first(store):
    """The bound is never exceeded, and both what comes and what goes is an event of its own medium."""
    with tier_on(store, max_bytes=2 * store.size_of(BLOCK)) as tier:
        put(tier, 1, 2)
        assert not tier.wants(hash_of(1)), "it has it, and from now on used it last"
        put(tier, 3)
        assert tier.stats().num_bytes == 2 * store.size_of(BLOCK)
        assert fetch(tier, 2) is None
        assert len(fetch(tier, 1)) == 1
        events = [(type(e), e.block_hashes, e.medium) for e in tier.take_events()]
        assert events == [
            (BlockStored, [hash_of(1)], store.medium),
            (BlockStored, [hash_of(2)], store.medium),
            (BlockRemoved, [hash_of(2)], store.medium),
            (BlockStored, [hash_of(3)], store.medium),
        ]
        assert tier.stats().num_evicted == 1


def test_a_state_goes_with_its_block(store):
    """It takes room of its own, and is no event: routers are told of the block."""
    with tier_on(store, max_bytes=3 * store.size_of(BLOCK), has_states=True) as tier:
        put(tier, 1)
        tier.store_state(hash_of(1), BLOCK)
        assert not tier.wants(hash_of(1), is_state=True)
        put(tier, 2)
        assert tier.stats().num_bytes == 3 * store.size_of(BLOCK)
        assert fetch(tier, 2) is None, "there is no state behind it"
        put(tier, 3)
        assert fetch(tier, 1) is None
        wait(lambda: store.read(store.name_of(hash_of(1), is_state=True)) is None)
        assert tier.stats().num_bytes == 2 * store.size_of(BLOCK)
        events = [(type(e), e.block_hashes) for e in tier.take_events()]
        assert events == [
            (BlockStored, [hash_of(1)]),
            (BlockStored, [hash_of(2)]),
            (BlockRemoved, [hash_of(1)]),
            (BlockStored, [hash_of(3)]),
        ]


def test_cleared_blocks_are_not_found_again(store, tmp_path):
    """Not now, and not after a restart."""
    with tier_on(store) as tier:
        put(tier, 1, 2)
        tier.clear()
        assert fetch(tier, 1) is None
        assert tier.take_events() == []
    assert files(tmp_path) == []


def test_another_process_finds_what_was_written(tmp_path):
    """Nobody else may read it: keys and values tell of prompts."""
    with tier_on(DirectoryBlocks.open(str(tmp_path), "a")) as tier:
        put(tier, 1, 2)
    modes = {path.stat().st_mode & 0o777 for path in files(tmp_path)}
    assert modes == {0o600}
    assert {path.parent.stat().st_mode & 0o777 for path in files(tmp_path)} == {0o700}
    with tier_on(DirectoryBlocks.open(str(tmp_path), "a")) as tier:
        tier.wait_until_found(PATIENCE_S)
        assert np.array_equal(fetch(tier, 1, 2)[1], BLOCK)


class UnreadDirectory(MemoryBlocks):
    """Files of before that are looked through only when the test says so."""

    def __init__(self):
        super().__init__()
        self.write(self.name_of(hash_of(1)), BLOCK)
        self.may_look = threading.Event()

    def find(self):
        assert self.may_look.wait(PATIENCE_S)
        return [(self.name_of(hash_of(1)), BLOCK.nbytes)]


def test_what_lies_there_is_found_once_it_was_looked_through():
    """A start waits for that, and goes on without it where it takes too long."""
    store = UnreadDirectory()
    with tier_on(store) as tier:
        tier.wait_until_found(0.0)
        tier.store(stored(2), BLOCK)
        assert fetch(tier, 1) is None
        assert fetch(tier, 2) is None, "nobody reads yet"
        store.may_look.set()
        tier.wait_until_found(PATIENCE_S)
        assert np.array_equal(fetch(tier, 1)[0], BLOCK)


def test_a_block_that_lay_there_unseen_counts_once():
    """It left the pool again before it was known that it is there."""
    store = UnreadDirectory()
    with tier_on(store) as tier:
        assert tier.wants(hash_of(1))
        tier.store(stored(1), BLOCK)
        store.may_look.set()
        wait(lambda: not tier._writes)
        assert tier.stats().num_bytes == BLOCK.nbytes


def test_blocks_of_other_weights_are_not_found_but_count(tmp_path):
    """They go as others need the room."""
    with tier_on(DirectoryBlocks.open(str(tmp_path), "a")) as tier:
        put(tier, 1, 2)
    with tier_on(DirectoryBlocks.open(str(tmp_path), "b"), max_bytes=2 * PAGES) as tier:
        wait(lambda: tier.stats().num_bytes == 2 * PAGES)
        assert fetch(tier, 1) is None
        put(tier, 3)
        assert [len(files(tmp_path)), tier.stats().num_bytes] == [2, 2 * PAGES]
        assert BlockRemoved not in map(type, tier.take_events())


def test_a_smaller_bound_is_kept_from_the_start(tmp_path):
    """What is there from before may be too much."""
    with tier_on(DirectoryBlocks.open(str(tmp_path), "a")) as tier:
        put(tier, 1, 2, 3)
    with tier_on(DirectoryBlocks.open(str(tmp_path), "a"), max_bytes=PAGES) as tier:
        wait(lambda: tier.stats().num_bytes == PAGES)
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("seed", range(24))
def test_a_damaged_file_is_a_miss(tmp_path, seed):
    """Whatever is changed, cut off or added, anywhere: it is deleted and counted, and never used."""
    draw = random.Random(seed)
    with tier_on(DirectoryBlocks.open(str(tmp_path), "a")) as tier:
        put(tier, 1)
    [path] = files(tmp_path)
    content = bytearray(path.read_bytes())
    match draw.choice(["flip", "cut", "add"]):
        case "flip":
            at = draw.choice([draw.randrange(HEADER_BYTES), draw.randrange(len(content))])
            content[at] ^= 1 << draw.randrange(8)
        case "cut":
            del content[draw.randrange(len(content)) :]
        case "add":
            content += draw.randbytes(draw.randrange(1, 5000))
    path.write_bytes(content)
    with tier_on(DirectoryBlocks.open(str(tmp_path), "a")) as tier:
        wait(lambda: tier.stats().num_bytes)
        assert fetch(tier, 1) == []
        assert (tier.stats().num_damaged, tier.stats().num_bytes) == (1, 0)
    assert files(tmp_path) == []


def test_a_file_under_the_name_of_another_is_a_miss(tmp_path):
    """Whole as it is: it says whose it is."""
    store = DirectoryBlocks.open(str(tmp_path), "a")
    one, two = (store.name_of(hash_of(n)) for n in (1, 2))
    store.write(one, BLOCK)
    store.write(two, BLOCK)
    store._path(one).replace(store._path(two))
    with pytest.raises(DamagedBlock):
        store.read(two)
    store.close()


def test_engines_that_share_a_path_have_a_directory_each(tmp_path):
    """Until there are too many; who ends leaves its own to the next."""
    stores = [DirectoryBlocks.open(str(tmp_path), "a") for _ in range(MAX_ENGINES)]
    assert len({store.directory for store in stores}) == MAX_ENGINES
    with pytest.raises(ConfigError, match="64 engines use it"):
        DirectoryBlocks.open(str(tmp_path), "a")
    stores[5].close()
    assert DirectoryBlocks.open(str(tmp_path), "a").directory == stores[5].directory


def test_a_path_that_cannot_be_used_is_refused(tmp_path):
    """By its name: a file, a directory that others may write, one behind a link."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--kv-offloading-path .*file: File exists"):
        DirectoryBlocks.open(str(tmp_path / "file"), "a")
    (tmp_path / "engine-0").mkdir()
    (tmp_path / "engine-0").chmod(0o777)
    with pytest.raises(ConfigError, match="engine-0 must be a directory of this user"):
        DirectoryBlocks.open(str(tmp_path), "a")
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "engine-0").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="engine-0 must be a directory of this user"):
        DirectoryBlocks.open(str(tmp_path / "linked"), "a")


class BrokenBlocks(MemoryBlocks):
    """A store whose disk does as it is told: `error` is raised, and nothing happens before `may_go_on`."""

    def __init__(self, error: int | None = None):
        super().__init__()
        self.error = error
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def _do(self):
        self.has_begun.set()
        assert self.may_go_on.wait(PATIENCE_S)
        if self.error is not None:
            raise OSError(self.error, "the disk says no")

    def write(self, name, data):
        self._do()
        super().write(name, data)


class SlowToRemove(MemoryBlocks):
    """Four blocks of before, one of which is removed for each `allow`."""

    def __init__(self):
        super().__init__()
        self.allowed = threading.Semaphore(0)
        for number in range(4):
            self.write(self.name_of(hash_of(number)), BLOCK)

    def find(self):
        return [(self.name_of(hash_of(number)), BLOCK.nbytes) for number in range(4)]

    def remove(self, name):
        assert self.allowed.acquire(timeout=PATIENCE_S)
        super().remove(name)


def test_who_waits_for_a_block_does_not_wait_for_room_to_be_made():
    """There may be much to remove, where the bound is smaller than it was."""
    store = SlowToRemove()
    with tier_on(store, max_bytes=BLOCK.nbytes) as tier:
        tier.wait_until_found(PATIENCE_S)
        assert tier.start_fetch(sequence(), [hash_of(3)])
        store.allowed.release()
        wait(tier.take_arrived)
        assert len(store._blocks) > 1
        store.allowed.release(2)


@pytest.mark.parametrize("error", [5, 28, 30], ids=["EIO", "ENOSPC", "EROFS"])
def test_a_store_that_fails_is_used_no_more(error, caplog):
    """One line says so; who waits for blocks waits no longer, and nobody will again."""
    store = BrokenBlocks(error)
    with tier_on(store) as tier:
        for number in (1, 2):
            tier.store(stored(number), BLOCK)
        assert tier.start_fetch(sequence(), [hash_of(1), hash_of(2)])
        store.may_go_on.set()
        arrived = []

        def has_ended():
            arrived.extend(tier.take_arrived())
            return arrived and arrived[-1].is_last

        wait(has_ended)
        wait(lambda: not tier._thread.is_alive())
        assert not tier.wants(hash_of(3))
        tier.store(stored(3), BLOCK)  # it failed while this one was copied
        assert fetch(tier, 1) is None
        assert fetch(tier, 3) is None
    assert [r.message for r in caplog.records if "second tier" in r.message] == [
        f"the second tier of the KV cache (CPU) is off: [Errno {error}] the disk says no"
    ]


def test_routers_are_told_what_a_tier_that_failed_held():
    """All of it has left that medium."""
    store = BrokenBlocks()
    store.may_go_on.set()
    with tier_on(store) as tier:
        put(tier, 1, 2)
        store.error = 5
        tier.store(stored(3), BLOCK)
        wait(lambda: not tier._thread.is_alive())
        *_, removed = tier.take_events()
        assert removed == BlockRemoved(block_hashes=[hash_of(1), hash_of(2)], medium=Medium.MEMORY)


def test_an_engine_that_has_left_is_not_woken():
    """What is being written when its time is over is written on."""
    store, woken = BrokenBlocks(), []
    tier = KvTier(store, 1 << 20, lambda: woken.append(1))
    tier.store(stored(1), BLOCK)
    tier.close(0.0)
    store.may_go_on.set()
    wait(lambda: not tier._thread.is_alive())
    assert not woken


def test_a_store_that_hangs_keeps_nobody_waiting():
    """After some seconds without a block it is given up."""
    now = 0.0
    store = BrokenBlocks()
    with tier_on(store, clock=lambda: now) as tier:
        tier.store(stored(1), BLOCK)
        assert store.has_begun.wait(PATIENCE_S)
        assert tier.start_fetch(sequence(), [hash_of(1)])
        now = STALLED_S + 1
        assert [(each.data, each.is_last) for each in tier.take_arrived()] == [(None, True)]
        store.may_go_on.set()


def test_what_finds_the_queue_full_is_dropped():
    """And counted. Nothing waits."""
    store = BrokenBlocks()
    with tier_on(store, max_bytes=1 << 40) as tier:
        tier.store(stored(1), np.zeros(MAX_QUEUED_BYTES, np.uint8))
        assert not tier.wants(hash_of(2))
        assert tier.stats().num_dropped == 1
        assert not tier.wait_for_room(0.0)
        store.may_go_on.set()
        assert tier.wait_for_room(PATIENCE_S)
        assert tier.wants(hash_of(2))


def test_what_is_being_written_when_it_is_cleared_is_not_found():
    """The write is under way; its block is forgotten all the same."""
    store = BrokenBlocks()
    with tier_on(store) as tier:
        tier.store(stored(1), BLOCK)
        assert store.has_begun.wait(PATIENCE_S)
        tier.clear()
        store.may_go_on.set()
        put(tier, 2)
        assert fetch(tier, 1) is None
        assert [e.block_hashes for e in tier.take_events()] == [[hash_of(2)]]
        assert tier.stats().num_bytes == BLOCK.nbytes
        assert store.medium is Medium.MEMORY
