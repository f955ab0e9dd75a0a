"""Responses in a store, and the events of one in the background: bounds, items, followers."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from weft.core.errors import BadRequest
from weft.web.http.options import HttpOptions
from weft.web.items.recalled import MAX_OPENED_BYTES
from weft.web.responses.event_log import EventLog, LoggedEvents
from weft.web.responses.store import ResponseStore, StoredResponse
from weft.web.store.database import Store
from weft.web.store.store_options import StoreOptions
from weft.web.store.stored_object import StoreFull

TENANT = "a"


def stored(number: int, *, num_bytes: int = 100, events=None) -> StoredResponse:
    """A response that takes about that many bytes, and has one item."""
    output = b'[{"id":"msg_%d"}]' % number
    return StoredResponse(
        id=f"resp_{number}",
        is_background=False,
        response=b"",
        items=b"[]" + b" " * (num_bytes - len(output) - 2),
        output=output,
        messages=b"[]",
        own_item_ids=(f"msg_{number}",),
        events=events,
    )


class Kept:
    """A store of responses at a time of the test's choice."""

    def __init__(self, **options):
        self.now = 0.0
        self.store = Store(StoreOptions(**options), clock=lambda: self.now)
        self.responses = ResponseStore(self.store)

    async def put(self, response, tenant=TENANT):
        """Store a response that has ended."""
        await self.responses.run([self.responses.ended(tenant, response)])

    async def are_there(self, *numbers):
        """Whether each of these is still there."""
        found = [await self.responses.get(TENANT, f"resp_{number}") for number in numbers]
        return [one is not None for one in found]


@asynccontextmanager
async def kept(**options):
    """A store that is closed at the end."""
    made = Kept(**options)
    try:
        yield made
    finally:
        await made.store.close()


async def test_the_oldest_go_when_they_take_too_much():
    """With their items; one that is larger than everything may be is refused and takes nothing with it."""
    async with kept(store_max_bytes=3000) as it:
        for number in (1, 2, 3):
            await it.put(stored(number, num_bytes=700))
        assert await it.are_there(1, 2, 3) == [False, True, True]
        assert await it.responses.find_items(TENANT, ["msg_1"]) == {}
        assert await it.responses.find_items(TENANT, ["msg_3"]) == {"msg_3": {"id": "msg_3"}}
        with pytest.raises(StoreFull, match="--store-max-bytes"):
            await it.put(stored(4, num_bytes=4000))
        assert await it.are_there(2, 3, 4) == [True, True, False]


async def test_responses_go_with_age():
    """Nobody has to call for that."""
    async with kept(store_ttl=10.0) as it:
        await it.put(stored(1))
        it.now = 5.0
        await it.put(stored(2))
        it.now = 11.0
        assert await it.are_there(1, 2) == [False, True]
        assert await it.responses.find_items(TENANT, ["msg_1"]) == {}


async def test_a_deleted_response_takes_its_items_along():
    """Once: there is nothing to delete the second time."""
    async with kept() as it:
        await it.put(stored(1))
        assert await it.responses.delete(TENANT, "resp_1")
        assert not await it.responses.delete(TENANT, "resp_1")
        assert await it.responses.find_items(TENANT, ["msg_1"]) == {}
        assert await it.store.run(lambda tables: (tables.num_bytes, len(tables))) == (0, 0)


async def test_a_response_is_of_its_tenant():
    """Others neither find it nor its items, and cannot delete it."""
    async with kept() as it:
        await it.put(stored(1))
        assert await it.responses.get("b", "resp_1") is None
        assert await it.responses.find_items("b", ["msg_1"]) == {}
        assert not await it.responses.delete("b", "resp_1")
        assert await it.are_there(1) == [True]


async def test_one_request_opens_only_so_much():
    """A reference is short, and what it names may be long."""
    for num_bytes in (MAX_OPENED_BYTES // 2 + 1, HttpOptions().max_body_bytes):
        async with kept() as it:
            for number in (1, 2):
                await it.put(stored(number, num_bytes=num_bytes))
            assert await it.responses.find_items(TENANT, ["msg_1"]) == {"msg_1": {"id": "msg_1"}}
            with pytest.raises(BadRequest, match="too many responses"):
                await it.responses.find_items(TENANT, ["msg_1", "msg_2"])


async def test_stored_events_are_followed_from_where_they_begin():
    """Those that the bound dropped are reported as of a response that is made."""
    async with kept() as it:
        await it.put(stored(1, events=LoggedEvents(2, [b"2", b"3"])))
        found = await it.responses.get(TENANT, "resp_1")
        assert await read(found.log, after=2) == [b"3"]
        with pytest.raises(BadRequest, match="up to 1"):
            await read(found.log)


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
