"""Applies an endpoint's stream of cache events to the index, and handles gaps, restarts and unreadable messages."""

from collections.abc import Iterable
from enum import Enum

from weft.core.aio.turns import Turns
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint
from weft.epp.prefix.events import MAX_BATCH_BYTES, Cleared, Event, Malformed, decode_batch
from weft.epp.prefix.precise import PreciseIndex


class Step(Enum):
    """Relation of a message to the message before it."""

    NEXT = "next"
    REPEATED = "repeated"
    GAP = "gap"
    RESTARTED = "restarted"


class EventFeed:
    """Applies the event batches of an endpoint in order. If batches are lost, all blocks of the endpoint are dropped: a
    missing block costs a cache miss, but a wrong block misleads every later decision.
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
        self.last: int | None = None  # last sequence number
        self._is_after_replay = False
        self._is_closed = False

    def close(self) -> None:
        """Stops the application of events: the endpoint has left, and another endpoint may reuse its slot."""
        self._is_closed = True

    def name_model(self, model: str) -> None:
        """Stores the name of the engine's model; "" means unknown."""
        if model and model != self._model:
            self._model = model
            self._index.base_models[self._endpoint] = model

    def step(self, sequence: int) -> Step:
        """Returns the relation of a message with this sequence number to the messages applied so far."""
        if self.last is None or sequence == self.last + 1:
            return Step.NEXT
        if sequence > self.last:
            return Step.GAP
        # After a replay, live messages may repeat what the replay had; without a replay, a repeated number means that
        # the engine has restarted.
        return Step.REPEATED if self._is_after_replay else Step.RESTARTED

    async def apply_payload(self, sequence: int, payload: bytes) -> None:
        """Applies a batch in msgpack. An invalid batch is counted and dropped."""
        events, turns = [], Turns()
        try:
            for event in decode_batch(payload, self._engine):
                events.append(event)
                await turns.yield_if_due()
        except Malformed:
            self.note("malformed")
            events = []
        if len(payload) > MAX_BATCH_BYTES:  # the batch may contain removals of blocks
            await clear_in_turns(self._index, self._endpoint)
        await self.apply(sequence, events)

    async def apply(self, sequence: int, events: Iterable[Event]) -> None:
        """Applies the next batch; other tasks get turns meanwhile."""
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
        """Records the end of a replay: a live message that the replay contained is a duplicate."""
        self._is_after_replay = True

    async def clear(self, outcome: str) -> None:
        """Drops all blocks of the endpoint, and waits for a new start of the stream."""
        await clear_in_turns(self._index, self._endpoint)
        self.last = None
        self._is_after_replay = False
        self.note(outcome)

    def note(self, outcome: str, amount: int = 1) -> None:
        """Adds to the number of events with this outcome."""
        self._events.labels(outcome).inc(amount)


async def clear_in_turns(index: PreciseIndex, endpoint: Endpoint) -> None:
    """Drops all blocks of an endpoint, perhaps a million, and lets other tasks run in between."""
    turns = Turns()
    while index.clear_some(endpoint):
        await turns.yield_if_due()
