"""Running responses: in the foreground, while the client waits, or in the background."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing
from typing import TypeAlias

from msgspec import UNSET

from weft.core.errors import Overloaded, Unavailable, WeftError
from weft.schema.response_events import StreamEvent
from weft.schema.response_object import ResponseFailure, ResponseObject
from weft.web.http.sse import named_event
from weft.web.http.state import ServerState
from weft.web.responses.event_log import EventLog
from weft.web.responses.store import (
    AcceptedRequest,
    ResponseLimits,
    ResponseStore,
    StoredResponse,
    to_stored,
    without_output,
)
from weft.web.responses.tool_loop import PreparedRequest, ToolLoop
from weft.web.responses.writer import ResponseWriter
from weft.web.served import Served
from weft.web.store.database import until_stored
from weft.web.store.stored_object import StoreFailed, StoreFull
from weft.web.store.tables import Tables

log = logging.getLogger("weft.web")

_TERMINAL = frozenset(("completed", "incomplete", "failed", "cancelled"))

Prepare: TypeAlias = Callable[[PreparedRequest], Awaitable[PreparedRequest]]
Change: TypeAlias = Callable[[Tables], object]
"""A change of the store, made in one transaction with others."""


class Run:
    """A response from its beginning to its end.

    `error` is the failure of a response that had begun. `prepare` does the rest of the work on the request, which may
    take long. `tenant` is the tenant of its caller. `also` returns changes of the store that are made when the response
    is complete: a conversation's new items.
    """

    def __init__(
        self,
        served: Served,
        request: PreparedRequest,
        events: EventLog | None = None,
        prepare: Prepare | None = None,
        *,
        tenant: str = "",
        also: Callable[["Run"], Sequence[Change]] = lambda _: (),
    ) -> None:
        self.request = request
        self.tenant = tenant
        self._also = also
        self._prepare = prepare
        self.log = events
        self.error: Exception | None = None
        self.is_stored = request.response.store
        self.is_saved = False  # True once nothing is left to store
        self.is_cut = False  # True if the end of the server ended it
        self.task: asyncio.Task[None] | None = None
        self._served = served
        self._writer = ResponseWriter(
            request.response,
            has_cached_tokens=served.options.enable_prompt_tokens_details,
        )

    def hold_model(self) -> AbstractContextManager[None]:
        """Keeps the model in memory during the block."""
        return self._served.hold()

    @property
    def id(self) -> str:
        """The response's id."""
        return self.request.response.id

    @property
    def response(self) -> ResponseObject:
        """The response in its present state."""
        return self._writer.response

    @property
    def is_over(self) -> bool:
        """True once the response has its last state."""
        return self.response.status in _TERMINAL

    @property
    def is_worth_storing(self) -> bool:
        """True if the client may fetch the response: not if the engine never accepted it."""
        return self.is_stored and self._writer.has_started

    def start(self) -> list[StreamEvent]:
        """The first events of a response that exists before the engine has accepted it."""
        return list(self._writer.start())

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """Yields all events, or those after `start`. Closing the generator aborts the engine's request.

        If the engine refuses the request and `start` was not called, the error is raised before the first event. Any
        other error becomes the last event, and is stored in `error`.
        """
        writer = self._writer
        try:
            if self._prepare is not None:
                self.request = await self._prepare(self.request)
            writer.offer(self.request.toolbox, self.request.listed)
            loop = ToolLoop(self._served, self.request, writer)
            made = loop.warmup_events() if self.request.is_warmup else loop.events()
            async with aclosing(made) as events:
                async for event in events:
                    yield event
        except Exception as error:  # top of a response's task: the response must end
            if not writer.has_started:
                raise
            self.error = error
            for last in writer.fail(error, self.request.turn.options.request_id):
                yield last

    def log_error(self) -> None:
        """Logs an unexpected error that no client receives."""
        if self.error is not None and not isinstance(self.error, WeftError):
            log.error(
                "request %s failed", self.request.turn.options.request_id, exc_info=self.error
            )

    def cancelled(self) -> list[StreamEvent]:
        """The final events of a response that was ended early."""
        return [] if self.is_over else list(self._writer.cancel())

    def changes(self, store: ResponseStore) -> list[Change]:
        """Returns what has to be stored at the end."""
        changes: list[Change] = []
        if self.is_worth_storing:
            changes.append(store.ended(self.tenant, self.to_stored()))
        if self.response.status in ("completed", "incomplete"):
            changes += self._also(self)
        return changes

    def to_stored(self) -> StoredResponse:
        """Returns the response as a later one continues it."""
        request = self.request
        return to_stored(
            self.response,
            conversation=request.conversation,
            before=request.before,
            known_labels=request.known_labels,
            own_item_ids=request.own_item_ids,
            log=self.log,
        )

    def cut(self, reason: BaseException) -> None:
        """Ends a background response early, by its task."""
        del reason
        self.is_cut = True
        if self.task is not None:
            self.task.cancel()


class Runs:
    """All running responses of a server, and its stored ones.

    The server's state counts background runs as open work: a drain waits for these runs, and a stop ends them. A
    durable store keeps the requests of those that a stop ends, for the next process.
    """

    def __init__(self, state: ServerState, limits: ResponseLimits) -> None:
        self.limits = limits
        self.store = ResponseStore(state.store)
        self._state = state
        self._runs: dict[str, Run] = {}
        self._num_background = 0

    def get(self, tenant: str, response_id: str) -> Run | None:
        """The tenant's running response with this id; None if it is unknown or has ended."""
        run = self._runs.get(response_id)
        return run if run is not None and run.is_stored and run.tenant == tenant else None

    def open(self) -> tuple[Run, ...]:
        """Returns the running responses."""
        return tuple(self._runs.values())

    @property
    def num_free(self) -> int:
        """The number of background responses that may begin now."""
        return self.limits.max_background - self._num_background

    def check_room(self) -> None:
        """Raises `Overloaded` if the maximum number of background responses are running."""
        if self.num_free <= 0:
            raise Overloaded(
                f"{self._num_background} responses are being made in the background; wait for one"
            )

    async def in_foreground(self, run: Run) -> AsyncGenerator[StreamEvent, None]:
        """A run's events. Closing the generator, for example when the client disconnects, cancels the response."""
        self._runs[run.id] = run
        try:
            async with aclosing(run.events()) as events:
                async for event in events:
                    if run.is_over:
                        await self._save(run)
                    yield event
        finally:
            self._end(run)

    async def start_background(self, run: Run, request: AcceptedRequest | None) -> None:
        """Starts a run that continues without a listening client. Its request is stored first; None if it is already
        stored.
        """
        self.check_room()
        if request is not None:
            await self.store.accept(run.tenant, run.response, request)
        self._runs[run.id] = run
        self._num_background += 1
        # Appended before the task runs, since the task may be cancelled before.
        _append(run, run.start())
        held = ExitStack()
        held.enter_context(self._state.hold(run))
        held.enter_context(run.hold_model())
        run.task = asyncio.create_task(self._work(run))
        run.task.add_done_callback(lambda _: self._end_background(run, held))

    async def cancel(self, run: Run) -> None:
        """Cancels a background run, and waits for its end."""
        assert run.task is not None
        run.task.cancel()
        await asyncio.wait({run.task})

    async def _work(self, run: Run) -> None:
        is_shown = False
        async with aclosing(run.events()) as events:
            async for event in events:
                _append(run, [event])
                if not is_shown and run.response.status == "in_progress":
                    is_shown = True
                    self.store.show(run.tenant, run.response)
        run.log_error()
        await self._save_in_background(run)

    async def _save(self, run: Run) -> None:
        """Stores a response before its client learns that it is complete. The client gets its answer even if it cannot
        be stored, unless it belongs to a conversation, which would then lack a turn.
        """
        try:
            await self.store.run(run.changes(self.store))
        except (StoreFailed, StoreFull) as error:
            if run.response.conversation is not UNSET:
                raise
            log.error("response %s is not stored: %s", run.id, error)
        run.is_saved = True

    async def _save_in_background(self, run: Run) -> None:
        """Stores a response that clients fetch later; without its output, if there is no room for it."""
        changes = run.changes(self.store)
        try:
            await until_stored(lambda: self.store.run(changes))
        except StoreFull as error:
            log.error("response %s is not stored: %s", run.id, error)
            failure = ResponseFailure(code="server_error", message=str(error))
            stored = without_output(run.response, "failed", failure)
            await until_stored(lambda: self.store.run([self.store.ended(run.tenant, stored)]))
        run.is_saved = True

    def _end_background(self, run: Run, held: ExitStack) -> None:
        """Handles the end of the task, even if the task was cancelled before it ran."""
        self._num_background -= 1
        with held:
            if run.is_cut and self.store.is_durable and not run.is_saved:
                self._leave(run)
            else:
                self._end(run)

    def _leave(self, run: Run) -> None:
        """Leaves a background response to the process that takes over the store."""
        self._runs.pop(run.id)
        run.request.close()
        if run.log is not None:
            run.log.end(Unavailable("the server is shutting down; the response continues later"))

    def _end(self, run: Run) -> None:
        self._runs.pop(run.id)
        run.request.close()
        _append(run, run.cancelled())
        if run.log is not None:
            run.log.end()
        if not run.is_saved:
            self.store.post(run.changes(self.store))


def _append(run: Run, events: Iterable[StreamEvent]) -> None:
    """Buffers events, if followers are possible."""
    if run.log is not None:
        for event in events:
            run.log.append(encoded(event))


def encoded(event: StreamEvent) -> bytes:
    """An encoded event; its name is its type."""
    name = event.__struct_config__.tag
    assert isinstance(name, str)
    return named_event(name, event)
