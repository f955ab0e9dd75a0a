"""`DraftPayoff`: decides whether drafts are faster, by the measured throughput of steps with and without them.

The cost of draft rows grows with the number of sequences in a step, and the acceptance rate depends on the text. Both
are measured: for each batch size, steps with and without drafts are tried, the faster kind continues, and the slower
kind is tried again from time to time. The decision changes no answer.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger("weft.engine")

# A trial has `TRIAL_STEPS` steps; `HOME_STEPS` steps of the faster kind run before the next trial of the slower kind.
# So drafts that halve the speed cost 9 / 521 of the throughput.
TRIAL_STEPS = 9
HOME_STEPS = 512
# Weights of earlier measurements: after each step, and at the beginning of a later trial.
_SHARE = 0.98
_SHARE_AT_TRIAL = 0.1


@dataclass(slots=True)
class _Yield:
    """Tokens and seconds of one kind of step; recent steps have the largest weight."""

    num_tokens: float = 0.0
    seconds: float = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        self.fade(_SHARE)
        self.num_tokens += num_tokens
        self.seconds += seconds

    def fade(self, share: float) -> None:
        self.num_tokens *= share
        self.seconds *= share

    @property
    def is_known(self) -> bool:
        return self.seconds > 0

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


@dataclass(slots=True)
class _Size:
    """Throughput of batches of about one size, with and without drafts, and whether their steps have drafts now."""

    drafted: _Yield = field(default_factory=_Yield)
    plain: _Yield = field(default_factory=_Yield)
    is_on: bool = True
    choice: bool = True  # the faster kind so far: True means with drafts
    is_home: bool = False
    num_left: int = TRIAL_STEPS

    def count(self, num_tokens: int, seconds: float, *, is_drafted: bool) -> None:
        """Counts a step with or without drafts. A step that allows drafts may have none, because the drafter found
        none.

        The first step of a run of equal steps is not counted: in it the drafter also computes the tokens of earlier
        steps without drafts.
        """
        is_first = self.num_left == (HOME_STEPS if self.is_home else TRIAL_STEPS)
        if seconds > 0 and not (is_first and is_drafted is self.is_on):
            self._kind(is_on=is_drafted).add(num_tokens, seconds)
        if is_drafted is not self.is_on:
            return
        self.num_left -= 1
        if not self.num_left or (not is_first and self._has_turned_bad()):
            self._turn()

    def _has_turned_bad(self) -> bool:
        """True if drafts were faster and are slower now. Steps without drafts are then tried at once."""
        is_drafting = self.is_home and self.is_on and self.plain.is_known
        return is_drafting and self.drafted.is_known and self.drafted.rate < self.plain.rate

    def _kind(self, *, is_on: bool) -> _Yield:
        return self.drafted if is_on else self.plain

    def _turn(self) -> None:
        """Ends a run of steps with, or without, drafts and decides whether the next run has drafts."""
        other = self._kind(is_on=not self.is_on)
        if self.is_home or not other.is_known:
            other.fade(_SHARE_AT_TRIAL)
            self.is_home, self.is_on, self.num_left = False, not self.is_on, TRIAL_STEPS
            return
        self.is_home, self.num_left = True, HOME_STEPS
        self.choice = self.is_on = (
            not (self.drafted.is_known and self.plain.is_known)
            or self.drafted.rate > self.plain.rate
        )


class DraftPayoff:
    """Decides before each step whether the step has drafts, from the measured times of earlier steps. The engine's
    thread owns the object. `clock` is in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sizes: dict[int, _Size] = {}
        self._size: _Size | None = None  # batch size of the present step, if the step counts
        self._is_drafted = False
        self._num_tokens = 0
        self._planned_at = self._ended_at = 0.0

    def wants(self, num_sequences: int) -> bool:
        """True if a step that samples tokens of `num_sequences` sequences should have drafts."""
        size = self._sizes.get(num_sequences.bit_length())
        return size is None or size.is_on

    def plan(self) -> None:
        """Begins a step, and counts the previous step, which is over."""
        size = self._size
        if size is not None and self._num_tokens:
            before = size.choice
            seconds = self._ended_at - self._planned_at
            size.count(self._num_tokens, seconds, is_drafted=self._is_drafted)
            if size.choice is not before:
                log.debug(
                    "speculation pays off: %s; with drafts %r, without %r",
                    size.choice,
                    size.drafted,
                    size.plain,
                )
        self._size = None
        self._planned_at = self._clock()

    def begin(self, num_sequences: int | None, *, is_drafted: bool) -> None:
        """Sets whether the step has drafts. With `num_sequences` None the step is not counted, because it computes
        prompts.
        """
        self._num_tokens, self._is_drafted = 0, is_drafted
        if num_sequences is not None:
            self._size = self._sizes.setdefault(num_sequences.bit_length(), _Size())

    def commit(self, num_tokens: int) -> None:
        """Adds the tokens of one part of the step; further parts of the step may follow."""
        self._num_tokens += num_tokens
        self._ended_at = self._clock()
