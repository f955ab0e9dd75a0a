"""Pauses before the next try: how they grow, and when they begin anew."""

import logging

from weft.core.aio.pauses import Pauses, keep
from weft.core.errors import Unavailable


def test_pauses_double_up_to_the_longest():
    """What keeps failing is tried ever more rarely, but never given up."""
    pauses = Pauses(0.5, 3.0)
    assert [pauses.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_what_lasted_begins_with_the_first_pause_again():
    """A failure after a long good run has another cause than those before it; one after a short run has not."""
    pauses = Pauses(1.0, 8.0, steady_s=60.0)
    pauses.next_s()
    assert not pauses.lasted(59.0)
    assert pauses.next_s() == 2.0
    assert pauses.lasted(61.0)
    assert pauses.next_s() == 1.0


async def test_what_ends_is_started_again_with_growing_pauses_until_it_is_over(caplog):
    """A start that fails is tried again; only a defect has its traceback in the log."""
    ends = ["has ended", "has ended", None]
    failures = [Unavailable("no memory"), RuntimeError("a defect"), None, None]
    slept = []

    async def run():
        return ends.pop(0)

    async def start():
        if (error := failures.pop(0)) is not None:
            raise error

    async def sleep(pause_s):
        slept.append(pause_s)

    await keep("engine 1", run, start, logging.getLogger("weft"), sleep=sleep)
    assert (ends, failures) == ([], [])
    assert slept == [0.5, 1.0, 2.0, 4.0]
    assert "engine 1 has ended, and is started again in 0.5 s" in caplog.text
    failed = [record for record in caplog.records if "could not be started" in record.message]
    assert [bool(record.exc_info) for record in failed] == [False, True]


async def test_what_comes_back_by_itself_is_awaited_without_a_pause(caplog):
    """The log does not promise a time that nobody here decides."""
    ends = ["has left; it may join again", None]

    async def run():
        return ends.pop(0)

    await keep("engine 1", run, None, logging.getLogger("weft"), pauses=Pauses(0.0, 0.0))
    assert [record.message for record in caplog.records] == ["engine 1 has left; it may join again"]
