"""Applies an endpoint's event stream to the index: order, gaps, restarts, and unreadable messages."""

from collections.abc import Iterable
from enum import Enum

from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.turns import Turns
from weft.epp.prefix.events import MAX_BATCH_BYTES, Cleared, Event, Malformed, decode_batch
from weft.epp.prefix.precise import PreciseIndex


class Step(Enum):
    """Relation of a message to the one before it."""

    NEXT = "next"
    REPEATED = "repeated"
    GAP = "gap"
    RESTARTED = "restarted"


class EventFeed:
    """Applies batches in order. Whenever batches are missing for good, the endpoint is cleared:
    holding too little costs a cache miss, holding what was dropped misleads every decision after it.
    """

    def __init__(
        self,
        index: PreciseIndex,
        endpoint: Endpoint,
        metrics: PickerMetrics,
        engine: str = "vllm",
    ) -> None:
        self._index = index
        self._endpoint = endpoint
        self._events = metrics.kv_events
        self._engine = engine
        self._model = ""
        self.last: int | None = None  # sequence number
        self._is_after_replay = False
        self._is_closed = False

    def close(self) -> None:
        """Apply nothing more: the endpoint has left, and its place may be another's."""
        self._is_closed = True

    def name_model(self, model: str) -> None:
        """Take over what the engine calls its model; "" says nothing."""
        if model and model != self._model:
            self._model = model
            self._index.base_models[self._endpoint] = model

    def step(self, sequence: int) -> Step:
        """Returns the relation of a message with this number to the messages already applied."""
        if self.last is None or sequence == self.last + 1:
            return Step.NEXT
        if sequence > self.last:
            return Step.GAP
        # Live messages that a replay already brought come once more; without one it is a new engine.
        return Step.REPEATED if self._is_after_replay else Step.RESTARTED

    async def apply_payload(self, sequence: int, payload: bytes) -> None:
        """Apply a msgpack batch; one that cannot be read is counted and dropped."""
        events, turns = [], Turns()
        try:
            for event in decode_batch(payload, self._engine):
                events.append(event)
                await turns.yield_if_due()
        except Malformed:
            self.note("malformed")
            events = []
        if len(payload) > MAX_BATCH_BYTES:  # blocks that were dropped may be in it
            await clear_in_turns(self._index, self._endpoint)
        await self.apply(sequence, events)

    async def apply(self, sequence: int, events: Iterable[Event]) -> None:
        """Apply the next batch; others have a turn between."""
        turns, num_events = Turns(), 0
        for event in events:
            if self._is_closed:
                return
            num_events += 1
            if isinstance(event, Cleared):
                await clear_in_turns(self._index, self._endpoint)
            else:
                self._index.apply(self._endpoint, event, model=self._model)
            await turns.yield_if_due()
        self.last = sequence
        self._is_after_replay = False
        self.note("applied", num_events)

    def replayed(self) -> None:
        """A replay has ended: live messages up to here are known already."""
        self._is_after_replay = True

    async def clear(self, outcome: str) -> None:
        """Forget what the endpoint holds and begin anew."""
        await clear_in_turns(self._index, self._endpoint)
        self.last = None
        self._is_after_replay = False
        self.note(outcome)

    def note(self, outcome: str, amount: int = 1) -> None:
        """Count what became of events."""
        self._events.labels(outcome).inc(amount)


async def clear_in_turns(index: PreciseIndex, endpoint: Endpoint) -> None:
    """Forget what an endpoint holds; that may be a million blocks."""
    turns = Turns()
    while index.clear_some(endpoint):
        await turns.yield_if_due()
