"""Running responses: in the foreground, while the client waits, or in the background."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, aclosing

from weft.core.errors import Overloaded, WeftError
from weft.schema.response_events import StreamEvent
from weft.schema.response_object import ResponseObject
from weft.web.http.sse import named_event
from weft.web.http.state import ServerState
from weft.web.responses.event_log import EventLog
from weft.web.responses.store import ResponseLimits, ResponseStore, to_stored
from weft.web.responses.tool_loop import PreparedRequest, ToolLoop
from weft.web.responses.writer import ResponseWriter
from weft.web.served import Served

log = logging.getLogger("weft.web")

_TERMINAL = frozenset(("completed", "incomplete", "failed", "cancelled"))


class Run:
    """A response from its beginning to its end.

    `error` is the failure of a response that had begun. `prepare` does the rest of the work on the request, which may
    take long.
    """

    def __init__(
        self,
        served: Served,
        request: PreparedRequest,
        events: EventLog | None = None,
        prepare: Callable[[PreparedRequest], Awaitable[PreparedRequest]] | None = None,
    ) -> None:
        self.request = request
        self._prepare = prepare
        self.log = events
        self.error: Exception | None = None
        self.is_stored = request.response.store
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
            async with aclosing(ToolLoop(self._served, self.request, writer).events()) as events:
                async for event in events:
                    yield event
        except Exception as error:  # top of a response's task: the response must end
            if not writer.has_started:
                raise
            self.error = error
            for made in writer.fail(error, self.request.turn.options.request_id):
                yield made

    def log_error(self) -> None:
        """Logs an unexpected error that no client receives."""
        if self.error is not None and not isinstance(self.error, WeftError):
            log.error(
                "request %s failed", self.request.turn.options.request_id, exc_info=self.error
            )

    def cancelled(self) -> list[StreamEvent]:
        """The final events of a response that was ended early."""
        if self.response.status in _TERMINAL:
            return []
        return list(self._writer.cancel())

    def cut(self, reason: BaseException) -> None:
        """Ends a background response early, by its task."""
        del reason
        if self.task is not None:
            self.task.cancel()


class Runs:
    """All running responses of a server, and its stored ones.

    The server's state counts background runs as open work: a drain waits for these runs, and a stop ends them.
    """

    def __init__(self, state: ServerState, limits: ResponseLimits) -> None:
        self.limits = limits
        self.store = ResponseStore(limits)
        self._state = state
        self._runs: dict[str, Run] = {}
        self._num_background = 0

    def get(self, response_id: str) -> Run | None:
        """The running response with this id; None if it is unknown or has ended."""
        run = self._runs.get(response_id)
        return run if run is not None and run.is_stored else None

    def open(self) -> tuple[Run, ...]:
        """Returns the running responses."""
        return tuple(self._runs.values())

    def check_room(self) -> None:
        """Raises `Overloaded` if the maximum number of background responses are running."""
        if self._num_background >= self.limits.max_background:
            raise Overloaded(
                f"{self._num_background} responses are being made in the background; wait for one"
            )

    async def in_foreground(self, run: Run) -> AsyncGenerator[StreamEvent, None]:
        """A run's events. Closing the generator, for example when the client disconnects, cancels the response."""
        self._runs[run.id] = run
        try:
            async with aclosing(run.events()) as events:
                async for event in events:
                    yield event
        finally:
            self._end(run)

    def start_background(self, run: Run) -> None:
        """Starts a run that continues without a listening client."""
        self.check_room()
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
        async with aclosing(run.events()) as events:
            async for event in events:
                _append(run, [event])
        run.log_error()

    def _end_background(self, run: Run, held: ExitStack) -> None:
        """Handles the end of the task, even if the task was cancelled before it ran."""
        self._num_background -= 1
        with held:
            self._end(run)

    def _end(self, run: Run) -> None:
        self._runs.pop(run.id)
        run.request.close()
        _append(run, run.cancelled())
        if run.log is not None:
            run.log.end()
        if run.is_worth_storing:
            self.store.put(
                to_stored(
                    run.response,
                    conversation=run.request.conversation,
                    before=run.request.before,
                    known_labels=run.request.known_labels,
                    own_item_ids=run.request.own_item_ids,
                    log=run.log,
                )
            )


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
