"""`Queues`: the unfinished sequences by what they do, each list in the order in which they are served."""

from bisect import insort
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from operator import attrgetter

from weft.engine.scheduling.sequence import Sequence, SequenceStatus

_by_order = attrgetter("order")


class Admission(Enum):
    """Who may be scheduled."""

    OPEN = "open"  # everyone
    STARTED = "started"  # only sequences that have run before
    CLOSED = "closed"  # nobody


class Queues:
    """Owned by the scheduler, which changes a sequence's status here and nowhere else."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []  # sorted by order
        self.running: list[Sequence] = []  # sorted by order
        # Not to be scheduled before their grammar, or what the second tier has of them, is there.
        self.held_back: list[Sequence] = []
        self.by_engine_id: dict[str, list[Sequence]] = {}  # all of them

    @property
    def num_waiting(self) -> int:
        """Sequences that are not running."""
        return len(self.waiting) + len(self.held_back)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens that waiting sequences have still to compute, cached ones included."""
        return sum(s.num_tokens for group in (self.waiting, self.held_back) for s in group)

    @property
    def has_started(self) -> bool:
        """Whether a sequence that has run before is unfinished."""
        return bool(self.running) or any(s.has_started for s in (*self.waiting, *self.held_back))

    def in_order(self) -> Iterator[Sequence]:
        """Those that run, then those that wait; each in the order in which they are served."""
        return chain(self.running, sorted(self.held_back, key=_by_order), self.waiting)

    def admissible(self, admission: Admission) -> Iterator[Sequence]:
        """Those that wait and may be scheduled."""
        if admission is Admission.OPEN:
            return iter(self.waiting)
        return (sequence for sequence in self.waiting if sequence.has_started)

    def fetching(self) -> Iterator[Sequence]:
        """Those of which blocks come from the second tier."""
        return (s for s in self.held_back if s.status is SequenceStatus.FETCHING)

    def add(self, sequences: list[Sequence], *, is_compiling: bool) -> None:
        """Those of one request have come; their grammar is still to be built, or they can run."""
        self.by_engine_id[sequences[0].request.engine_id] = sequences
        for sequence in sequences:
            if is_compiling:
                self._hold_back(sequence, SequenceStatus.COMPILING)
            else:
                self._wait(sequence)

    def run(self, sequence: Sequence) -> None:
        """It waits no longer."""
        self.waiting.remove(sequence)
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=_by_order)

    def fetch(self, sequence: Sequence) -> None:
        """It waits for blocks."""
        self.waiting.remove(sequence)
        self._hold_back(sequence, SequenceStatus.FETCHING)

    def take_back(self, sequence: Sequence) -> None:
        """What was held back takes its place again."""
        self.held_back.remove(sequence)
        self._wait(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """It runs no longer, and waits in its place."""
        self.running.remove(sequence)
        self._wait(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """It has ended; whether its request has with it."""
        self._list_of(sequence).remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        siblings = self.by_engine_id[sequence.request.engine_id]
        siblings.remove(sequence)
        if not siblings:
            del self.by_engine_id[sequence.request.engine_id]
        return not siblings

    def check(self) -> None:
        """Assert what must always hold. Dear; for tests."""
        assert self.waiting == sorted(self.waiting, key=_by_order)
        assert self.running == sorted(self.running, key=_by_order)
        compiling = (s for s in self.held_back if s.status is SequenceStatus.COMPILING)
        assert all(not s.block_ids for s in (*self.waiting, *compiling))

    def _wait(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.WAITING
        insort(self.waiting, sequence, key=_by_order)

    def _hold_back(self, sequence: Sequence, status: SequenceStatus) -> None:
        sequence.status = status
        self.held_back.append(sequence)

    def _list_of(self, sequence: Sequence) -> list[Sequence]:
        match sequence.status:
            case SequenceStatus.RUNNING:
                return self.running
            case SequenceStatus.COMPILING | SequenceStatus.FETCHING:
                return self.held_back
            case _:
                return self.waiting
