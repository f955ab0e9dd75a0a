"""`StepBudget`: the number of rows in a step, and `TimedStepBudget`: that of prompt rows beside decoding sequences
(streams).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.core.config.defaults import DEFAULTS
from weft.core.config.engine import SchedulerConfig
from weft.engine.scheduling.sequence import Sequence

# Minimum number of prompt rows in a step with streams; target seconds of a step without streams.
_LEAST_BESIDE = 16
_ALONE_S = 1.0
# Prompts have at least `_LEAST_SHARE` of the time of the streams alone, so that steps are near the target if the
# streams need up to `_NEAR` of it. If they need more, the target cannot be held, and small steps would only waste
# time: the share grows up to `_MOST_SHARE`, which prompts have if the streams need `_FAR` of the target.
_LEAST_SHARE, _NEAR = 0.5, 0.8
_MOST_SHARE, _FAR = 2.0, 1.6
# After this number of steps with prompts, one step without prompts measures the time of the streams alone.
_MIXED_STEPS = 64
_LEAST_S = 1e-9  # per row
_CONTEXT_SHIFT = 10  # a row costs about the same at all contexts below 1,024 tokens
_HEAVIEST_ROWS = (
    256  # maximum number of rows by which a step is weighted in the average time of a row
)
_SHARE = 0.8  # weight of earlier measurements, after each step


class StepBudget:
    """Limits the number of rows of a step. The scheduler owns the object. Answers do not depend on the budget."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._max_rows = config.max_num_batched_tokens
        self._num_left = 0

    def begin(self, running: Iterable[Sequence], now: float, *, is_ahead: bool = False) -> None:
        """Begins planning a step. The previous step is over or, with `is_ahead`, in flight."""
        self._num_left = self._max_rows

    def end(self, now: float) -> None:
        """Records the end time of the first unfinished step, whose results are committed. Further parts of that step
        may follow.
        """

    def left_for(self, sequence: Sequence, start: int) -> int:
        """Returns the maximum number of rows of the sequence in this step, from its token `start` on."""
        return self._num_left

    @property
    def is_full(self) -> bool:
        """True if the step has no room for prompt rows."""
        return self._num_left <= 0

    @property
    def left_for_drafts(self) -> int:
        """Number of rows that drafts may have."""
        return self._num_left

    def take(self, sequence: Sequence, num_rows: int) -> None:
        """Subtracts the sequence's `num_rows` rows from the budget."""
        self._num_left -= num_rows


class TimedStepBudget(StepBudget):
    """Also sets the number of prompt rows of a step, from the times of earlier steps.

    With streams, a step should take `target_itl_ms`, or 1.5 to 3 times the time of the streams alone if this is
    longer, because each step has a fixed cost. Without streams, a step should take one second.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        # Rows of a stream in a step: its last token, and accepted drafts that are computed again.
        self._stream_rows = 1
        if config.speculation is not None and config.speculation.recomputes:
            self._stream_rows += config.speculation.num_speculative_tokens
        self._target_s = config.target_itl_ms / 1e3
        # Seconds of a step without prompts, by the bit length of the number of streams.
        self._streams_s: dict[int, float] = {}
        # Weighted sums of prompt rows and of their seconds, by `_context_bits`; recent steps have the largest weight.
        self._prompts: dict[int, tuple[float, float]] = {}
        self._num_mixed = 0
        self._steps: list[
            _Step
        ] = []  # planned steps without a measured time; the last one is being planned
        self._ended_at = 0.0  # end of the last measured step
        self._num_reserved = 0  # rows reserved for streams that are not in the plan yet
        self._least = 0
        self._seconds = 0.0  # seconds left for prompts

    def begin(self, running: Iterable[Sequence], now: float, *, is_ahead: bool = False) -> None:
        super().begin(running, now, is_ahead=is_ahead)
        while self._steps and (ended_at := self._steps[0].ended_at) is not None:
            step = self._steps.pop(0)
            self._learn(step, ended_at - max(step.began_at, self._ended_at))
            self._ended_at = ended_at
        if not is_ahead:
            self._steps.clear()  # the last planned step was empty
        streams = {sequence for sequence in running if self._is_stream(sequence)}
        self._steps.append(_Step(now, streams))
        self._num_reserved = len(streams) * self._stream_rows
        alone_s = self._streams_s.get(len(streams).bit_length())
        if not streams:
            self._least, self._seconds = DEFAULTS["max_num_batched_tokens"], _ALONE_S
        elif alone_s is None or self._num_mixed >= _MIXED_STEPS:
            self._least, self._seconds = 0, 0.0
        else:
            self._least = _LEAST_BESIDE
            self._seconds = max(self._target_s - alone_s, self._share(alone_s) * alone_s)

    def end(self, now: float) -> None:
        if self._steps:
            open_steps = (step for step in self._steps if step.ended_at is None)
            next(open_steps, self._steps[-1]).ended_at = now

    def left_for(self, sequence: Sequence, start: int) -> int:
        return self._num_left if sequence in self._steps[-1].streams else self._left_at(start)

    @property
    def is_full(self) -> bool:
        return self._left_at(0) <= 0

    @property
    def left_for_drafts(self) -> int:
        is_mixed = self._steps[-1].streams and self._steps[-1].chunks
        return self._left_at(0) if is_mixed else self._num_left

    def take(self, sequence: Sequence, num_rows: int) -> None:
        super().take(sequence, num_rows)
        step = self._steps[-1]
        if sequence in step.streams:
            self._num_reserved -= self._stream_rows
            return
        start = sequence.num_planned_tokens
        expected_s = num_rows * (self._row_s_at(start) or 0.0)
        self._seconds -= expected_s
        step.expected_s += expected_s
        self._least -= num_rows
        step.chunks.append((_context_bits(start + num_rows // 2), num_rows))

    def _is_stream(self, sequence: Sequence) -> bool:
        """True if the sequence is decoding: its prompt is computed, and one token and its drafts are left to
        compute.
        """
        num_tokens = len(sequence.token_ids) + sequence.num_pending_tokens
        num_rows = num_tokens - sequence.num_planned_tokens
        return num_rows <= self._stream_rows and num_tokens > sequence.num_prompt_tokens

    def _share(self, alone_s: float) -> float:
        """Returns the least time of prompts, as a share of the time of the streams alone."""
        beyond = (alone_s / self._target_s - _NEAR) / (_FAR - _NEAR)
        return _LEAST_SHARE + min(max(beyond, 0.0), 1.0) * (_MOST_SHARE - _LEAST_SHARE)

    def _left_at(self, start: int) -> int:
        """Returns the maximum number of rows of a prompt in this step, from token `start` on."""
        row_s = self._row_s_at(start)
        num_rows = 0 if row_s is None else int(self._seconds / max(row_s, _LEAST_S))
        return max(0, min(self._num_left - self._num_reserved, max(num_rows, self._least)))

    def _row_s_at(self, start: int) -> float | None:
        """Returns the measured seconds per prompt row at this context length, or at the nearest measured context
        length.
        """
        bits = _context_bits(start)
        nearest = min(self._prompts, key=lambda known: abs(known - bits), default=None)
        if nearest is None:
            return None
        rows, seconds = self._prompts[nearest]
        return seconds / rows

    def _learn(self, step: "_Step", seconds: float) -> None:
        """Updates the estimates from the measured seconds of a step."""
        size = len(step.streams).bit_length()
        if step.chunks:
            # A step without streams has about the fixed cost of a step with one stream.
            beside_s = seconds - self._streams_s.get(size or 1, 0.0)
            least_s = step.expected_s / 2 or seconds / 4
            if step.streams:
                # If prompts seem to cost almost nothing, the time of the streams alone may be outdated.
                is_doubtful = beside_s < least_s and self._num_mixed
                self._num_mixed += _MIXED_STEPS if is_doubtful else 1
            num_rows = sum(rows for _, rows in step.chunks)
            self._learn_rows(step.chunks, max(beside_s, least_s) / num_rows)
        elif step.streams:
            self._num_mixed = 0
            # A single longer time is mostly a delay outside the engine.
            before_s = self._streams_s.get(size, seconds)
            self._streams_s[size] = min(seconds, (before_s + seconds) / 2)

    def _learn_rows(self, chunks: list[tuple[int, int]], row_s: float) -> None:
        for bits, num_rows in chunks:
            rows, seconds = self._prompts.get(bits, (0.0, 0.0))
            added = min(num_rows, _HEAVIEST_ROWS)
            self._prompts[bits] = _SHARE * rows + added, _SHARE * seconds + added * row_s


@dataclass(slots=True)
class _Step:
    """The contents of a step, and the times when it was planned and ended."""

    began_at: float
    streams: set[Sequence]
    # Pairs of `_context_bits` and number of rows.
    chunks: list[tuple[int, int]] = field(default_factory=list)
    expected_s: float = 0.0  # expected seconds of `chunks`
    ended_at: float | None = None


def _context_bits(num_tokens: int) -> int:
    return (num_tokens >> _CONTEXT_SHIFT).bit_length()
