"""`Store`: runs work on the tables in a thread of its own, so that the event loop never waits for a disk.

Storage in memory is the same database without a file: both forms have the same behaviour and bounds.
"""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from weft.core.aio.pauses import Pauses
from weft.core.checks.object_ids import new_id, new_store_name
from weft.core.errors import ConfigError
from weft.web.store.owner import WorkOwner
from weft.web.store.store_options import StoreOptions
from weft.web.store.stored_object import StoreFailed, StoreFigures
from weft.web.store.tables import APPLICATION_ID, SCHEMA, VERSION, Tables

log = logging.getLogger("weft.web")

T = TypeVar("T")

_BUSY_S = 20.0  # how long a change waits for the changes of other processes
_RETRY_S = (0.5, 30.0)  # first and longest pause before a change is tried again
_FLAG = "--store-file"


class Store:
    """A store of records, owned by one event loop. The database is opened by the first work, or by `open`.

    `name` names the store in memory of one of several API servers, which share this name and nothing else. A file has
    its own name, which all processes that share the file find in it.
    """

    def __init__(
        self,
        options: StoreOptions | None = None,
        clock: Callable[[], float] = time.time,
        name: str | None = None,
    ) -> None:
        self.options = options or StoreOptions()
        self.options.check()
        self.clock = clock
        self._name: str | None = None
        # True if other processes answer requests for its objects without having them.
        self.is_one_of_several = name is not None and not self.is_durable
        if not self.is_durable:
            self._name = name or new_store_name(is_durable=False)
        self._thread: ThreadPoolExecutor | None = None
        self._database: sqlite3.Connection | None = None
        self._tables: Tables | None = None
        self._owner: WorkOwner | None = None
        self._reported: str | None = None
        self._is_closed = False
        self._has_changed = False  # True until the figures are read again
        self.figures = StoreFigures()

    @property
    def is_durable(self) -> bool:
        """True if what is stored outlives this process, and other processes share it."""
        return self.options.store_file is not None

    @property
    def name(self) -> str:
        """The name of this store, which is part of the ids of its objects."""
        if self._name is None:
            self.open()
        assert self._name is not None
        return self._name

    def new_id(self, prefix: str) -> str:
        """Returns the id of a new object of this store."""
        return new_id(prefix, self.name)

    def open(self) -> None:
        """Opens the file now. Raises `ConfigError` if it cannot be used."""
        self._submit(self._open).result()

    async def run(self, work: Callable[[Tables], T]) -> T:
        """Returns the result of `work`, which runs in one transaction; an error undoes all its changes."""
        return await asyncio.wrap_future(self._submit(partial(self._transact, work)))

    def post(self, work: Callable[[Tables], object]) -> None:
        """Has `work` done after all earlier work, without waiting for it. An error is only logged."""
        with suppress(StoreFailed):  # the server is shutting down
            self._submit(partial(self._transact, work)).add_done_callback(_log_failure)

    async def close(self) -> None:
        """Does what was posted, then closes the file. Called once; idempotent if nothing was opened."""
        if self._thread is not None and not self._is_closed:
            closing = self._submit(self._close)
            self._is_closed = True
            await asyncio.wrap_future(closing)
            self._thread.shutdown(wait=False)

    def _submit(self, work: Callable[[], T]) -> "Future[T]":
        if self._is_closed:
            raise StoreFailed("the server is shutting down")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="weft-store")
        return self._thread.submit(work)

    # -- on the thread ----------------------------------------------------------------------------

    def _open(self) -> Tables:
        if self._tables is not None:
            return self._tables
        path = self.options.store_file
        try:
            database = _opened(path)
            name = self._name or _name_of(database)
            self._owner = WorkOwner(path)
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"{_FLAG} {path} cannot be used: {error}") from None
        self._database = database
        self._name = name
        self._tables = Tables(database, self.options.limits, self._owner, self.clock)
        self._tables.store_name = name
        return self._tables

    def _transact(self, work: Callable[[Tables], T]) -> T:
        tables = self._open()
        database = self._database
        assert database is not None
        try:
            database.execute("BEGIN IMMEDIATE")
            result = work(tables)
            database.execute("COMMIT")
        except BaseException as error:
            _undo(database)
            if isinstance(error, sqlite3.Error):
                raise self._failed(error) from error
            raise
        if not self._has_changed:
            self._has_changed = True
            with suppress(StoreFailed):  # the server is shutting down
                self._submit(self._count)
        return result

    def _count(self) -> None:
        """Reads the figures, after all work that has been submitted."""
        self._has_changed = False
        with suppress(sqlite3.Error):  # which the next work meets too
            self.figures = self._open().figures()

    def _failed(self, error: sqlite3.Error) -> StoreFailed:
        reported = f"the store cannot be used now: {error}"
        if reported != self._reported:  # the same failure again is not logged again
            log.error("%s%s", reported, f" ({self.options.store_file})" if self.is_durable else "")
        self._reported = reported
        return StoreFailed(reported)

    def _close(self) -> None:
        if self._owner is not None:
            self._owner.close()
        if self._database is not None:
            self._database.close()
        self._tables = self._database = self._owner = None


async def until_stored(change: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of a change of the store; tries, after growing pauses, until the store can be written."""
    pauses = Pauses(*_RETRY_S)
    while True:
        try:
            return await change()
        except StoreFailed:
            await asyncio.sleep(pauses.next_s())


def _opened(path: Path | None) -> sqlite3.Connection:
    """Opens a database, and creates its tables if it is new."""
    if path is not None:
        # Readable for the server's user only, and so are the files that SQLite adds.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    database = sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=_BUSY_S,
        isolation_level=None,  # transactions begin and end as `_transact` says
        check_same_thread=False,
    )
    try:
        _prepare(database)
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection) -> None:
    # Each commit is in the file's log when it returns, which the end of the process does not undo.
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA temp_store = MEMORY")
    database.execute("BEGIN IMMEDIATE")
    found = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in _IDENTITY]
    is_empty = not database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    if is_empty:
        for statement in _statements(SCHEMA):
            database.execute(statement)
        for name, value in _IDENTITY.items():
            database.execute(f"PRAGMA {name} = {value}")
    elif found != list(_IDENTITY.values()):
        raise sqlite3.DatabaseError(
            f"it is no store of this version (application {found[0]}, version {found[1]})"
        )
    database.execute("COMMIT")


def _name_of(database: sqlite3.Connection) -> str:
    """Returns the name of the store in a file; the first process that opens the file gives the name."""
    database.execute("BEGIN IMMEDIATE")
    # Not part of the schema: files of older versions have no name yet, and these versions still read the file.
    database.execute("CREATE TABLE IF NOT EXISTS store_name (name TEXT NOT NULL)")
    found = database.execute("SELECT name FROM store_name").fetchone()
    name: str = new_store_name(is_durable=True) if found is None else found[0]
    if found is None:
        database.execute("INSERT INTO store_name VALUES (?)", (name,))
    database.execute("COMMIT")
    return name


_IDENTITY = {"application_id": APPLICATION_ID, "user_version": VERSION}


def _statements(script: str) -> list[str]:
    """The statements of a script; that of a trigger ends after its END."""
    statements, part = [], ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            statements.append(part)
            part = ""
    return statements


def _undo(database: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):  # a damaged file cannot be read to the end
        if database.in_transaction:
            database.execute("ROLLBACK")


def _log_failure(done: "Future[object]") -> None:
    error = done.exception()
    if error is not None and not isinstance(error, StoreFailed):  # which is logged where it occurs
        log.error("an object was not stored: %s", error)
