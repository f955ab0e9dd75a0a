"""`StoredObject`: the unit of storage; and the limits and errors of a store."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from weft.core.errors import FailedPrecondition, Unavailable

# Bytes that count for a record in addition to its data: its row and its index entries.
RECORD_BYTES = 256
# The kind of records that are dropped, oldest first, if the store is full.
DROPPED_KIND = "response"
BATCH_KIND = "batch"
NEW_WORK = ""  # the owner of work that no process has begun


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """A stored object. `kind`, `tenant`, `collection` and `id` together identify it.

    `collection` is the id of the object that the record belongs to, such as the conversation of an item; "" for none.
    `label` is a property to select records by. `head` is what lists show; `content` may be large and is read alone.
    Times are Unix times in seconds; without `expires_at` a record stays until it is deleted. `owner` is the process
    that works on the record, `NEW_WORK` before any does, and None if no work is left. `signal` is a message to the
    owner.
    """

    kind: str
    id: str
    tenant: str = ""
    collection: str = ""
    label: str = ""
    head: bytes = b""
    content: bytes = b""
    created_at: float
    expires_at: float | None = None
    owner: str | None = None
    signal: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes that the record counts for."""
        return RECORD_BYTES + len(self.id) + len(self.head) + len(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """A page of a list: at most `limit` records, after the one with the id `after`, which the query parameter
    `after_name` has; only those with `label`, if one is given.
    """

    limit: int
    newest_first: bool = False
    after: str | None = None
    after_name: str = "after"
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Bounds of a store: bytes in all and for each tenant, and the number of responses."""

    max_bytes: int = 256 * 2**20
    max_tenant_bytes: int | None = None
    max_responses: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFigures:
    """Numbers and bytes of stored objects by kind, and numbers of batches that are waiting, running or ended."""

    num_objects: Mapping[str, int] = field(default_factory=dict)
    num_bytes: Mapping[str, int] = field(default_factory=dict)
    num_batches: Mapping[str, int] = field(default_factory=dict)


class StoreFull(FailedPrecondition):
    """No room is left for an object, even without the responses that may be dropped."""


class StoreFailed(Unavailable):
    """The database cannot be read or written now, for example because the disk is full."""
