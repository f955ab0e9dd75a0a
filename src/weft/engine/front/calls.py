"""`EngineCalls`: commands that need a reply from the engine, and the check that the engine still answers."""

import asyncio
import itertools
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Concatenate, ParamSpec

from weft.core.errors import EngineDead, FailedPrecondition, Unavailable
from weft.core.values.controls import STALL_S, STUCK_S
from weft.core.values.engine_snapshots import RequestStates
from weft.engine.ipc.messages import (
    Call,
    Command,
    FinishWeightUpdate,
    ListRequests,
    Ping,
    Reply,
    UpdateWeights,
    Wake,
)

P = ParamSpec("P")

_STATES_TIMEOUT_S = 0.5
_STATES_PERIOD_S = (
    0.25  # minimum time between two `ListRequests` commands, whatever the number of callers
)
_IDLE_S = 1.0  # a health check sends a ping after this time without an event


class EngineCalls:
    """Calls to one engine. One event loop owns the object. The owner keeps `last_event_at`, on the monotonic clock,
    up to date. `check_alive` raises if the engine accepts no calls. `post` sends a command that needs no reply.
    `fail` sets `is_dead`.
    """

    def __init__(
        self,
        post: Callable[[Command], None],
        rank: int = 0,
        check_alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.last_event_at = time.monotonic()
        self.post = post
        self.check_alive = check_alive
        self.is_dead = False
        self._ids = itertools.count()
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._ping: asyncio.Future[Reply] | None = None
        self._pinged_at = -math.inf
        self._loads: set[int] = set()
        self._states = RequestStates(data_parallel_rank=rank)
        self._listed_at = -math.inf
        self._listing: asyncio.Future[Reply] | None = None

    async def call(
        self, make: Callable[Concatenate[int, P], Call], *fields: P.args, **named: P.kwargs
    ) -> Reply:
        """Sends a command and returns its reply. Raises `FailedPrecondition` if the engine refuses."""
        self.check_alive()
        reply = await self.send(make, *fields, **named)
        if reply.refusal is not None:
            raise FailedPrecondition(reply.refusal)
        return reply

    def send(
        self, make: Callable[Concatenate[int, P], Call], *fields: P.args, **named: P.kwargs
    ) -> asyncio.Future[Reply]:
        """Sends the command `make(next id, *fields)`. Returns a future of the engine's reply."""
        command = make(next(self._ids), *fields, **named)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending[command.call_id] = future
        if isinstance(command, Wake | UpdateWeights | FinishWeightUpdate):
            self._loads.add(command.call_id)
        self.post(command)
        return future

    def ping(self) -> asyncio.Future[Reply]:
        """Returns the ping that is in flight, or sends one. An engine in a long step must not find many pings in
        its mailbox.
        """
        if self._ping is None or self._ping.done():
            self._pinged_at = time.monotonic()
            self._ping = self.send(Ping)
        return self._ping

    async def request_states(self) -> RequestStates:
        """Returns the states of the engine's requests. Returns the last known states if the engine is in a long step,
        or if a list is less than `_STATES_PERIOD_S` old.
        """
        now = time.monotonic()
        if self._listing is None or self._listing.done():
            if now - self._listed_at < _STATES_PERIOD_S:
                return self._states
            self._listed_at = now
            self._listing = self.send(ListRequests)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STATES_TIMEOUT_S):
                await asyncio.shield(self._listing)
        return self._states

    def check_answering(self) -> None:
        """Raises `Unavailable` if the engine has not answered a ping for `STALL_S`. Sends a ping if the engine has sent
        no event for `_IDLE_S`.

        An engine that loads weights, as when it wakes up, has no time limit.
        """
        if self._loads:
            return
        now = time.monotonic()
        is_unanswered = self._pinged_at >= self.last_event_at
        if is_unanswered and now - self._pinged_at > STALL_S:
            raise Unavailable(f"the engine has not answered for {now - self._pinged_at:.0f} s")
        if now - self.last_event_at > _IDLE_S:
            self.ping()

    async def stuck(self) -> None:
        """Returns when the engine has not answered a ping for `STUCK_S`. An engine that loads weights has no time
        limit.
        """
        while True:
            ping = self.ping()
            await asyncio.wait((ping,), timeout=STUCK_S)
            # To read events that arrived while this process was suspended.
            await asyncio.sleep(STALL_S)
            if not ping.done() and not self._loads:
                return

    def resolve(self, reply: Reply) -> None:
        """Hands a reply to its caller, unless the caller has given up."""
        self._loads.discard(reply.call_id)
        if reply.states is not None:  # the reply may come after its caller's timeout
            self._states = reply.states
        future = self._pending.pop(reply.call_id, None)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail(self, message: str) -> None:
        """Marks the engine as dead: every caller that waits for a reply gets an exception of its own."""
        self.is_dead = True
        for future in self._pending.values():
            if not future.done():
                future.set_exception(EngineDead(message))
                future.exception()  # perhaps no caller waits for a ping: avoids a warning about an unread exception
        self._pending.clear()
