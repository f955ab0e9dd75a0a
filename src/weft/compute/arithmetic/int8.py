"""Products of int8 weights and int8 activations in numpy: the same bits as the native kernels.

A row, of weights or of activations, becomes int8 by a scale of its own, which maps its largest magnitude to 127. The
sums of a product are whole numbers, exact in any order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.compute.protocols.runner import FloatArray

MOST = np.float32(127)  # -128 is not used: its negative is no int8
_LEAST = np.float32(1e-30)  # a row below it becomes zeros: its inverse scale would be infinite


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """Rows as int8 [rows, depth], with one scale per row; a row that was not finite has scale NaN."""

    values: NDArray[np.int8]
    scales: FloatArray

    @classmethod
    def round(cls, rows: FloatArray) -> "Int8Rows":
        """Returns the nearest int8 of each element, ties to even."""
        with np.errstate(all="ignore"):
            most = np.abs(rows).max(axis=1)
            most[~np.isfinite(rows).all(axis=1)] = np.nan
            is_whole = most >= _LEAST
            inverse = np.where(is_whole, MOST / most, np.float32(0))
            scales = np.where(is_whole | np.isnan(most), most / MOST, np.float32(0))
            rounded = np.rint(np.where(is_whole[:, None], rows, np.float32(0)) * inverse[:, None])
        return cls(rounded.astype(np.int8), scales.astype(np.float32))

    @classmethod
    def join(cls, parts: "list[Int8Rows]") -> "Int8Rows":
        """Returns all rows of all parts."""
        return cls(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.scales for part in parts]),
        )


def multiply(rows: FloatArray, weights: Int8Rows) -> FloatArray:
    """Returns `rows` [rows, depth], quantized row by row, times `weights` [out, depth]."""
    activations = Int8Rows.round(rows)
    # float64 represents every possible sum, a whole number, exactly.
    sums = activations.values.astype(np.float64) @ weights.values.astype(np.float64).T
    result: FloatArray = sums.astype(np.float32) * activations.scales[:, None] * weights.scales
    return result
