"""Background responses across processes: takes over those that another process left, and follows signals of others."""

import asyncio
import logging

import msgspec

from weft.schema.response_object import ResponseFailure, ResponseObject
from weft.web.inside import Inside, InsideAnswer, InsideCaller, until_answered
from weft.web.responses.create import Resumed
from weft.web.responses.reads import CANCEL
from weft.web.responses.runs import Runs
from weft.web.responses.store import StoredResponse, without_output
from weft.web.store.stored_object import StoredObject, StoreFailed

log = logging.getLogger("weft.web")

_LOOK_S = 0.5  # between looks for abandoned responses and signals
_PATH = "/v1/responses"


class Takeover:
    """The work on background responses that goes on while a server with a durable store serves."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._resuming: set[asyncio.Task[None]] = set()

    async def run(self, call: InsideCaller) -> None:
        """Works until it is cancelled."""
        if not self._runs.store.is_durable:
            return
        try:
            while True:
                try:
                    await self._follow_signals()
                    await self._take_over(call)
                except StoreFailed:
                    pass  # which the store has logged
                await asyncio.sleep(_LOOK_S)
        finally:
            for task in self._resuming:
                task.cancel()

    async def _follow_signals(self) -> None:
        """Ends the runs that another process cancelled or deleted."""
        runs = [run for run in self._runs.open() if run.task is not None and run.is_stored]
        if not runs:
            return
        signals = await self._runs.store.signals()
        for run in runs:
            if run.is_saved or run.is_over:
                continue
            if run.id not in signals:
                run.is_stored = False
            if signals.get(run.id) in (None, CANCEL):
                await self._runs.cancel(run)

    async def _take_over(self, call: InsideCaller) -> None:
        while self._runs.num_free > len(self._resuming):
            record = await self._runs.store.claim()
            if record is None:
                return
            task = asyncio.create_task(self._resume(call, record))
            self._resuming.add(task)
            task.add_done_callback(self._resuming.discard)

    async def _resume(self, call: InsideCaller, record: StoredObject) -> None:
        """Begins a response again; stores why, if the server no longer accepts its request."""
        if record.signal == CANCEL:
            await self._end(record, "cancelled")
            return
        log.info("response %s begins again", record.id)
        request = self._runs.store.to_accepted(record)
        inside = Inside(record.tenant, subject=Resumed(record, request))
        answer = await until_answered(lambda: call(_PATH, request.body, inside))
        if answer.status != 200:
            await self._end(record, "failed", message_of(answer))

    async def _end(self, record: StoredObject, status: str, message: str | None = None) -> None:
        response = msgspec.json.decode(record.head, type=ResponseObject)
        error = None if message is None else ResponseFailure(code="server_error", message=message)
        stored: StoredResponse = without_output(response, status, error)
        await self._runs.store.run([self._runs.store.ended(record.tenant, stored)])


class _Message(msgspec.Struct):
    message: str = ""


class _Error(msgspec.Struct):
    error: _Message


def message_of(answer: InsideAnswer) -> str:
    """The message of an error response."""
    try:
        return msgspec.json.decode(answer.body, type=_Error).error.message
    except msgspec.MsgspecError:
        return f"status {answer.status}"
