"""`DraftPayoff`: whether drafts pay, by what steps with and without them have given in what time.

A draft's rows cost more the more sequences share a step, and what comes true depends on the text. So neither
is assumed: for each size of a batch both kinds of step are tried, the better one goes on, and the other is
tried again now and then. Answers do not depend on it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger("weft.engine")

# Steps of a first trial; of the better kind before the other is tried again; and of that trial. A draft that
# halves the speed costs 9 / 521 of it while it is switched off.
TRIAL_STEPS = 9
HOME_STEPS = 512
# Of what a kind of step gave before, this is left after each step, and at the beginning of a later trial.
_SHARE = 0.98
_SHARE_AT_TRIAL = 0.1


@dataclass(slots=True)
class _Yield:
    """Tokens and seconds of one kind of step, the latest ones counting most."""

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
    """What is known of batches of about one size, and which kind of step they have now."""

    drafted: _Yield = field(default_factory=_Yield)
    plain: _Yield = field(default_factory=_Yield)
    is_on: bool = True
    choice: bool = True  # the better kind, as far as is known
    is_home: bool = False
    num_left: int = TRIAL_STEPS

    def count(self, num_tokens: int, seconds: float, *, is_drafted: bool) -> None:
        """A step of either kind: where drafts are to be had, there may be none to be found.

        The first of a run is not counted: what was left out before is made up for in it.
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
        """Whether drafts that were better have come to give less: then the other kind has its trial at once."""
        is_drafting = self.is_home and self.is_on and self.plain.is_known
        return is_drafting and self.drafted.is_known and self.drafted.rate < self.plain.rate

    def _kind(self, *, is_on: bool) -> _Yield:
        return self.drafted if is_on else self.plain

    def _turn(self) -> None:
        """A run has ended."""
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
    """Consulted before each step, and given what came of each; the engine's thread owns it. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sizes: dict[int, _Size] = {}
        self._size: _Size | None = None  # of the step that has begun, if it counts
        self._is_drafted = False
        self._num_tokens = 0
        self._planned_at = self._ended_at = 0.0

    def wants(self, num_sequences: int) -> bool:
        """Whether a step in which so many sequences get a token is to have drafts."""
        size = self._sizes.get(num_sequences.bit_length())
        return size is None or size.is_on

    def plan(self) -> None:
        """A step is being planned; the one before is over."""
        size = self._size
        if size is not None and self._num_tokens:
            before = size.choice
            seconds = self._ended_at - self._planned_at
            size.count(self._num_tokens, seconds, is_drafted=self._is_drafted)
            if size.choice is not before:
                log.debug("drafts pay=%s: %r, without %r", size.choice, size.drafted, size.plain)
        self._size = None
        self._planned_at = self._clock()

    def begin(self, num_sequences: int | None, *, is_drafted: bool) -> None:
        """It has drafts or not. Without a number of sequences it is not counted: it computes prompts too."""
        self._num_tokens, self._is_drafted = 0, is_drafted
        if num_sequences is not None:
            self._size = self._sizes.setdefault(num_sequences.bit_length(), _Size())

    def commit(self, num_tokens: int) -> None:
        """So many tokens came of it, and perhaps more will."""
        self._num_tokens += num_tokens
        self._ended_at = self._clock()
