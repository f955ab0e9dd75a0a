"""Matrix products whose rows do not depend on each other, bit for bit.

BLAS chooses its kernel, and with it the order of additions, by the shape of a product. Here every
product has the same number of rows, however many the step has, so one row always gives the same bits.
"""

import numpy as np

from weft.compute.runner import FloatArray

ROWS = 16


def padded_length(num_rows: int) -> int:
    """`num_rows`, rounded up to whole tiles."""
    return -(-num_rows // ROWS) * ROWS


def pad_rows(rows: FloatArray) -> FloatArray:
    """`rows` with rows of zeros up to a whole tile."""
    padded = np.zeros((padded_length(len(rows)), rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    return padded


def matmul(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """[whole tiles of rows, in] times [in, out]."""
    tiles = rows.reshape(len(rows) // ROWS, ROWS, rows.shape[1])
    products: FloatArray = np.matmul(tiles, matrix)
    return products.reshape(len(rows), matrix.shape[1])
