"""Linear layers of decoders in numpy: in float32, in int8, and with group-quantized weights."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.compute.arithmetic.grouped import multiply as multiply_grouped
from weft.compute.arithmetic.int8 import Int8Rows, multiply
from weft.compute.protocols.runner import FloatArray
from weft.compute.reference.encoder import Linear
from weft.model.groups import GroupedMatrix


@dataclass(frozen=True, slots=True)
class Int8Linear:
    """A linear layer whose weights and rows are quantized to int8."""

    matrix: Int8Rows
    bias: FloatArray | None

    def __call__(self, rows: FloatArray) -> FloatArray:
        result = multiply(rows, self.matrix)
        return result if self.bias is None else result + self.bias


@dataclass(frozen=True, slots=True)
class GroupedLinear:
    """A linear layer with group-quantized weights."""

    matrices: tuple[GroupedMatrix, ...]
    bias: FloatArray | None

    def __call__(self, rows: FloatArray) -> FloatArray:
        parts = [multiply_grouped(rows, matrix) for matrix in self.matrices]
        result = np.concatenate(parts, axis=1)
        return result if self.bias is None else result + self.bias


Product: TypeAlias = Linear | Int8Linear | GroupedLinear
