"""Choosing tokens from whole rows of logits, where no mask or truncation applies."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.compute.native import _core
from weft.compute.runner import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token for each row; meaningless where the row is not finite."""

    token_ids: IntArray
    is_finite: NDArray[np.bool_]


def draw_rows(logits: FloatArray, temperatures: list[float], keys: list[int]) -> Drawn:
    """The best token of each row (temperature 0) or a draw; `keys` select the noise of each row."""
    token_ids = np.zeros(len(logits), np.int32)
    is_finite = np.zeros(len(logits), np.bool_)
    _core.draw_rows(
        np.ascontiguousarray(logits),
        np.array(temperatures, np.float64),
        np.array(keys, np.uint64),
        token_ids,
        is_finite,
    )
    return Drawn(token_ids, is_finite)
