"""Products of int8 weights and int8 activations in numpy: the same bits as the native kernels.

Each row of weights or activations is quantized to int8 with its own scale, which maps its largest magnitude to 127. The
sums of a product are whole numbers, exact in any order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.compute.protocols.runner import FloatArray

MOST = np.float32(127)  # -128 is not used, because its negative is not an int8
_LEAST = np.float32(1e-30)  # a row below it becomes zeros: its inverse scale would be infinite


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """Rows quantized to int8, [rows, depth], with one scale per row; the scale of a row that was not finite is NaN."""

    values: NDArray[np.int8]
    scales: FloatArray

    @classmethod
    def round(cls, rows: FloatArray) -> "Int8Rows":
        """Returns the rows quantized: the nearest int8 of each scaled element, ties to even."""
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
        """Returns the rows of all parts, one part after the other."""
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


def rounded_heads(heads: FloatArray) -> FloatArray:
    """Returns keys or values [rows, heads, head_dim] rounded to int8 and back; each head of each row has its own
    scale.
    """
    whole = Int8Rows.round(np.ascontiguousarray(heads).reshape(-1, heads.shape[-1]))
    return (whole.values * whole.scales[:, None]).reshape(heads.shape)
