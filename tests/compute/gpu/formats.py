"""Models whose matrices are stored in few bits, each product in another format, and what their numbers mean."""

from dataclasses import dataclass, replace

import numpy as np

from tests.compute.native.test_grouped import draw_matrix
from weft.compute.gpu.formats import products_of
from weft.model.groups import GroupedMatrix, GroupFormat
from weft.model.open import open_model
from weft.model.weights import Tensor, Weights

# Those of GPTQ and AWQ, compressed-tensors, GGUF's Q4_K and Q6_K, and MXFP4.
MIXED = (
    GroupFormat(4, 128, "zeros", "float16"),
    GroupFormat(4, 32, "minimums", "float32"),
    GroupFormat(8, 16, "symmetric", "float32"),
    GroupFormat(4, 32, "e2m1", "bfloat16"),
    GroupFormat(8, 64, "zeros", "float16"),
    GroupFormat(4, None, "symmetric", "float32"),
)


@dataclass(frozen=True)
class Grouped:
    """Values that a checkpoint stores in groups."""

    matrix: GroupedMatrix
    dtype: str
    unchecked: str | None = None

    @property
    def group_format(self):
        return self.matrix.format

    def grouped(self):
        return self.matrix

    def halved(self):
        return None

    def is_finite(self):
        return self.matrix.is_finite()

    def unpacked(self):
        return Tensor("float32", self.matrix.float32()).rounded_to(self.dtype)


def mixed_checkpoint(query, forms=MIXED):
    """A random model, whose products take the formats by turns; the head stays as it is."""
    checkpoint = open_model(f"embedded:random?{query}")
    tensors = dict(checkpoint.load().tensors)
    products = [names for names in products_of(checkpoint.spec) if names != ("head",)]
    rng = np.random.default_rng(6)
    for place, names in enumerate(products):
        for name in names:
            rows, depth = tensors[name].shape
            matrix = draw_matrix(rng, forms[place % len(forms)], rows, depth)
            largest = np.abs(matrix.float32()).max()
            few = [None if a is None else scaled(a, matrix, largest) for a in offsets_of(matrix)]
            matrix = replace(matrix, scales=few[0], offsets=few[1])
            tensors[name] = Grouped(matrix, checkpoint.card.dtype)
    return replace(checkpoint, load_weights=lambda: Weights(tensors))


def offsets_of(matrix):
    return matrix.scales, matrix.offsets


def scaled(values, matrix, largest):
    """Scales and minimums so small that the model's rows stay of their size; zeros as they are."""
    if values.dtype == np.int16:
        return values
    wide = Tensor(matrix.format.scales, values).float32() * np.float32(0.3 / largest)
    return Tensor("float32", wide).rounded_to(matrix.format.scales).data
