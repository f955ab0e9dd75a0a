"""Drafts: state of a sequence for guessing its next tokens, and counts of accepted drafts.

A draft costs a row of its step. It never decides a token: the step's sampler accepts it only if the model, with its
own noise and rules, chooses the same token.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.config.speculation import SpeculativeConfig

_TOKEN_BYTES = array("i").itemsize


class NgramLookup:
    """Follows one sequence, and finds an earlier place in it that matches its end."""

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
    """How much of a sequence the drafter has computed, in the sequence's present blocks.

    The last of the `num_tokens` computed tokens were `guessed`: they are valid as far as the sequence chose the
    same tokens. `num_preemptions` is the sequence's count when it got its blocks.
    """

    num_preemptions: int
    num_tokens: int
    num_noted_blocks: int
    guessed: tuple[int, ...] = ()

    def keep_right(self, token_ids: Sequence[int]) -> None:
        """Drops computed guesses from the first one that differs from the sequence."""
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
