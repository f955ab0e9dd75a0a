"""A matrix of rounded weights as its file packs it; made into floats one tensor at a time, when needed.

A value is (number - zero) * scale, all three taken as float32: the difference is exact, the product is
rounded once. Zero and scale are those of the row and of the column's group.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.weights import Tensor

_CHUNK = 1 << 18  # elements made in one go: they stay in the cache between unpacking and scaling


class PackedRows(Protocol):
    """How one format keeps a matrix [rows, depth]; every method takes a range of rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and depth."""

    @property
    def num_bits(self) -> int:
        """Bits of a number."""

    def numbers(self, start: int, stop: int) -> NDArray[np.float32]:
        """The numbers, without sign: a fresh array [rows, depth]."""

    def zeros(self, start: int, stop: int) -> NDArray[np.float32]:
        """The numbers that mean 0 [rows, groups]."""

    def scales(self, start: int, stop: int) -> NDArray[np.float32]:
        """[rows, groups]."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Which group each column is of: runs of `size`, or what `of_columns` says."""

    size: int
    of_columns: NDArray[np.intp] | None = None


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Rows [start, stop) of `source`; `unchecked` as in `Tensor`.

    `dtype` rounds the values; None leaves float32. `is_by_row` says that a row has one scale and that
    numbers lie around one zero for all: such a matrix is handed out as int8 with its scales.
    """

    source: PackedRows
    groups: Groups
    start: int
    stop: int
    dtype: str | None
    unchecked: str
    is_by_row: bool = False

    def rows(self, start: int, stop: int) -> "PackedMatrix":
        """Some of its rows."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    def is_finite(self) -> bool:
        """Whether no value can be NaN or infinite."""
        with np.errstate(over="ignore"):
            most = self.source.scales(self.start, self.stop) * np.float32(2**self.source.num_bits)
        return bool(np.isfinite(most).all())

    def unpacked(self) -> Tensor:
        """All of its values; nobody keeps them but the caller."""
        if self.is_by_row:
            scales = np.ascontiguousarray(self.source.scales(self.start, self.stop)[:, 0])
            return Tensor("int8", self._whole_numbers(), scales, self.unchecked)
        values = Tensor("float32", self._values(), None, self.unchecked)
        if self.dtype is None:
            return values
        if not values.is_finite():
            return values  # whoever reads it will say so
        rounded = values.rounded_to(self.dtype)
        if not rounded.is_finite():
            raise ConfigError(
                f"{self.unchecked}: its values do not fit {self.dtype}; serve it as bfloat16"
            )
        return rounded

    def _whole_numbers(self) -> NDArray[np.int8]:
        out = np.empty((self.stop - self.start, self.source.shape[1]), np.int8)
        for start, stop in self._chunks():
            numbers = self.source.numbers(start, stop)
            numbers -= self.source.zeros(start, stop)
            out[start - self.start : stop - self.start] = numbers
        return out

    def _values(self) -> NDArray[np.float32]:
        depth, size = self.source.shape[1], self.groups.size
        out = np.empty((self.stop - self.start, depth), np.float32)
        for start, stop in self._chunks():
            numbers = self.source.numbers(start, stop)
            zeros, scales = self.source.zeros(start, stop), self.source.scales(start, stop)
            values = out[start - self.start : stop - self.start]
            if self.groups.of_columns is None and depth % size == 0:
                # Runs of columns that share both: 277 → 340 million weights a second (GPTQ, 4096 x 4096).
                by_group = (stop - start, depth // size, size)
                numbers = numbers.reshape(by_group)
                numbers -= zeros[:, :, None]
                with np.errstate(over="ignore", invalid="ignore"):
                    np.multiply(numbers, scales[:, :, None], out=values.reshape(by_group))
                continue
            columns = self.groups.of_columns
            columns = np.arange(depth) // size if columns is None else columns
            numbers -= zeros.take(columns, axis=1)
            with np.errstate(over="ignore", invalid="ignore"):
                np.multiply(numbers, scales.take(columns, axis=1), out=values)
        return out

    def _chunks(self) -> Iterator[tuple[int, int]]:
        step = max(8, _CHUNK // self.source.shape[1] // 8 * 8)  # whole words of every format
        for start in range(self.start, self.stop, step):
            yield start, min(start + step, self.stop)


def unpack(words: NDArray[np.uint32], num_bits: int) -> NDArray[np.float32]:
    """The numbers of 4 or 8 bits in each row of little-endian words, lowest bits first."""
    codes = np.ascontiguousarray(words).view(np.uint8)
    if num_bits == 8:
        return codes.astype(np.float32)
    numbers = np.empty((len(codes), 2 * codes.shape[1]), np.float32)
    numbers[:, 0::2] = codes & 15
    numbers[:, 1::2] = codes >> 4
    return numbers
