"""`EngineCalls`: commands that the engine answers, and whether it still answers."""

import asyncio
import itertools
import math
import time
from collections.abc import Callable
from contextlib import suppress

from weft.core.controls import STALL_S, STUCK_S
from weft.core.errors import EngineDead, Unavailable
from weft.core.request_states import RequestStates
from weft.engine.messages import (
    Call,
    Command,
    FinishWeightUpdate,
    ListRequests,
    Ping,
    Reply,
    UpdateWeights,
    Wake,
)

_STATES_TIMEOUT_S = 0.5
_STATES_PERIOD_S = 0.25  # however many look, so often it is made at most
_IDLE_S = 1.0  # after so long without an event a check of health sends a ping


class EngineCalls:
    """One event loop owns it. Its owner keeps `last_event_at`, on the monotonic clock, up to date."""

    def __init__(self, send: Callable[[Command], None], rank: int = 0) -> None:
        self.last_event_at = time.monotonic()
        self._send = send
        self._ids = itertools.count()
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._ping: asyncio.Future[Reply] | None = None
        self._pinged_at = -math.inf
        self._loads: set[int] = set()
        self._states = RequestStates(data_parallel_rank=rank)
        self._listed_at = -math.inf
        self._listing: asyncio.Future[Reply] | None = None

    def next_id(self) -> int:
        """The id of a call that is about to be sent."""
        return next(self._ids)

    def send(self, command: Call) -> asyncio.Future[Reply]:
        """Send a command; the future has its reply."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending[command.call_id] = future
        if isinstance(command, Wake | UpdateWeights | FinishWeightUpdate):
            self._loads.add(command.call_id)
        self._send(command)
        return future

    def ping(self) -> asyncio.Future[Reply]:
        """The one ping that is under way: an engine in a long step must not find a pile of them."""
        if self._ping is None or self._ping.done():
            self._pinged_at = time.monotonic()
            self._ping = self.send(Ping(self.next_id()))
        return self._ping

    async def request_states(self) -> RequestStates:
        """What the engine holds; one in a long step, or that was just asked, as it last said."""
        now = time.monotonic()
        if self._listing is None or self._listing.done():
            if now - self._listed_at < _STATES_PERIOD_S:
                return self._states
            self._listed_at = now
            self._listing = self.send(ListRequests(self.next_id()))
        with suppress(TimeoutError):
            async with asyncio.timeout(_STATES_TIMEOUT_S):
                await asyncio.shield(self._listing)
        return self._states

    def check_answering(self) -> None:
        """Raise `Unavailable` if nothing came since a ping long ago; ping if nothing came of late.

        An engine that loads weights, as when it wakes, takes as long as it takes.
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
        """Return when the engine has not answered a ping for `STUCK_S`; one that loads weights takes its time."""
        while True:
            ping = self.ping()
            await asyncio.wait((ping,), timeout=STUCK_S)
            await asyncio.sleep(
                STALL_S
            )  # in which what came while this process stood still is read
            if not ping.done() and not self._loads:
                return

    def resolve(self, reply: Reply) -> None:
        """Hand a reply to its caller, unless that has given up."""
        self._loads.discard(reply.call_id)
        if reply.states is not None:  # later than anybody waited for it, perhaps
            self._states = reply.states
        future = self._pending.pop(reply.call_id, None)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail(self, message: str) -> None:
        """The engine is dead: whoever waits for a reply gets an error of its own."""
        for future in self._pending.values():
            if not future.done():
                future.set_exception(EngineDead(message))
                future.exception()  # a ping's answer may have nobody waiting for it
        self._pending.clear()
