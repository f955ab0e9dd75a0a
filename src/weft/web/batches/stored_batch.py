"""Batches of both APIs in the store of a server: their states, their answers, and the files that they end in."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import msgspec

from weft.core.checks.object_ids import new_id
from weft.core.errors import NotFound
from weft.schema.batches import BatchError, BatchTokens, FileObject
from weft.web.batches.batch_lines import BatchAnswer, LineError
from weft.web.store.database import Store
from weft.web.store.stored_object import BATCH_KIND, NEW_WORK, Paging, StoredObject
from weft.web.store.tables import Tables

KIND = BATCH_KIND
ITEM_KIND = f"{KIND}_item"
FILE_KIND = "file"
MESSAGES = "messages"  # the label of Anthropic's batches; OpenAI's have "requests"
REQUESTS = "requests"
CANCEL = "cancel"  # begins the signal to the process that runs a batch; the time follows
COMPLETED, FAILED = "completed", "failed"  # labels of answers
DEFAULT_FILE_TTL_S = 30 * 24 * 3600


class Tokens(msgspec.Struct, frozen=True):
    """Numbers of tokens of answers."""

    num_in: int = 0
    num_cached: int = 0
    num_out: int = 0
    num_reasoning: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            self.num_in + other.num_in,
            self.num_cached + other.num_cached,
            self.num_out + other.num_out,
            self.num_reasoning + other.num_reasoning,
        )


class BatchState(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in any state. `counts` are numbers of requests by result, once the batch has ended. `file_ttl_s` is how
    long its files are stored. Times are Unix times.
    """

    id: str
    endpoint: str
    input_file_id: str = ""
    completion_window: str
    metadata: dict[str, str] = {}
    file_ttl_s: int = DEFAULT_FILE_TTL_S
    created_at: int
    expires_at: int
    status: str = "validating"
    begun_at: int | None = None
    cancelling_at: int | None = None
    ended_at: int | None = None
    total: int = 0
    counts: dict[str, int] = {}
    errors: list[BatchError] = []
    tokens: Tokens | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def is_of_messages(self) -> bool:
        """True for a batch of Anthropic's API."""
        return self.endpoint == "/v1/messages"


class _Answer(msgspec.Struct):
    usage: BatchTokens | None = None


_json = msgspec.json.Encoder()


def tokens_of(body: bytes) -> Tokens:
    """The tokens that an answer reports, in the words of its API."""
    try:
        usage = msgspec.json.decode(body, type=_Answer).usage
    except msgspec.MsgspecError:
        return Tokens()
    if usage is None:
        return Tokens()
    details = [
        usage.prompt_tokens_details,
        usage.input_tokens_details,
        usage.completion_tokens_details,
        usage.output_tokens_details,
    ]
    cached = sum(getattr(one, "cached_tokens", 0) for one in details)
    return Tokens(
        usage.prompt_tokens + usage.input_tokens,
        cached,
        (usage.completion_tokens or 0) + usage.output_tokens,
        sum(getattr(one, "reasoning_tokens", 0) for one in details),
    )


class Batches:
    """The batches of all tenants in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def now(self) -> int:
        """The time of the store."""
        return int(self._store.clock())

    def new_id(self, prefix: str) -> str:
        """Returns the id of a new batch."""
        return self._store.new_id(prefix)

    async def create(self, tenant: str, batch: BatchState, lines: bytes) -> None:
        """Stores a new batch with its requests, as work for any process."""
        record = StoredObject(
            kind=KIND,
            id=batch.id,
            tenant=tenant,
            label=MESSAGES if batch.is_of_messages else REQUESTS,
            head=_json.encode(batch),
            content=lines,
            created_at=batch.created_at,
            owner=NEW_WORK,
        )
        await self._store.run(lambda tables: tables.add(record))

    async def get(self, tenant: str, batch_id: str, label: str) -> BatchState:
        """Returns a batch with its present counts; raises `NotFound` if there is none."""
        return await self._store.run(
            lambda tables: _shown(tables, _found(tables, tenant, batch_id, label))
        )

    async def page(self, tenant: str, paging: Paging) -> list[BatchState]:
        """Some batches of a tenant."""

        def work(tables: Tables) -> list[BatchState]:
            return [_shown(tables, record) for record in tables.page(KIND, tenant, paging)]

        return await self._store.run(work)

    async def cancel(self, tenant: str, batch_id: str, label: str) -> BatchState:
        """Asks the process that runs a batch to end it; a batch that has ended stays as it is."""

        def work(tables: Tables) -> BatchState:
            record = _found(tables, tenant, batch_id, label)
            if not record.signal:
                tables.signal(record, f"{CANCEL} {self.now()}")
            return _shown(tables, _found(tables, tenant, batch_id, label))

        return await self._store.run(work)

    async def results(self, tenant: str, batch_id: str) -> tuple[BatchState, bytes]:
        """Returns a batch of messages with its results, which are empty until it has ended."""

        def work(tables: Tables) -> tuple[BatchState, bytes]:
            _found(tables, tenant, batch_id, MESSAGES)
            record = tables.get(KIND, tenant, batch_id)
            assert record is not None
            return _shown(tables, record), b"" if record.owner is not None else record.content

        return await self._store.run(work)

    async def delete(self, tenant: str, batch_id: str) -> None:
        """Deletes a batch with its results."""
        await self._store.run(lambda tables: tables.delete(KIND, tenant, batch_id))

    # -- for the process that runs it -------------------------------------------------------------

    async def claim(self) -> StoredObject | None:
        """Takes the oldest batch that no process runs."""
        return await self._store.run(lambda tables: tables.claim(KIND))

    async def signals(self) -> dict[str, str]:
        """The batches of this process, with the signals to it."""
        return await self._store.run(lambda tables: tables.signals(KIND))

    async def change(self, record: StoredObject, batch: BatchState) -> None:
        """Stores a new state of a batch."""
        changed = msgspec.structs.replace(record, head=_json.encode(batch))
        await self._store.run(lambda tables: tables.change_head(changed))

    async def answered(self, record: StoredObject) -> set[str]:
        """The `custom_id` of each request that has an answer."""
        return await self._store.run(lambda tables: tables.ids(ITEM_KIND, record.tenant, record.id))

    async def answer(
        self, record: StoredObject, custom_id: str, line: bytes, tokens: Tokens, *, is_ok: bool
    ) -> None:
        """Stores the answer to a request, unless it has one."""
        item = StoredObject(
            kind=ITEM_KIND,
            id=custom_id,
            tenant=record.tenant,
            collection=record.id,
            label=COMPLETED if is_ok else FAILED,
            head=line,
            content=msgspec.json.encode(tokens),
            created_at=self._store.clock(),
        )
        await self._store.run(lambda tables: tables.add(item))

    async def end(
        self, record: StoredObject, batch: BatchState, status: str, custom_ids: Iterable[str] = ()
    ) -> None:
        """Ends a batch: its answers become files, or results. `custom_ids` are those of all its requests."""
        ending = BatchEnding(record, batch, status, tuple(custom_ids), self._store.options.ttl_s)
        await self._store.run(partial(ending))


@dataclass(frozen=True, slots=True)
class BatchEnding:
    """The change that ends a batch, if it still belongs to this process."""

    record: StoredObject
    batch: BatchState
    status: str
    custom_ids: tuple[str, ...]
    ttl_s: float

    def __call__(self, tables: Tables) -> None:
        record, batch, now = self.record, self.batch, int(tables.clock())
        items = list(tables.contents(ITEM_KIND, record.tenant, record.id))
        tables.delete_all(ITEM_KIND, record.tenant, record.id)
        answered = {item.id for item in items}
        left = [one for one in self.custom_ids if one not in answered]
        lines = {
            label: [item.head for item in items if item.label == label]
            for label in (COMPLETED, FAILED)
        }
        counts = {label: len(found) for label, found in lines.items()}
        tokens = sum((msgspec.json.decode(item.content, type=Tokens) for item in items), Tokens())
        ended = msgspec.structs.replace(
            batch,
            status=self.status,
            ended_at=now,
            cancelling_at=_cancelling_at(tables, record),
            counts={**counts, self.status: len(left)} if left else counts,
            tokens=tokens,
        )
        results = b""
        if batch.is_of_messages:
            unanswered = [_without_result(one, self.status) for one in left]
            results = b"".join([*lines[COMPLETED], *lines[FAILED], *unanswered])
        else:
            if self.status == "expired":
                lines[FAILED] += map(_expired, left)
            ended = msgspec.structs.replace(
                ended,
                output_file_id=self._file(tables, "output", lines[COMPLETED]),
                error_file_id=self._file(tables, "error", lines[FAILED]),
            )
        changed = msgspec.structs.replace(
            record,
            head=_json.encode(ended),
            content=results,
            owner=None,
            signal="",
            expires_at=now + self.ttl_s,
        )
        if not tables.change(changed, held_by=tables.me):
            raise NotFound(f"batch {record.id} was deleted")  # which undoes all changes

    def _file(self, tables: Tables, name: str, lines: list[bytes]) -> str | None:
        """Stores a file of the batch; returns its id, None for an empty file."""
        if not lines:
            return None
        record = add_file(
            tables,
            self.record.tenant,
            f"{self.record.id}_{name}.jsonl",
            "batch_output",
            b"".join(lines),
            ttl_s=self.batch.file_ttl_s,
        )
        return record.id


def add_file(
    tables: Tables, tenant: str, name: str, purpose: str, content: bytes, *, ttl_s: int | None
) -> StoredObject:
    """Stores a new file; returns its record."""
    created_at = int(tables.clock())
    expires_at = None if ttl_s is None else created_at + ttl_s
    file = FileObject(
        id=new_id("file", tables.store_name, mark="-"),
        bytes=len(content),
        created_at=created_at,
        filename=name,
        purpose=purpose,
        expires_at=expires_at,
    )
    record = StoredObject(
        kind=FILE_KIND,
        id=file.id,
        tenant=tenant,
        label=purpose,
        head=_json.encode(file),
        content=content,
        created_at=created_at,
        expires_at=expires_at,
    )
    tables.add(record)
    return record


def _found(tables: Tables, tenant: str, batch_id: str, label: str) -> StoredObject:
    record = tables.head(KIND, tenant, batch_id)
    if record is None or record.label != label:
        raise NotFound(f"there is no batch {batch_id[:64]!a}", "batch_id")
    return record


def _shown(tables: Tables, record: StoredObject) -> BatchState:
    """The batch, with what its records say of work that is left."""
    batch = msgspec.json.decode(record.head, type=BatchState)
    if record.owner is None:
        return batch
    counts = tables.count_by_label(ITEM_KIND, record.tenant, record.id)
    batch = msgspec.structs.replace(batch, counts=counts)
    at = _cancelling_at(tables, record)
    return (
        batch
        if at is None
        else msgspec.structs.replace(batch, status="cancelling", cancelling_at=at)
    )


def _cancelling_at(tables: Tables, record: StoredObject) -> int | None:
    found = tables.head(KIND, record.tenant, record.id)
    if found is None or not found.signal.startswith(CANCEL):
        return None
    return int(found.signal.removeprefix(CANCEL))


def _expired(custom_id: str) -> bytes:
    error = LineError("batch_expired", "This request could not be run before the batch expired.")
    answer = BatchAnswer(id=new_id("batch_req"), custom_id=custom_id, response=None, error=error)
    return _json.encode(answer) + b"\n"


def _without_result(custom_id: str, status: str) -> bytes:
    kind = "expired" if status == "expired" else "canceled"
    return _json.encode({"custom_id": custom_id, "result": {"type": kind}}) + b"\n"
