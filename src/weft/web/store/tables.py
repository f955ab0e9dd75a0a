"""`Tables`: the records in a SQLite database, read and changed within one transaction."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence

from weft.core.errors import BadRequest
from weft.web.store.owner import WorkOwner
from weft.web.store.stored_object import (
    BATCH_KIND,
    DROPPED_KIND,
    NEW_WORK,
    Paging,
    StoredObject,
    StoreFigures,
    StoreFull,
    StoreLimits,
)

APPLICATION_ID = 0x57656674  # "Weft": other programs' databases have another number
VERSION = 1
SCHEMA = """
CREATE TABLE records (
  position INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL, tenant TEXT NOT NULL, collection TEXT NOT NULL, id TEXT NOT NULL, label TEXT NOT NULL,
  head BLOB NOT NULL, content BLOB NOT NULL, created_at REAL NOT NULL, expires_at REAL,
  owner TEXT, signal TEXT NOT NULL, num_bytes INTEGER NOT NULL,
  UNIQUE (kind, tenant, id, collection)
);
CREATE INDEX by_position ON records (kind, tenant, collection, position);
CREATE INDEX by_age ON records (kind, position) WHERE owner IS NULL;
CREATE INDEX by_expiry ON records (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX by_owner ON records (kind, owner) WHERE owner IS NOT NULL;
CREATE TABLE totals (
  tenant TEXT NOT NULL, kind TEXT NOT NULL, num_records INTEGER NOT NULL, num_bytes INTEGER NOT NULL,
  PRIMARY KEY (tenant, kind)
);
CREATE TRIGGER added AFTER INSERT ON records BEGIN
  INSERT INTO totals VALUES (NEW.tenant, NEW.kind, 1, NEW.num_bytes)
  ON CONFLICT DO UPDATE SET num_records = num_records + 1, num_bytes = num_bytes + NEW.num_bytes;
END;
CREATE TRIGGER changed AFTER UPDATE OF num_bytes ON records BEGIN
  UPDATE totals SET num_bytes = num_bytes + NEW.num_bytes - OLD.num_bytes
  WHERE tenant = NEW.tenant AND kind = NEW.kind;
END;
CREATE TRIGGER removed AFTER DELETE ON records BEGIN
  UPDATE totals SET num_records = num_records - 1, num_bytes = num_bytes - OLD.num_bytes
  WHERE tenant = OLD.tenant AND kind = OLD.kind;
END;
CREATE TRIGGER emptied AFTER DELETE ON records BEGIN
  DELETE FROM records WHERE kind = OLD.kind || '_item' AND tenant = OLD.tenant AND collection = OLD.id;
END;
"""
_HEAD = "kind, tenant, collection, id, label, head, created_at, expires_at, owner, signal"
_KEY = "kind = ? AND tenant = ? AND collection = ? AND id = ?"
_IN_ORDER = "kind = ? AND tenant = ? AND collection = ?"
_MAX_DROPPED = 64  # records that expired and are deleted by one change


class Tables:
    """The records of one store. All methods belong to the transaction that is open."""

    def __init__(
        self,
        database: sqlite3.Connection,
        limits: StoreLimits,
        owner: WorkOwner,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._limits = limits
        self._owner = owner
        self.clock = clock
        self.store_name = ""

    @property
    def me(self) -> str:
        """The name of this process as an owner of work."""
        return self._owner.name

    # -- one record -------------------------------------------------------------------------------

    def add(self, record: StoredObject) -> bool:
        """Adds a record; returns False if it exists already. Raises `StoreFull` without room for it."""
        fields = (
            *self._key(record), record.label, record.head, record.content, record.created_at,
            record.expires_at, record.owner, record.signal, record.num_bytes,
        )  # fmt: skip
        marks = ", ".join("?" * len(fields))
        names = (
            "kind, tenant, collection, id, label, head, content, created_at, expires_at, owner, signal, "
            "num_bytes"
        )
        done = self._run(
            f"INSERT INTO records ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING", *fields
        )
        if done.rowcount:
            self._make_room(record)
        return done.rowcount > 0

    def change(self, record: StoredObject, *, held_by: str | None = None) -> bool:
        """Replaces the data of a record that exists; returns False if it does not, or another process owns it."""
        held, holder = ("", ()) if held_by is None else (" AND owner = ?", (held_by,))
        done = self._run(
            "UPDATE records SET label = ?, head = ?, content = ?, expires_at = ?, owner = ?, signal = ?, num_bytes = ? "
            f"WHERE {_KEY}{held}",
            *(record.label, record.head, record.content, record.expires_at, record.owner),
            *(record.signal, record.num_bytes, *self._key(record), *holder),
        )
        if done.rowcount:
            self._make_room(record)
        return done.rowcount > 0

    def change_head(self, record: StoredObject) -> bool:
        """Replaces the head of a record, and the time of its expiry; its content stays."""
        done = self._run(
            "UPDATE records SET num_bytes = num_bytes + ? - length(head), head = ?, expires_at = ? "
            f"WHERE {_KEY}",
            *(len(record.head), record.head, record.expires_at, *self._key(record)),
        )
        return done.rowcount > 0

    def signal(self, record: StoredObject, signal: str) -> bool:
        """Leaves a message to the owner of a record; returns False if no work is left on it."""
        done = self._run(
            f"UPDATE records SET signal = ? WHERE {_KEY} AND owner IS NOT NULL",
            signal,
            *self._key(record),
        )
        return done.rowcount > 0

    def get(
        self, kind: str, tenant: str, record_id: str, collection: str = ""
    ) -> StoredObject | None:
        """The record with its content; None if there is none."""
        rows = self._select(f"{_HEAD}, content", _KEY, kind, tenant, collection, record_id)
        return next(rows, None)

    def head(
        self, kind: str, tenant: str, record_id: str, collection: str = ""
    ) -> StoredObject | None:
        """The record without its content; None if there is none."""
        return next(self._select(_HEAD, _KEY, kind, tenant, collection, record_id), None)

    def delete(self, kind: str, tenant: str, record_id: str, collection: str = "") -> bool:
        """Deletes a record and its items: records of the kind `{kind}_item` in its collection. Returns True if the
        record was there.
        """
        done = self._run(f"DELETE FROM records WHERE {_KEY}", kind, tenant, collection, record_id)
        return done.rowcount > 0

    # -- several records --------------------------------------------------------------------------

    def page(
        self, kind: str, tenant: str, paging: Paging, collection: str = ""
    ) -> list[StoredObject]:
        """Some records without their contents, in the order of their creation. Raises `BadRequest` if the record to
        start after is not in the list.
        """
        where, values = _IN_ORDER, [kind, tenant, collection]
        if paging.label is not None:
            where += " AND label = ?"
            values.append(paging.label)
        bounds: list[int] = []
        if paging.after is not None:
            where += f" AND position {'<' if paging.newest_first else '>'} ?"
            bounds.append(self._position(kind, tenant, collection, paging))
        order = "DESC" if paging.newest_first else "ASC"
        ending = f"ORDER BY position {order} LIMIT {int(paging.limit)}"
        return list(self._select(_HEAD, where, *values, *bounds, ending=ending))

    def contents(self, kind: str, tenant: str, collection: str) -> Iterator[StoredObject]:
        """All records of a collection with their contents, in the order of their creation."""
        return self._select(
            f"{_HEAD}, content", _IN_ORDER, kind, tenant, collection, ending="ORDER BY position"
        )

    def collection_of(self, kind: str, tenant: str, record_id: str) -> str | None:
        """The collection of the newest record with this id, whichever that is; None if there is no record."""
        rows = self._select(
            _HEAD,
            *("kind = ? AND tenant = ? AND id = ?", kind, tenant, record_id),
            ending="ORDER BY position DESC LIMIT 1",
        )
        found = next(rows, None)
        return None if found is None else found.collection

    def ids(self, kind: str, tenant: str, collection: str) -> set[str]:
        """The ids of all records of a collection."""
        rows = self._run(
            f"SELECT id FROM records WHERE {_IN_ORDER}", kind, tenant, collection
        ).fetchall()
        return {row[0] for row in rows}

    def count_by_label(self, kind: str, tenant: str, collection: str) -> dict[str, int]:
        """Numbers of records of a collection, by label."""
        rows = self._run(
            f"SELECT label, COUNT(*) FROM records WHERE {_IN_ORDER} GROUP BY label",
            *(kind, tenant, collection),
        )
        return dict(rows.fetchall())

    def size(self, kind: str, tenant: str, collection: str) -> int:
        """Bytes of all records of a collection."""
        row = self._run(
            f"SELECT COALESCE(SUM(num_bytes), 0) FROM records WHERE {_IN_ORDER}",
            *(kind, tenant, collection),
        ).fetchone()
        return int(row[0])

    def delete_all(self, kind: str, tenant: str, collection: str) -> None:
        """Deletes all records of a collection."""
        self._run(f"DELETE FROM records WHERE {_IN_ORDER}", kind, tenant, collection)

    # -- work -------------------------------------------------------------------------------------

    def claim(self, kind: str) -> StoredObject | None:
        """Takes the oldest work that no living process has begun: returns its record, which this process owns now."""
        rows = self._run(
            "SELECT DISTINCT owner FROM records WHERE kind = ? AND owner IS NOT NULL", kind
        ).fetchall()
        free = [row[0] for row in rows if row[0] == NEW_WORK or self._owner.has_ended(row[0])]
        if not free:
            return None
        marks = ", ".join("?" * len(free))
        found = next(
            self._select(
                f"{_HEAD}, content",
                f"kind = ? AND owner IN ({marks})",
                *(kind, *free),
                ending="ORDER BY position LIMIT 1",
            ),
            None,
        )
        if found is not None:
            self.hand_over(found, self.me)
        return found

    def hand_over(self, record: StoredObject, owner: str) -> None:
        """Changes the owner of a record."""
        self._run(f"UPDATE records SET owner = ? WHERE {_KEY}", owner, *self._key(record))

    def signals(self, kind: str) -> dict[str, str]:
        """The records that this process owns: each id with the message to the owner."""
        rows = self._run(
            "SELECT id, signal FROM records WHERE kind = ? AND owner = ?", kind, self.me
        ).fetchall()
        return dict(rows)

    # -- bounds -----------------------------------------------------------------------------------

    @property
    def num_bytes(self) -> int:
        """Bytes of all records."""
        return self._total("num_bytes")

    def figures(self) -> StoreFigures:
        """Numbers and bytes of all records."""
        rows = self._run(
            "SELECT kind, SUM(num_records), SUM(num_bytes) FROM totals GROUP BY kind"
        ).fetchall()
        num_objects = {kind: num_records for kind, num_records, _ in rows}
        owned = self._run(
            "SELECT owner = ?, COUNT(*) FROM records WHERE kind = ? AND owner IS NOT NULL GROUP BY 1",
            *(NEW_WORK, BATCH_KIND),
        )
        num_owned = dict(owned.fetchall())
        waiting, running = num_owned.get(1, 0), num_owned.get(0, 0)
        ended = num_objects.get(BATCH_KIND, 0) - waiting - running
        return StoreFigures(
            num_objects=num_objects,
            num_bytes={kind: num_bytes for kind, _, num_bytes in rows},
            num_batches={"waiting": waiting, "running": running, "ended": ended},
        )

    def __len__(self) -> int:
        return self._total("num_records")

    def _total(self, column: str, where: str = "1", *values: object) -> int:
        row = self._run(f"SELECT COALESCE(SUM({column}), 0) FROM totals WHERE {where}", *values)
        return int(row.fetchone()[0])

    def _make_room(self, record: StoredObject) -> None:
        """Drops the oldest responses until `record`, which was just written, fits within the bounds."""
        self._drop_expired()
        limits, tenant = self._limits, record.tenant
        while self._total("num_records", "kind = ?", DROPPED_KIND) > limits.max_responses:
            if not self._drop_oldest(record):
                break
        while self._total("num_bytes") > limits.max_bytes:
            if not self._drop_oldest(record):
                raise StoreFull(
                    f"the store is full: it holds {limits.max_bytes} bytes (--store-max-bytes); delete files, batches "
                    "or conversations"
                )
        most = limits.max_tenant_bytes
        while most is not None and self._total("num_bytes", "tenant = ?", tenant) > most:
            if not self._drop_oldest(record, "tenant = ?", tenant):
                raise StoreFull(
                    f"your share of the store is full: it holds {most} bytes (--store-max-tenant-bytes); delete files, "
                    "batches or conversations"
                )

    def _drop_oldest(self, record: StoredObject, where: str = "1", *values: object) -> bool:
        """Deletes the oldest response that has ended, but not that of `record`; returns False if there is none."""
        row = self._run(
            "SELECT tenant, id FROM records "
            f"WHERE kind = ? AND owner IS NULL AND id NOT IN (?, ?) AND {where} ORDER BY position LIMIT 1",
            *(DROPPED_KIND, record.id, record.collection, *values),
        ).fetchone()
        return row is not None and self.delete(DROPPED_KIND, *row)

    def _drop_expired(self) -> None:
        self._run(
            "DELETE FROM records WHERE position IN "
            "(SELECT position FROM records WHERE expires_at <= ? AND owner IS NULL LIMIT ?)",
            *(self.clock(), _MAX_DROPPED),
        )

    # -- SQL --------------------------------------------------------------------------------------

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._database.execute(statement, values)

    def _select(
        self, columns: str, where: str, *values: object, ending: str = ""
    ) -> Iterator[StoredObject]:
        """Records that have not expired."""
        names: Sequence[str] = columns.split(", ")
        rows = self._run(
            f"SELECT {columns} FROM records WHERE {where} AND (expires_at IS NULL OR expires_at > ?) {ending}",
            *(*values, self.clock()),
        )
        return (StoredObject(**dict(zip(names, row, strict=True))) for row in rows)

    def _position(self, kind: str, tenant: str, collection: str, paging: Paging) -> int:
        row = self._run(
            f"SELECT position FROM records WHERE {_KEY}", kind, tenant, collection, paging.after
        ).fetchone()
        if row is None:
            shown = f"{paging.after_name} names nothing in this list: {str(paging.after)[:64]!a}"
            raise BadRequest(paging.after_name, shown)
        return int(row[0])

    @staticmethod
    def _key(record: StoredObject) -> tuple[str, str, str, str]:
        return record.kind, record.tenant, record.collection, record.id
