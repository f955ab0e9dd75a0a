"""Records in a store: the same in memory and in a file, bounds, pages, work of several processes, and damage."""

import asyncio
import signal
import sqlite3
import stat
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest

from weft.core.checks.object_ids import is_durable, store_of
from weft.core.errors import BadRequest, ConfigError
from weft.web.store.database import Store
from weft.web.store.store_options import StoreOptions
from weft.web.store.stored_object import NEW_WORK, Paging, StoredObject, StoreFailed, StoreFull


def record(name: str, **fields) -> StoredObject:
    """A record of a tenant."""
    return StoredObject(**{"kind": "file", "id": name, "tenant": "a", "created_at": 1.0, **fields})


@pytest.fixture(params=["memory", "file"])
def options(request, tmp_path):
    """Options of a store of each form."""
    path = tmp_path / "store.db" if request.param == "file" else None
    return StoreOptions(store_file=path)


@asynccontextmanager
async def opened(options, clock=lambda: 10.0):
    """A store, closed at the end."""
    store = Store(options, clock=clock)
    try:
        yield store
    finally:
        await store.close()


async def test_a_record_is_read_as_it_was_written(options):
    """With its content or without, and only by its own tenant."""
    made = record("x", label="batch", head=b"{}", content=b"abc", expires_at=99.0)
    async with opened(options) as store:
        assert await store.run(lambda tables: tables.add(made))
        assert not await store.run(lambda tables: tables.add(made))
        assert await store.run(lambda tables: tables.get("file", "a", "x")) == made
        without = msgspec.structs.replace(made, content=b"")
        assert await store.run(lambda tables: tables.head("file", "a", "x")) == without
        assert await store.run(lambda tables: tables.get("file", "b", "x")) is None
        changed = msgspec.structs.replace(made, content=b"abcdef")
        assert await store.run(lambda tables: tables.change(changed))
        assert await store.run(lambda tables: tables.num_bytes) == changed.num_bytes


async def test_an_error_undoes_all_changes(options):
    """Work is one transaction."""

    def work(tables):
        tables.add(record("x"))
        raise BadRequest(None, "no")

    async with opened(options) as store:
        with pytest.raises(BadRequest):
            await store.run(work)
        assert await store.run(len) == 0


async def test_pages_follow_one_another(options):
    """In both orders, by label, from the record that is named; an unknown one is the caller's mistake."""
    async with opened(options) as store:
        for number in range(5):
            label = "odd" if number % 2 else "even"
            one = record(str(number), label=label)
            await store.run(lambda tables, one=one: tables.add(one))

        async def ids(**fields):
            paging = Paging(**{"limit": 2, **fields})
            page = await store.run(lambda tables: tables.page("file", "a", paging))
            return [one.id for one in page]

        assert await ids() == ["0", "1"]
        assert await ids(after="1") == ["2", "3"]
        assert await ids(newest_first=True, after="3") == ["2", "1"]
        assert await ids(label="odd", limit=9) == ["1", "3"]
        with pytest.raises(BadRequest) as refused:
            await ids(after="x", after_name="after_id")
        assert refused.value.parameter == "after_id"


async def test_items_go_with_their_object(options):
    """Deleted or expired: nothing of it stays, and other objects keep theirs."""
    now = [0.0]
    async with opened(options, clock=lambda: now[0]) as store:
        for name, expires_at in (("x", 5.0), ("y", None)):
            owner = record(name, kind="batch", expires_at=expires_at)
            item = record("1", kind="batch_item", collection=name)
            await store.run(lambda tables, o=owner, i=item: (tables.add(o), tables.add(i)))
        now[0] = 6.0
        assert await store.run(lambda tables: tables.get("batch", "a", "x")) is None
        await store.run(lambda tables: tables.add(record("z", kind="batch")))
        assert await store.run(len) == 3
        assert await store.run(lambda tables: tables.delete("batch", "a", "y"))
        assert await store.run(len) == 1


async def test_a_tenant_has_its_share(options):
    """Beyond it, the oldest of its own responses go, and nothing of others; then it is reported."""
    bounded = replace(options, store_max_tenant_bytes=2000)
    async with opened(bounded) as store:
        for tenant in ("a", "b"):
            for name in ("1", "2"):
                one = record(name, kind="response", tenant=tenant, content=b"x" * 600)
                await store.run(lambda tables, one=one: tables.add(one))
        await store.run(lambda tables: tables.add(record("f", content=b"x" * 800)))
        there = [
            await store.run(lambda tables, t=t, n=n: tables.head("response", t, n) is not None)
            for t in ("a", "b")
            for n in ("1", "2")
        ]
        assert there == [False, True, True, True]
        with pytest.raises(StoreFull, match="--store-max-tenant-bytes"):
            await store.run(lambda tables: tables.add(record("g", content=b"x" * 1900)))
        assert await store.run(lambda tables: tables.head("file", "a", "f")) is not None


async def test_work_is_taken_once(options):
    """The oldest first; what is done is not taken again."""
    async with opened(options) as store:
        for name in ("x", "y"):
            one = record(name, kind="batch", owner=NEW_WORK)
            await store.run(lambda tables, one=one: tables.add(one))
        claimed = [await store.run(lambda tables: tables.claim("batch")) for _ in range(3)]
        assert [one and one.id for one in claimed] == ["x", "y", None]
        await store.run(lambda tables: tables.signal(claimed[0], "cancel"))
        assert await store.run(lambda tables: tables.signals("batch")) == {"x": "cancel", "y": ""}
        assert not await store.run(
            lambda tables: tables.signal(record("z", kind="batch"), "cancel")
        )


async def test_work_of_a_process_that_ended_is_taken_over(tmp_path):
    """And that of one that still runs is not."""
    options = StoreOptions(store_file=tmp_path / "store.db")
    made = record("x", kind="batch", owner=NEW_WORK)
    async with opened(options) as first, opened(options) as second:
        await first.run(lambda tables: tables.add(made))
        assert await first.run(lambda tables: tables.claim("batch")) is not None
        assert await second.run(lambda tables: tables.claim("batch")) is None
        await first.close()
        assert await second.run(lambda tables: tables.claim("batch")) is not None
        changed = msgspec.structs.replace(made, owner=None)
        assert not await second.run(lambda tables: tables.change(changed, held_by="another"))
        assert await second.run(lambda tables: tables.change(changed, held_by=tables.me))
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]


async def test_several_processes_share_a_file(tmp_path):
    """Changes of one are seen by the other at once, and both may write at the same time."""
    options = StoreOptions(store_file=tmp_path / "store.db")
    async with opened(options) as first, opened(options) as second:
        stores = [first, second] * 20
        records = [record(str(number)) for number in range(len(stores))]
        await asyncio.gather(
            *(
                store.run(lambda tables, one=one: tables.add(one))
                for store, one in zip(stores, records, strict=True)
            )
        )
        assert await first.run(len) == await second.run(len) == len(records)


async def test_a_file_is_readable_for_its_user_only(tmp_path):
    """It holds prompts and answers of all tenants."""
    path = tmp_path / "store.db"
    async with opened(StoreOptions(store_file=path)) as store:
        await store.run(lambda tables: tables.add(record("x")))
        modes = {
            stat.S_IMODE(one.stat().st_mode) & 0o077
            for one in tmp_path.glob("store.db*")
            if "-owner-" not in one.name
        }
    assert modes == {0}


@pytest.mark.parametrize("kind", ["garbage", "other", "directory", "nowhere"])
def test_a_file_that_is_no_store_is_refused_at_the_start(tmp_path, kind):
    """With the flag's name; a database of another program is not changed."""
    path = tmp_path / "store.db"
    if kind == "garbage":
        path.write_bytes(b"no database" * 1000)
    elif kind == "other":
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE other (x)")
        database.close()
    elif kind == "directory":
        path.mkdir()
    else:
        path = tmp_path / "no" / "store.db"
    before = path.read_bytes() if path.is_file() else None
    store = Store(StoreOptions(store_file=path))
    with pytest.raises(ConfigError, match="--store-file"):
        store.open()
    assert kind != "garbage" or path.read_bytes() == before
    asyncio.run(store.close())


async def test_a_damaged_file_fails_clearly_and_the_next_change_may_work(tmp_path, caplog):
    """The caller gets 503 with SQLite's reason, which is logged once."""
    path = tmp_path / "store.db"
    async with opened(StoreOptions(store_file=path)) as store:
        await store.run(lambda tables: tables.add(record("x")))
        with sqlite3.connect(path) as database:
            database.execute("ALTER TABLE records RENAME TO lost")
        database.close()
        for _ in range(2):
            with pytest.raises(StoreFailed, match="no such table"):
                await store.run(lambda tables: tables.add(record("y")))
        assert caplog.text.count("the store cannot be used now") == 1


async def test_a_full_disk_fails_clearly_and_loses_nothing(tmp_path):
    """SQLite's own bound of pages stands for the disk's."""
    async with opened(StoreOptions(store_file=tmp_path / "store.db")) as store:
        await store.run(lambda tables: tables.add(record("x", content=b"x" * 1000)))
        await store.run(lambda tables: tables._run("PRAGMA max_page_count = 20"))
        with pytest.raises(StoreFailed, match="full"):
            await store.run(lambda tables: tables.add(record("y", content=b"x" * 10**6)))
        found = await store.run(lambda tables: tables.get("file", "a", "x"))
        assert found.content == b"x" * 1000


KILLED = """
import asyncio, os, sys
from pathlib import Path
from weft.web.store.store_options import StoreOptions
from weft.web.store.stored_object import NEW_WORK, StoredObject
from weft.web.store.database import Store

async def main():
    store = Store(StoreOptions(store_file=Path(sys.argv[1])))
    made = StoredObject(kind="batch", id="x", created_at=1.0, owner=NEW_WORK)
    await store.run(lambda tables: (tables.add(made), tables.claim("batch")))
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_a_change_is_there_after_the_process_was_killed(tmp_path):
    """What `run` has returned from outlives SIGKILL, and its work is taken over at once."""
    path = tmp_path / "store.db"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(path))
    assert await child.wait() == -signal.SIGKILL
    async with opened(StoreOptions(store_file=path)) as store:
        claimed = await store.run(lambda tables: tables.claim("batch"))
    assert claimed.id == "x"


async def test_a_closed_store_says_so(options):
    """Work that arrives late is refused, and what was posted before was done."""
    store = Store(options)
    store.post(lambda tables: tables.add(record("x")))
    await store.close()
    with pytest.raises(StoreFailed, match="shutting down"):
        await store.run(len)
    store.post(len)


@pytest.mark.parametrize(
    ("flag", "fields"),
    [
        ("--store-max-bytes", {"store_max_bytes": 0}),
        ("--store-max-tenant-bytes", {"store_max_tenant_bytes": -1}),
        ("--store-ttl", {"store_ttl": 0.0}),
        ("--batch-concurrency", {"batch_concurrency": 0}),
    ],
)
def test_a_setting_out_of_range_is_named(flag, fields):
    """Before anything is opened."""
    with pytest.raises(ConfigError, match=flag):
        Store(StoreOptions(**fields))


async def test_a_file_names_its_store_and_memory_has_a_new_name_each_time(tmp_path):
    """Ids name the store, so they stay valid after a restart exactly if the objects are there."""
    shared = StoreOptions(store_file=tmp_path / "store.db")
    names = []
    for options in (shared, shared, StoreOptions(), StoreOptions()):
        async with opened(options) as first, opened(options) as second:
            names.append((first.name, second.name))
    (a, b), (c, d), *memory = names
    assert a == b == c == d
    assert is_durable(a)
    assert len({*memory[0], *memory[1]}) == 4
    assert not any(map(is_durable, memory[0]))


async def test_a_file_without_a_name_gets_one_and_keeps_its_records(tmp_path):
    """Files of older versions have no name."""
    options = StoreOptions(store_file=tmp_path / "store.db")
    async with opened(options) as store:
        await store.run(lambda tables: tables.add(record("x")))
    with sqlite3.connect(tmp_path / "store.db") as database:
        database.execute("DROP TABLE store_name")
    async with opened(options) as store:
        assert store_of(store.new_id("resp")) == store.name
        assert await store.run(lambda tables: tables.get("file", "a", "x")) == record("x")
