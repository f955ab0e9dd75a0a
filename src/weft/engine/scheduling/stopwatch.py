"""`Stopwatch`: measures queue time, time to first token, inter-token latency and duration of sequences."""

from collections import deque
from collections.abc import Callable

from weft.core.observe.stats import SequenceTimes
from weft.core.values.engine_snapshots import MAX_FINISHED
from weft.engine.scheduling.sequence import Sequence


class Stopwatch:
    """Times of sequences; the scheduler owns it. `clock` is monotonic, in seconds; it is read once per `tick`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now = clock()
        self.num_prompt_tokens = 0  # prompt tokens of sequences that have their first token
        self.num_generated_tokens = 0
        self._intervals: dict[float, int] = {}
        self._ended: list[SequenceTimes] = []
        # The last finished sequences: number, end time, times.
        self.finished: deque[tuple[int, float, SequenceTimes]] = deque(maxlen=MAX_FINISHED)

    @property
    def has_samples(self) -> bool:
        """True if `take` would return anything."""
        return bool(self._intervals or self._ended)

    def now(self) -> float:
        """Returns the current time of the clock."""
        return self._clock()

    def tick(self) -> float:
        """Reads the clock. Events until the next `tick` get this time."""
        self._now = self._clock()
        return self._now

    def count_token(self, sequence: Sequence) -> None:
        """Counts a token of the sequence."""
        self.num_generated_tokens += 1
        if sequence.last_token_at is None:
            if not sequence.num_output_tokens:  # otherwise another engine sampled the first token
                self.num_prompt_tokens += sequence.num_prompt_tokens
            sequence.first_token_at = self._now
        else:
            # Sequences of the same steps have equal intervals: these are counted together.
            interval = self._now - sequence.last_token_at
            self._intervals[interval] = self._intervals.get(interval, 0) + 1
        sequence.last_token_at = self._now

    def finish_prompt(self, sequence: Sequence) -> None:
        """Records the end of the prefill of a pooling request, which samples no token."""
        self.num_prompt_tokens += sequence.num_prompt_tokens
        sequence.first_token_at = sequence.last_token_at = self._now

    def end(self, sequence: Sequence) -> None:
        """Records the end of the sequence, finished or aborted."""
        request = sequence.request
        times = SequenceTimes(
            queue_s=_between(sequence.queued_at, sequence.scheduled_at),
            prefill_s=_between(sequence.scheduled_at, sequence.first_token_at),
            decode_s=_between(sequence.first_token_at, sequence.last_token_at),
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached_tokens=min(sequence.num_cached_tokens or 0, sequence.num_prompt_tokens),
            num_output_tokens=sequence.num_output_tokens - sequence.num_given_tokens,
            engine_id=None if request.trace_headers is None else request.engine_id,
            index=sequence.index,
        )
        self._ended.append(times)
        self.finished.append((sequence.number, self._now, times))

    def take(self) -> tuple[list[tuple[float, int]], list[SequenceTimes]]:
        """Returns inter-token intervals with their counts, and the times of finished sequences, since the last call."""
        intervals, self._intervals = self._intervals, {}
        ended, self._ended = self._ended, []
        return list(intervals.items()), ended


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
