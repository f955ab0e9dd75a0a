"""`Queues`: the unfinished sequences by state; each list is in scheduling order."""

from bisect import insort
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from operator import attrgetter

from weft.engine.scheduling.sequence import Sequence, SequenceStatus

_by_order = attrgetter("order")


class Admission(Enum):
    """Which sequences may be scheduled."""

    OPEN = "open"  # all
    STARTED = "started"  # only sequences that have run before
    CLOSED = "closed"  # none


class Queues:
    """Queues of a scheduler, which owns them; a sequence's status changes only here."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []  # sorted by order
        self.running: list[Sequence] = []  # sorted by order
        # These sequences wait until their grammar is built, or their blocks are fetched.
        self.held_back: list[Sequence] = []
        self.by_engine_id: dict[str, list[Sequence]] = {}  # all sequences

    @property
    def num_waiting(self) -> int:
        """Number of sequences that are not running."""
        return len(self.waiting) + len(self.held_back)

    @property
    def num_waiting_tokens(self) -> int:
        """Number of tokens that waiting sequences must compute; tokens in the prefix cache are counted too."""
        return sum(s.num_tokens for group in (self.waiting, self.held_back) for s in group)

    @property
    def has_started(self) -> bool:
        """True if a sequence that has run before is unfinished."""
        return bool(self.running) or any(s.has_started for s in (*self.waiting, *self.held_back))

    def in_order(self) -> Iterator[Sequence]:
        """Yields running sequences, then all others; each group in scheduling order."""
        return chain(self.running, sorted(self.held_back, key=_by_order), self.waiting)

    def admissible(self, admission: Admission) -> Iterator[Sequence]:
        """Yields the waiting sequences that may be scheduled."""
        if admission is Admission.OPEN:
            return iter(self.waiting)
        return (sequence for sequence in self.waiting if sequence.has_started)

    def fetching(self) -> Iterator[Sequence]:
        """Yields the sequences whose blocks are being fetched."""
        return (s for s in self.held_back if s.status is SequenceStatus.FETCHING)

    def add(self, sequences: list[Sequence], *, is_compiling: bool) -> None:
        """Adds the sequences of a new request: they wait for their grammar if `is_compiling`, else they can run."""
        self.by_engine_id[sequences[0].request.engine_id] = sequences
        for sequence in sequences:
            if is_compiling:
                self._hold_back(sequence, SequenceStatus.COMPILING)
            else:
                self._wait(sequence)

    def run(self, sequence: Sequence) -> None:
        """Moves a sequence from the waiting to the running queue."""
        self.waiting.remove(sequence)
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=_by_order)

    def fetch(self, sequence: Sequence) -> None:
        """Moves a waiting sequence to the queue of held-back sequences, with status `FETCHING`."""
        self.waiting.remove(sequence)
        self._hold_back(sequence, SequenceStatus.FETCHING)

    def take_back(self, sequence: Sequence) -> None:
        """Moves a held-back sequence to its place in the waiting queue."""
        self.held_back.remove(sequence)
        self._wait(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Moves a running sequence to its place in the waiting queue."""
        self.running.remove(sequence)
        self._wait(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """Removes a finished sequence; True if its whole request is finished."""
        self._list_of(sequence).remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        siblings = self.by_engine_id[sequence.request.engine_id]
        siblings.remove(sequence)
        if not siblings:
            del self.by_engine_id[sequence.request.engine_id]
        return not siblings

    def check(self) -> None:
        """Asserts the invariants. Expensive; for tests."""
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
