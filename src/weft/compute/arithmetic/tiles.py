"""Matrix products whose rows do not depend on each other, bit for bit.

BLAS chooses its kernel, and so the order of additions, by the shape of a product and, in some kernels, by a number's
position in it. So every product here has the same shape however many rows a step has, and rows are placed along the
lanes of the vector registers, where all lanes are treated alike.
"""

import numpy as np

from weft.compute.protocols.runner import FloatArray

LANES = 16  # a multiple of every kernel's vector width


def padded_length(num_rows: int) -> int:
    """Returns `num_rows`, rounded up to whole tiles."""
    return -(-num_rows // LANES) * LANES


def pad_rows(rows: FloatArray) -> FloatArray:
    """Returns `rows` with rows of zeros up to a whole tile."""
    padded = np.zeros((padded_length(len(rows)), rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    return padded


def matmul(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """Returns `rows` [whole tiles of rows, in] times the transpose of `matrix` [out, in], as [rows, out]."""
    # Strides matter too: BLAS chooses its kernel by shape and strides.
    tiles = np.ascontiguousarray(rows).reshape(len(rows) // LANES, LANES, rows.shape[1])
    # Lanes are the last axis. As the first axis, AVX2 kernels would give a row other bits at other places in a tile.
    products: FloatArray = np.matmul(matrix, tiles.transpose(0, 2, 1))  # [tiles, out, LANES]
    return np.ascontiguousarray(products.transpose(0, 2, 1)).reshape(len(rows), len(matrix))
