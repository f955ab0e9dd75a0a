"""`BatchRunner`: runs the batches of a store, behind the requests of callers, until each has ended in one process."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import msgspec

from weft.core.aio.tasks import gather_all
from weft.core.checks.object_ids import new_id
from weft.core.errors import ConfigError, NotFound
from weft.schema.batches import BatchError
from weft.web.batches.batch_lines import (
    BatchAnswer,
    BatchRequest,
    BatchResponse,
    read_request,
)
from weft.web.batches.batch_series import BatchSeries
from weft.web.batches.places import Places
from weft.web.batches.stored_batch import (
    CANCEL,
    COMPLETED,
    FAILED,
    Batches,
    BatchState,
    tokens_of,
)
from weft.web.http.state import ServerState
from weft.web.inside import Inside, InsideAnswer, InsideCaller, until_answered
from weft.web.store.database import until_stored
from weft.web.store.stored_object import StoredObject, StoreFailed, StoreFull

log = logging.getLogger("weft.web")

_LOOK_S = 0.5  # between looks for new batches, abandoned ones, and signals
_MAX_RUNNING = 8
_MAX_ERRORS = 100
MAX_REQUESTS = 50_000


class InvalidLines(Exception):
    """The lines of an input that are not valid requests."""

    def __init__(self, errors: list[BatchError]) -> None:
        super().__init__("the input is not valid")
        self.errors = errors


class BatchRunner:
    """Takes batches from the store, the oldest first, and runs several at once."""

    def __init__(self, state: ServerState) -> None:
        self._batches = Batches(state.store)
        self._series = BatchSeries(state.registry)
        self._is_durable = state.store.is_durable
        self._places = Places(state, state.store.options.batch_concurrency)
        self._most = state.store.options.batch_concurrency
        self._running: dict[str, asyncio.Task[None]] = {}
        self._closing: set[str] = set()  # batches that are cancelled, or have no request left
        self._is_wanted = asyncio.Event()

    def wake(self) -> None:
        """Looks at the store at once."""
        self._is_wanted.set()

    async def run(self, call: InsideCaller) -> None:
        """Works until it is cancelled. Without a file, there are no batches before the first is created here."""
        if not self._is_durable:
            await self._is_wanted.wait()
        try:
            while True:
                self._is_wanted.clear()
                with suppress(StoreFailed):  # which the store has logged
                    await self._follow_signals()
                    await self._take(call)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._is_wanted.wait()
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_signals(self) -> None:
        """Cancels batches whose callers want it, and those that were deleted."""
        running = dict(self._running)
        if not running:
            return
        signals = await self._batches.signals()
        for batch_id, task in running.items():
            if signals.get(batch_id, CANCEL).startswith(CANCEL) and batch_id not in self._closing:
                self._closing.add(batch_id)
                task.cancel()

    async def _take(self, call: InsideCaller) -> None:
        while len(self._running) < _MAX_RUNNING:
            record = await self._batches.claim()
            if record is None:
                return
            task = asyncio.create_task(self._run(call, record))
            self._running[record.id] = task
            task.add_done_callback(partial(self._end, record.id))

    def _end(self, batch_id: str, _task: asyncio.Task[None]) -> None:
        del self._running[batch_id]
        self._closing.discard(batch_id)
        self.wake()

    # -- one batch --------------------------------------------------------------------------------

    async def _run(self, call: InsideCaller, record: StoredObject) -> None:
        batch = msgspec.json.decode(record.head, type=BatchState)
        work = _Batch(self._batches, record, batch, self._series)
        status = "completed"
        try:
            await work.read()
            if record.signal.startswith(CANCEL):
                status = "cancelled"
            else:
                async with asyncio.timeout(max(0, batch.expires_at - self._batches.now())):
                    await work.begin()
                    left = iter(await work.left())
                    await gather_all(
                        [self._answer_all(call, work, left) for _ in range(self._most)]
                    )
        except TimeoutError:
            status = "expired"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if record.id not in self._closing or task is None:
                raise  # the server stops: another process continues
            task.uncancel()
            status = "cancelled"
        except InvalidLines as error:
            work.fail(error.errors)
            status = "failed"
        except StoreFull as error:
            work.fail([BatchError(code="store_full", message=str(error))])
            status = "failed"
        self._closing.add(record.id)  # no signal interrupts the last change
        await work.end(status)

    async def _answer_all(
        self, call: InsideCaller, work: "_Batch", left: Iterator[BatchRequest]
    ) -> None:
        for request in left:
            await work.keep(request, await self._answer(call, work, request))

    async def _answer(
        self, call: InsideCaller, work: "_Batch", request: BatchRequest
    ) -> InsideAnswer:
        inside = Inside(work.record.tenant, is_low=True)

        async def send() -> InsideAnswer:
            async with self._places.take():
                return await call(request.url, bytes(request.body), inside)

        return await until_answered(send)


class _Batch:
    """A batch while it runs."""

    def __init__(
        self, batches: Batches, record: StoredObject, batch: BatchState, series: BatchSeries
    ) -> None:
        self._batches = batches
        self._series = series
        self._num_left = 0
        self.record = record
        self._batch = batch
        self._requests: list[BatchRequest] = []

    async def read(self) -> None:
        """Reads the requests; raises `InvalidLines` if some are not valid."""
        self._requests = await asyncio.to_thread(
            read_lines, self.record.content, self._batch.endpoint
        )

    async def begin(self) -> None:
        """Stores that the batch runs."""
        if self._batch.status == "validating":
            self._batch = msgspec.structs.replace(
                self._batch,
                status="in_progress",
                begun_at=self._batches.now(),
                total=len(self._requests),
            )
            await until_stored(lambda: self._batches.change(self.record, self._batch))

    async def left(self) -> list[BatchRequest]:
        """The requests without an answer."""
        answered = await self._batches.answered(self.record)
        found = [request for request in self._requests if request.custom_id not in answered]
        self._num_left = len(found)
        return found

    async def keep(self, request: BatchRequest, answer: InsideAnswer) -> None:
        """Stores an answer."""
        line = (
            _message_line(request, answer) if self._batch.is_of_messages else _line(request, answer)
        )
        is_ok, tokens = answer.status < 400, tokens_of(answer.body)
        await until_stored(
            lambda: self._batches.answer(self.record, request.custom_id, line, tokens, is_ok=is_ok)
        )
        self._num_left -= 1
        self._series.count_requests(COMPLETED if is_ok else FAILED)

    def fail(self, errors: list[BatchError]) -> None:
        """Notes why the batch has no answers."""
        self._batch = msgspec.structs.replace(self._batch, errors=errors)

    async def end(self, status: str) -> None:
        """Stores the end of the batch."""
        ids = [request.custom_id for request in self._requests]
        batch = msgspec.structs.replace(self._batch, total=len(ids))
        with suppress(NotFound):  # it was deleted
            await until_stored(lambda: self._batches.end(self.record, batch, status, ids))
        self._series.count_batch(status)
        if self._num_left:
            self._series.count_requests(status, self._num_left)
        log.info("batch %s has ended: %s", self.record.id, status)


def read_lines(content: bytes, endpoint: str) -> list[BatchRequest]:
    """Returns the requests of an input, all to `endpoint`; raises `InvalidLines`."""
    found: list[BatchRequest] = []
    seen: set[str] = set()
    errors: list[BatchError] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            request = read_request(line, seen)
            if request.url != endpoint:
                raise ConfigError(f"url must be the endpoint of the batch, {endpoint}")
        except (msgspec.MsgspecError, ConfigError, ValueError) as error:
            errors.append(BatchError(code="invalid_request", message=str(error), line=number))
            if len(errors) >= _MAX_ERRORS:
                break
            continue
        seen.add(request.custom_id)
        found.append(request)
    if not found and not errors:
        errors = [BatchError(code="empty_file", message="the input has no requests")]
    if len(found) > MAX_REQUESTS:
        message = f"a batch takes at most {MAX_REQUESTS} requests, got {len(found)}"
        errors = [BatchError(code="too_many_requests", message=message)]
    if errors:
        raise InvalidLines(errors)
    return found


def _line(request: BatchRequest, answer: InsideAnswer) -> bytes:
    response = BatchResponse(
        status_code=answer.status,
        request_id=answer.headers.get("x-request-id", ""),
        body=msgspec.Raw(answer.body),
    )
    line = BatchAnswer(id=new_id("batch_req"), custom_id=request.custom_id, response=response)
    return msgspec.json.encode(line) + b"\n"


def _message_line(request: BatchRequest, answer: InsideAnswer) -> bytes:
    name, kind = ("message", "succeeded") if answer.status < 400 else ("error", "errored")
    result = {"type": kind, name: msgspec.Raw(answer.body)}
    return msgspec.json.encode({"custom_id": request.custom_id, "result": result}) + b"\n"
