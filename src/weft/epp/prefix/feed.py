"""One endpoint's stream of events into the index: order, gaps, restarts, and what cannot be read."""

from collections.abc import Sequence
from enum import Enum

from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint
from weft.epp.prefix.events import Event, Malformed, decode_batch
from weft.epp.prefix.precise import PreciseIndex


class Step(Enum):
    """How a message stands to the one before it."""

    NEXT = "next"
    REPEATED = "repeated"
    GAP = "gap"
    RESTARTED = "restarted"


class EventFeed:
    """Applies batches in order. Whenever batches are missing for good, the endpoint is cleared:
    holding too little costs a cache miss, holding what is gone misleads every decision after it.
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

    def name_model(self, model: str) -> None:
        """Take over what the engine calls its model; "" says nothing."""
        if model and model != self._model:
            self._model = model
            self._index.base_models[self._endpoint] = model

    def step(self, sequence: int) -> Step:
        """How a message with this number stands to what was applied."""
        if self.last is None or sequence == self.last + 1:
            return Step.NEXT
        if sequence > self.last:
            return Step.GAP
        # Live messages that a replay already brought come once more; without one it is a new engine.
        return Step.REPEATED if self._is_after_replay else Step.RESTARTED

    def apply_payload(self, sequence: int, payload: bytes) -> None:
        """Apply a msgpack batch; one that cannot be read is counted and dropped."""
        try:
            events = decode_batch(payload, self._engine)
        except Malformed:
            self.note("malformed")
            events = []
        self.apply(sequence, events)

    def apply(self, sequence: int, events: Sequence[Event]) -> None:
        """Apply the next batch."""
        for event in events:
            self._index.apply(self._endpoint, event, model=self._model)
        self.last = sequence
        self._is_after_replay = False
        self.note("applied", len(events))

    def replayed(self) -> None:
        """A replay has ended: live messages up to here are known already."""
        self._is_after_replay = True

    def clear(self, outcome: str) -> None:
        """Forget what the endpoint holds and begin anew."""
        self._index.clear(self._endpoint)
        self.last = None
        self._is_after_replay = False
        self.note(outcome)

    def note(self, outcome: str, amount: int = 1) -> None:
        """Count what became of events."""
        self._events.labels(outcome).inc(amount)
