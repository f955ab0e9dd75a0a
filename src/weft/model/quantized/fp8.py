"""Weights in float8 (E4M3), each multiplied by the scale of its block, row or matrix.

The weights are converted to bfloat16: no kernel computes with float8, and bfloat16 represents the values better than
int8.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.model.fields import Fields
from weft.model.groups import GroupFormat, num_groups
from weft.model.quantized.format import Part, Parts, describe_bits, need
from weft.model.quantized.packed import Groups, PackedMatrix
from weft.model.weights import DTYPES, FLOAT8, Tensor

_MAX_BLOCK = 2**16


def _meanings() -> NDArray[np.float32]:
    """Returns the value of each byte: a sign, four bits of exponent, three bits of mantissa.

    A byte with all ones after the sign is NaN.
    """
    codes = np.arange(128)
    exponents, mantissas = codes >> 3, (codes & 7) / 8
    values = np.where(exponents > 0, (1 + mantissas) * 2.0 ** (exponents - 7), mantissas * 2.0**-6)
    values[-1] = np.nan
    return np.concatenate((values, -values)).astype(np.float32)


_MEANINGS = _meanings()


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """The float8 format: one scale per `block` of rows and columns; None stands for all rows or columns."""

    block: tuple[int | None, int | None]
    scales: str
    has_spare_biases: bool = False

    @property
    def notice(self) -> str:
        return describe_bits("8 bits (FP8)", None)

    def groups(self, scales: str) -> GroupFormat | None:
        return None

    def parts(self, rows: int, depth: int) -> tuple[Part, ...]:
        shape: tuple[int, ...] = (num_groups(rows, self.block[0]), num_groups(depth, self.block[1]))
        if self.block == (None, None):
            shape = (1,)
        is_by_row = self.block[0] == 1
        return (
            Part("weight", (rows, depth), (FLOAT8,)),
            Part(self.scales, shape, DTYPES, is_by_row=is_by_row),
        )

    def read(self, parts: Parts, dtype: str | None) -> Tensor | PackedMatrix:
        rows, depth = parts.shape
        scales = parts[self.scales].float32().reshape(num_groups(rows, self.block[0]), -1)
        source = _Fp8Rows(parts.shape, parts["weight"].data, scales, self.block[0] or rows)
        origin = f"{parts.origin('weight')}, times {self.scales},"
        return PackedMatrix(source, Groups(self.block[1] or depth), 0, rows, dtype, origin)


@dataclass(frozen=True, slots=True)
class _Fp8Rows:
    shape: tuple[int, int]
    codes: NDArray[np.uint8]  # [rows, depth]
    scale: NDArray[np.float32]  # [blocks of rows, blocks of columns]
    block_rows: int
    num_bits: int = 9  # the largest value is 448

    def numbers(self, start: int, stop: int) -> NDArray[np.float32]:
        return _MEANINGS.take(self.codes[start:stop])

    def zeros(self, start: int, stop: int) -> NDArray[np.float32]:
        return np.zeros((1, self.scale.shape[1]), np.float32)

    def scales(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.scale[np.arange(start, stop) // self.block_rows]


def read_fp8(config: Fields) -> Fp8Format:
    """Returns the float8 format: DeepSeek's blocks, or whole matrices. The file determines which layers have it."""
    need(config, "fmt", None, "e4m3")
    need(config, "scale_fmt", None, "ue8m0")  # powers of two, stored as floats like other scales
    need(config, "activation_scheme", None, "dynamic", "static")
    config.object("kv_cache_scheme")  # this setting does not make Weft quantize keys and values
    for key in ("modules_to_not_convert", "ignored_layers"):
        config.texts(key)
    if not config.has("weight_block_size"):
        return Fp8Format((None, None), "weight_scale")
    return Fp8Format(read_block(config, "weight_block_size"), "weight_scale_inv")


def read_block(fields: Fields, key: str) -> tuple[int, int]:
    """Returns the numbers of rows and columns of a block."""
    sizes = fields.values.get(key)
    if not isinstance(sizes, list) or len(sizes) != 2:
        fields.refuse(key, "a list of two whole numbers, rows and columns")
    rows, columns = sizes
    if any(type(size) is not int or not 1 <= size <= _MAX_BLOCK for size in sizes):
        fields.refuse(key, f"a list of two whole numbers from 1 to {_MAX_BLOCK}")
    return rows, columns
