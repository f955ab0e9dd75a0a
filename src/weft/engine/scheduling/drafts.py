"""Per-sequence state of drafters, and counts of accepted drafts.

Each draft token takes one row of a step. A draft never changes an answer: the sampler accepts a draft token only if the
model, with the sequence's own noise and rules, samples the same token.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.config.speculation import SpeculativeConfig

_TOKEN_BYTES = array("i").itemsize


class NgramLookup:
    """Finds an earlier occurrence of the last tokens of one sequence."""

    __slots__ = ("_config", "_tokens")

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config
        self._tokens = bytearray()  # as bytes, so that a search is a single call

    def propose(self, token_ids: Sequence[int], most: int) -> tuple[int, ...]:
        """Returns up to `most` tokens that follow the latest earlier match of the end of `token_ids`."""
        self._tokens += array("i", token_ids[len(self._tokens) // _TOKEN_BYTES :]).tobytes()
        config = self._config
        wanted = min(most, config.num_speculative_tokens)
        if wanted <= 0:
            return ()
        longest = min(config.prompt_lookup_max, len(token_ids) - 1)
        for size in range(longest, config.prompt_lookup_min - 1, -1):
            place = self._find(size)
            if place is not None:
                return tuple(token_ids[place + size : place + size + wanted])
        return ()

    def _find(self, size: int) -> int | None:
        """Returns the index of the last earlier occurrence of the last `size` tokens; None if there is none."""
        pattern = bytes(self._tokens[-size * _TOKEN_BYTES :])
        end = len(self._tokens) - _TOKEN_BYTES
        while (found := self._tokens.rfind(pattern, 0, end)) % _TOKEN_BYTES:
            if found < 0:
                return None
            end = found + len(pattern) - 1
        return found // _TOKEN_BYTES


@dataclass(slots=True)
class DraftKv:
    """Number of a sequence's tokens whose KV the drafter has computed, in the sequence's present blocks.

    The last of the `num_tokens` computed tokens are the drafts `guessed`: their KV is valid up to the first draft that
    differs from the sequence. `num_preemptions` is `Sequence.num_preemptions` at the time when the blocks were
    allocated.
    """

    num_preemptions: int
    num_tokens: int
    num_noted_blocks: int
    guessed: tuple[int, ...] = ()

    def keep_right(self, token_ids: Sequence[int]) -> None:
        """Drops the KV of drafts from the first draft on that differs from `token_ids`."""
        first = self.num_tokens - len(self.guessed)
        follow = token_ids[first : first + len(self.guessed)]
        num_right = next(
            (
                i
                for i, (guess, token) in enumerate(zip(self.guessed, follow, strict=False))
                if guess != token
            ),
            len(follow),
        )
        self.num_tokens, self.guessed = first + num_right, ()


class DraftCounts:
    """Counts of an engine's drafts. `num_accepted_at[i]` counts the drafts whose token at place `i` was accepted."""

    def __init__(self) -> None:
        self.num_drafts = 0
        self.num_tokens = 0
        self.num_accepted = 0
        self.num_accepted_at: list[int] = []

    def propose(self, num_tokens: int) -> None:
        """Counts a draft that is added to a step."""
        self.num_drafts += 1
        self.num_tokens += num_tokens
        self.num_accepted_at += [0] * (num_tokens - len(self.num_accepted_at))

    def accept(self, position: int) -> None:
        """Counts an accepted draft token at `position`, from 0."""
        self.num_accepted += 1
        self.num_accepted_at[position] += 1
