"""`StepBudget`: how many rows of prompts a step has beside those of streams."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.core.config.defaults import DEFAULTS
from weft.core.config.engine import SchedulerConfig
from weft.engine.scheduling.sequence import Sequence

# Rows that prompts have in a step at least where streams run; and its seconds where none does.
_LEAST_BESIDE = 32
_ALONE_S = 1.0
# Steps with prompts, of which the next has none: it shows what streams take by themselves.
_MIXED_STEPS = 64
_LEAST_S = 1e-9  # of a row
_CONTEXT_SHIFT = 10  # contexts of less than 1,024 tokens cost a row about the same
_HEAVIEST_ROWS = 256  # of a step; more say no more of what a row takes
_SHARE = 0.8  # of what was measured before, after each step


class StepBudget:
    """How many rows of prompts a step has, by what those before it took; owned by the scheduler.

    While streams run a step is to take `target_itl_ms`, or three times what they take by themselves if that is more:
    each step costs something whatever is in it, and small ones add up. While none runs it is to take a second.
    Without a target rows alone count. Answers do not depend on it.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        # Rows of a stream in a step: its last token, and what came true of drafts.
        self._stream_rows = 1
        if config.speculation is not None and config.speculation.recomputes:
            self._stream_rows += config.speculation.num_speculative_tokens
        self._target_s = config.target_itl_ms / 1e3
        self._streams_s: dict[int, float] = {}  # of a step, by the bits of how many there are
        # Rows of prompts and what they took, the latest counting most, by the bits of their context.
        self._prompts: dict[int, tuple[float, float]] = {}
        self._num_mixed = 0
        self._steps: list[_Step] = []  # planned, and not learned from; the last is being planned
        self._ended_at = 0.0  # the last step that was
        self._num_left = 0
        self._num_reserved = 0  # rows, for streams that have not had theirs
        self._least = 0
        self._seconds = 0.0  # left for prompts

    def begin(self, running: Iterable[Sequence], now: float, *, is_ahead: bool = False) -> None:
        """A step is being planned; the one before is over, or, `is_ahead`, in flight."""
        self._num_left = self._config.max_num_batched_tokens
        if not self._target_s:
            return
        while self._steps and (ended_at := self._steps[0].ended_at) is not None:
            step = self._steps.pop(0)
            self._learn(step, ended_at - max(step.began_at, self._ended_at))
            self._ended_at = ended_at
        if not is_ahead:
            self._steps.clear()  # nobody was in it
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
            self._seconds = max(self._target_s - alone_s, 2 * alone_s)

    def end(self, now: float) -> None:
        """Something has come of the first step that had not ended, and perhaps more will."""
        if self._steps:
            open_steps = (step for step in self._steps if step.ended_at is None)
            next(open_steps, self._steps[-1]).ended_at = now

    def left_for(self, sequence: Sequence, start: int) -> int:
        """Rows that the sequence may have, from its token `start` on."""
        is_stream = self._target_s and sequence in self._steps[-1].streams
        return self._num_left if is_stream else self._left_at(start)

    @property
    def is_full(self) -> bool:
        """Whether no prompt may have a row."""
        return self._left_at(0) <= 0

    @property
    def left_for_drafts(self) -> int:
        """Rows that guesses may have."""
        is_mixed = self._target_s and self._steps[-1].streams and self._steps[-1].chunks
        return self._left_at(0) if is_mixed else self._num_left

    def take(self, sequence: Sequence, num_rows: int) -> None:
        """The sequence has so many more."""
        self._num_left -= num_rows
        if not self._target_s:
            return
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
        """Whether its next token is all that there is to compute, and not the first."""
        num_tokens = len(sequence.token_ids) + sequence.num_pending_tokens
        num_rows = num_tokens - sequence.num_planned_tokens
        return num_rows <= self._stream_rows and num_tokens > sequence.num_prompt_tokens

    def _left_at(self, start: int) -> int:
        """Rows of a prompt from there on."""
        if not self._target_s:
            return self._num_left
        row_s = self._row_s_at(start)
        num_rows = 0 if row_s is None else int(self._seconds / max(row_s, _LEAST_S))
        return max(0, min(self._num_left - self._num_reserved, max(num_rows, self._least)))

    def _row_s_at(self, start: int) -> float | None:
        """What a row takes there, or in the nearest context of which anything is known."""
        bits = _context_bits(start)
        nearest = min(self._prompts, key=lambda known: abs(known - bits), default=None)
        if nearest is None:
            return None
        rows, seconds = self._prompts[nearest]
        return seconds / rows

    def _learn(self, step: "_Step", seconds: float) -> None:
        """What a step has taken."""
        size = len(step.streams).bit_length()
        if step.chunks:
            # What one stream takes, a step without any takes too, beside its rows.
            beside_s = seconds - self._streams_s.get(size or 1, 0.0)
            least_s = step.expected_s / 2 or seconds / 4
            if step.streams:
                # Where prompts seem to take next to nothing, streams may take less by themselves than they did.
                is_doubtful = beside_s < least_s and self._num_mixed
                self._num_mixed += _MIXED_STEPS if is_doubtful else 1
            num_rows = sum(rows for _, rows in step.chunks)
            self._learn_rows(step.chunks, max(beside_s, least_s) / num_rows)
        elif step.streams:
            self._num_mixed = 0
            # What takes longer for once has mostly been held up.
            before_s = self._streams_s.get(size, seconds)
            self._streams_s[size] = min(seconds, (before_s + seconds) / 2)

    def _learn_rows(self, chunks: list[tuple[int, int]], row_s: float) -> None:
        for bits, num_rows in chunks:
            rows, seconds = self._prompts.get(bits, (0.0, 0.0))
            added = min(num_rows, _HEAVIEST_ROWS)
            self._prompts[bits] = _SHARE * rows + added, _SHARE * seconds + added * row_s


@dataclass(slots=True)
class _Step:
    """What one step holds, and when it was planned and ended."""

    began_at: float
    streams: set[Sequence]
    chunks: list[tuple[int, int]] = field(default_factory=list)  # bits of the context, and rows
    expected_s: float = 0.0  # of these
    ended_at: float | None = None


def _context_bits(num_tokens: int) -> int:
    return (num_tokens >> _CONTEXT_SHIFT).bit_length()
