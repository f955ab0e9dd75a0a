"""Matrix products whose rows do not depend on each other, bit for bit.

BLAS chooses its kernel, and with it the order of additions, by the shape of a product and, in some
kernels, by where in the shape a number lies. So every product here has the same shape however many
rows a step has, and rows lie along the lanes of the vector registers, where all are treated alike.
"""

import numpy as np

from weft.compute.protocols.runner import FloatArray

LANES = 16  # a multiple of every kernel's vector width


def padded_length(num_rows: int) -> int:
    """`num_rows`, rounded up to whole tiles."""
    return -(-num_rows // LANES) * LANES


def pad_rows(rows: FloatArray) -> FloatArray:
    """`rows` with rows of zeros up to a whole tile."""
    padded = np.zeros((padded_length(len(rows)), rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    return padded


def matmul(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """[whole tiles of rows, in] times the transpose of [out, in], as [rows, out]."""
    # Memory order is part of the shape: BLAS has other kernels for other strides.
    tiles = np.ascontiguousarray(rows).reshape(len(rows) // LANES, LANES, rows.shape[1])
    # Lanes last. The other way round, AVX2 kernels give a row other bits at other places in a tile.
    products: FloatArray = np.matmul(matrix, tiles.transpose(0, 2, 1))  # [tiles, out, LANES]
    return np.ascontiguousarray(products.transpose(0, 2, 1)).reshape(len(rows), len(matrix))
