"""MXFP4, the format of gpt-oss' experts: blocks of 32 E2M1 codes in 16 bytes, with a power of two per block.

The blocks of a row are adjacent; each byte has the earlier code in its lower half. A scale is one byte: the exponent
plus 127. One tensor has all experts of a layer.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.fields import Fields
from weft.model.groups import GroupFormat, num_groups
from weft.model.quantized.format import Part, Parts, describe_bits, packed_matrix
from weft.model.quantized.packed import Groups, PackedMatrix, unpack
from weft.model.weights import Tensor

_SIZE = 32
_NO_NUMBER = 255
# Scales apply to doubled values, and bfloat16 represents any power of two.
FORM = GroupFormat(4, _SIZE, "e2m1", "bfloat16")


@dataclass(frozen=True, slots=True)
class Mxfp4Format:
    """The MXFP4 format; there are no variants."""

    has_spare_biases: bool = False
    scales: str = "scales"

    @property
    def notice(self) -> str:
        return describe_bits("4 bits (MXFP4)", FORM)

    def groups(self, scales: str) -> GroupFormat | None:
        return FORM

    def parts(self, rows: int, depth: int) -> tuple[Part, ...]:
        groups = num_groups(depth, _SIZE)
        return (
            Part("blocks", (rows, groups, _SIZE // 2), ("uint8",)),
            Part("scales", (rows, groups), ("uint8",)),
        )

    def read(self, parts: Parts, dtype: str | None) -> Tensor | PackedMatrix:
        rows, depth = parts.shape
        if depth % _SIZE:
            raise ConfigError(
                f"{parts.origin('blocks')} has rows of {depth} numbers; a multiple of {_SIZE} is read"
            )
        source = _Mxfp4Rows(
            parts.shape, parts["blocks"].data.reshape(rows, -1), parts["scales"].data
        )
        return packed_matrix(self, parts, source, Groups(_SIZE), dtype)


@dataclass(frozen=True, slots=True)
class _Mxfp4Rows:
    shape: tuple[int, int]
    codes: NDArray[np.uint8]  # [rows, depth / 2]
    exponents: NDArray[np.uint8]  # [rows, groups]
    num_bits: int = 4

    def numbers(self, start: int, stop: int) -> NDArray[np.uint8]:
        return unpack(self.codes[start:stop], self.num_bits)

    def zeros(self, start: int, stop: int) -> NDArray[np.float32]:
        return np.zeros((stop - start, self.exponents.shape[1]), np.float32)

    def scales(self, start: int, stop: int) -> NDArray[np.float32]:
        exponents = self.exponents[start:stop]
        return np.where(exponents == _NO_NUMBER, np.float32(np.nan), scales_of_doubles(exponents))


def scales_of_doubles(exponents: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns 2 ** (byte - 128), half of each scale, because the codes' values are doubled."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


def read_mxfp4(config: Fields) -> Mxfp4Format:
    """Returns the MXFP4 format; the file determines which layers have it."""
    config.texts("modules_to_not_convert")
    return Mxfp4Format()
