"""Drafts: what is known of a sequence by which its next tokens are guessed, and how many guesses were right.

A guess costs a row of the step it rides in. It never decides anything: the step's sampler takes it
only where the model, with its own noise and rules, chooses the same token.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.config.speculation import SpeculativeConfig

_TOKEN_BYTES = array("i").itemsize


class NgramLookup:
    """Follows one sequence, and looks for an earlier place that reads like its end."""

    __slots__ = ("_config", "_tokens")

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config
        self._tokens = bytearray()  # as bytes, in which a search is one call

    def propose(self, token_ids: Sequence[int], most: int) -> tuple[int, ...]:
        """What followed the latest place that ends like `token_ids`, in as many tokens as can be."""
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
        """Where the last `size` tokens stand for the last time before their own place."""
        pattern = bytes(self._tokens[-size * _TOKEN_BYTES :])
        end = len(self._tokens) - _TOKEN_BYTES
        while (found := self._tokens.rfind(pattern, 0, end)) % _TOKEN_BYTES:
            if found < 0:
                return None
            end = found + len(pattern) - 1
        return found // _TOKEN_BYTES


@dataclass(slots=True)
class DraftKv:
    """How far the model that drafts has computed a sequence, in the blocks that the sequence has.

    Of `num_tokens` computed ones the last were `guessed`: those hold as far as the sequence went on with them.
    `num_preemptions` is the sequence's when it got those blocks.
    """

    num_preemptions: int
    num_tokens: int
    num_noted_blocks: int
    guessed: tuple[int, ...] = ()

    def keep_right(self, token_ids: Sequence[int]) -> None:
        """Go back to where the sequence and the guesses part."""
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
    """What became of the drafts of an engine. `num_accepted_at[i]` counts those whose place `i` was right."""

    def __init__(self) -> None:
        self.num_drafts = 0
        self.num_tokens = 0
        self.num_accepted = 0
        self.num_accepted_at: list[int] = []

    def propose(self, num_tokens: int) -> None:
        """A draft goes into a step."""
        self.num_drafts += 1
        self.num_tokens += num_tokens
        self.num_accepted_at += [0] * (num_tokens - len(self.num_accepted_at))

    def accept(self, position: int) -> None:
        """A draft was right at its place `position`, counted from 0."""
        self.num_accepted += 1
        self.num_accepted_at[position] += 1
