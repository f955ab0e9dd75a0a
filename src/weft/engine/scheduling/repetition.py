"""Detection of answers that repeat themselves."""

import numpy as np

from weft.core.values.types import RepetitionDetectionParams


class RepetitionDetector:
    """Detects repeated patterns in the output of one sequence. Each token costs one pass over the pattern sizes.

    For each distance d it counts how many of the last tokens, in a row, equal the token d places earlier. A pattern of
    d tokens occurs n times in a row when this count reaches (n - 1) * d.
    """

    __slots__ = ("_counts", "_needed", "_recent")

    def __init__(self, params: RepetitionDetectionParams) -> None:
        sizes = np.arange(1, params.max_pattern_size + 1)
        self._counts = np.zeros(len(sizes), np.int64)  # by distance - 1
        self._needed = np.where(
            sizes >= max(params.min_pattern_size, 1),
            sizes * (params.min_count - 1),
            np.iinfo(np.int64).max,
        )
        self._recent = np.full(len(sizes), -1, np.int64)  # the last tokens, newest first

    def push(self, token_id: int) -> bool:
        """Adds the next token; returns True if a pattern now occurs as often as the params say."""
        self._counts = np.where(self._recent == token_id, self._counts + 1, 0)
        self._recent = np.roll(self._recent, 1)
        self._recent[:1] = token_id
        return bool((self._counts >= self._needed).any())
