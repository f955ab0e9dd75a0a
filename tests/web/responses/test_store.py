"""What is stored of responses, and the events of one in the background: bounds, order, followers."""

import asyncio

import pytest

from weft.core.errors import BadRequest
from weft.web.http.options import HttpOptions
from weft.web.responses.event_log import EventLog
from weft.web.responses.store import (
    MAX_OPENED_BYTES,
    ResponseLimits,
    ResponseStore,
    StoredResponse,
)


def stored(number: int, *, num_bytes: int = 100, ended_at: float = 0.0) -> StoredResponse:
    """A response that takes that many bytes, and has one item."""
    output = b'[{"id":"msg_%d"}]' % number
    return StoredResponse(
        id=f"resp_{number}",
        is_background=False,
        response=b"",
        items=b"[]" + b" " * (num_bytes - len(output) - 2),
        output=output,
        messages=b"",
        own_item_ids=(f"msg_{number}",),
        log=None,
        ended_at=ended_at,
    )


def are_there(store: ResponseStore, *numbers: int) -> list[bool]:
    """Whether each of these is still there."""
    return [store.get(f"resp_{number}") is not None for number in numbers]


def test_the_oldest_go_when_there_are_too_many():
    """And their items with them."""
    store = ResponseStore(ResponseLimits(max_responses=2), clock=lambda: 0.0)
    for number in (1, 2, 3):
        store.put(stored(number))
    assert are_there(store, 1, 2, 3) == [False, True, True]
    find = store.item_finder()
    assert find("msg_1") is None
    assert find("msg_3") == {"id": "msg_3"}
    assert store.num_bytes == 200


def test_the_oldest_go_when_they_take_too_much():
    """One that is larger than everything may be leaves nothing behind, not even itself."""
    store = ResponseStore(ResponseLimits(max_bytes=250), clock=lambda: 0.0)
    for number in (1, 2, 3):
        store.put(stored(number))
    assert are_there(store, 1, 2, 3) == [False, True, True]
    store.put(stored(4, num_bytes=300))
    assert are_there(store, 2, 3, 4) == [False, False, False]
    assert store.num_bytes == 0


def test_responses_go_with_age():
    """Nobody has to call for that."""
    now = [0.0]
    store = ResponseStore(ResponseLimits(max_age_s=10), clock=lambda: now[0])
    store.put(stored(1, ended_at=0.0))
    store.put(stored(2, ended_at=5.0))
    now[0] = 11.0
    assert are_there(store, 1, 2) == [False, True]
    assert len(store) == 1


def test_a_deleted_response_takes_its_items_along():
    """Once: there is nothing to delete the second time."""
    store = ResponseStore(ResponseLimits(), clock=lambda: 0.0)
    store.put(stored(1))
    assert store.delete("resp_1")
    assert not store.delete("resp_1")
    assert store.item_finder()("msg_1") is None
    assert store.num_bytes == 0


def test_one_request_opens_only_so_much():
    """A reference is short, and what it names may be long; each response is opened once."""
    store = ResponseStore(ResponseLimits(), clock=lambda: 0.0)
    for number in (1, 2):
        store.put(stored(number, num_bytes=MAX_OPENED_BYTES // 2 + 1))
    find = store.item_finder()
    assert find("msg_1") is find("msg_1")
    with pytest.raises(BadRequest, match="too many responses"):
        find("msg_2")


def test_one_request_opens_one_of_the_longest_inputs():
    """To read two takes as long as two bodies, which nothing interrupts."""
    store = ResponseStore(ResponseLimits(), clock=lambda: 0.0)
    for number in (1, 2):
        store.put(stored(number, num_bytes=HttpOptions().max_body_bytes))
    find = store.item_finder()
    assert find("msg_1") == {"id": "msg_1"}
    with pytest.raises(BadRequest, match="too many responses"):
        find("msg_2")


async def read(log: EventLog, after: int = -1) -> list[bytes]:
    """All that a follower gets."""
    return [event async for event in log.follow(after)]


async def test_followers_get_every_event_once():
    """Those that are there, and those that come, whoever reads beside them."""
    log = EventLog(1000)
    log.append(b"0")
    early, late = asyncio.create_task(read(log)), asyncio.create_task(read(log, after=1))
    await asyncio.sleep(0)
    for event in (b"1", b"2", b"3"):
        log.append(event)
        await asyncio.sleep(0)
    log.end()
    assert await early == [b"0", b"1", b"2", b"3"]
    assert await late == [b"2", b"3"]
    assert await read(log, after=99) == []


async def test_events_beyond_the_bound_are_dropped_and_their_loss_is_told():
    """From the oldest on; the last stays, whatever its size."""
    log = EventLog(3)
    for event in (b"00", b"11", b"2"):
        log.append(event)
    assert await read_ended(log, after=0) == [b"11", b"2"]
    with pytest.raises(BadRequest, match="up to 0") as lost:
        await read(log)
    assert lost.value.parameter == "starting_after"
    log.append(b"long")
    assert await read(log, after=2) == [b"long"]
    assert log.num_bytes == 4


async def read_ended(log: EventLog, after: int) -> list[bytes]:
    """All there is, of a log that has ended."""
    log.end()
    return await read(log, after)
