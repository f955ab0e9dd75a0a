"""A matrix of rounded weights as its file packs it; made into floats one tensor at a time, when needed.

A value is (number - zero) * scale, all three taken as float32: the difference is exact, the product is
rounded once. Zero and scale are those of the row and of the column's group. Where a group has a minimum in
place of a zero, it is number * scale + minimum; where numbers are codes, they are looked up first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.groups import GroupedMatrix, GroupFormat, HalvedMatrix
from weft.model.weights import STORAGE, Tensor, refuse_values

_NOTHING = np.uint32(0)
_CHUNK = 1 << 18  # elements made in one go: they stay in the cache between unpacking and scaling


class PackedRows(Protocol):
    """How one format keeps a matrix [rows, depth]; every method takes a range of rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and depth."""

    @property
    def num_bits(self) -> int:
        """Bits of a number."""

    def numbers(self, start: int, stop: int) -> NDArray[Any]:
        """The numbers, without sign, or as floats [rows, depth]."""

    def zeros(self, start: int, stop: int) -> NDArray[np.float32]:
        """The numbers that mean 0, or the minimums [rows, groups]."""

    def scales(self, start: int, stop: int) -> NDArray[np.float32]:
        """[rows, groups]."""


@runtime_checkable
class HalvedRows(Protocol):
    """Rows whose numbers may be taken where they lie."""

    def halves(self, start: int, stop: int) -> tuple[NDArray[np.uint8], int] | None:
        """Blocks and run, as `HalvedMatrix` has them."""


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
    group_format: GroupFormat | None = None  # in which kernels compute with it as it is

    def grouped(self) -> GroupedMatrix:
        """Its own numbers, where it has a `group_format`."""
        form = self.group_format
        assert form is not None
        if self.groups.of_columns is not None:
            raise ConfigError(
                f"{self.unchecked}: its columns are in groups by an order of their own; serve it with "
                "--quantization none"
            )
        numbers = np.empty((self.stop - self.start, self.source.shape[1]), np.uint8)
        for start, stop in self._chunks():
            numbers[start - self.start : stop - self.start] = self.source.numbers(start, stop)
        return GroupedMatrix(form, numbers, *self._as_stored(form), self.unchecked)

    def halved(self) -> HalvedMatrix | None:
        """See `StoredGroups`; only where it has a `group_format`."""
        form = self.group_format
        assert form is not None
        if not isinstance(self.source, HalvedRows):
            return None
        found = self.source.halves(self.start, self.stop)
        return found and HalvedMatrix(*found, *self._as_stored(form), self.unchecked)

    def _as_stored(self, form: GroupFormat) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Scales, and offsets where there are some, in the types that they had in the file."""
        offsets = None
        if form.offset == "zeros":
            offsets = np.ascontiguousarray(
                self.source.zeros(self.start, self.stop).astype(np.int16)
            )
        elif self._has_minimums:
            offsets = _as_stored(self.source.zeros(self.start, self.stop), form)
        return _as_stored(self.source.scales(self.start, self.stop), form), offsets

    def rows(self, start: int, stop: int) -> "PackedMatrix":
        """Some of its rows."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    def is_finite(self) -> bool:
        """Whether no value can be NaN or infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            most = self.source.scales(self.start, self.stop) * np.float32(2**self.source.num_bits)
            if self._has_minimums:
                most += self.source.zeros(self.start, self.stop)
        return bool(np.isfinite(most).all())

    def unpacked(self) -> Tensor:
        """All of its values; nobody keeps them but the caller."""
        if self.is_by_row:
            scales = np.ascontiguousarray(self.source.scales(self.start, self.stop)[:, 0])
            return Tensor("int8", self._whole_numbers(), scales, self.unchecked)
        dtype = self.dtype or "float32"
        out = np.empty((self.stop - self.start, self.source.shape[1]), STORAGE[dtype])
        for start, stop in self._chunks():
            # Of all rows together float32 would be more than the file, for an embedding by gigabytes.
            values = Tensor("float32", self._values(start, stop))
            if not values.is_finite():
                refuse_values(self.unchecked)
            rounded = values.rounded_to(dtype)
            if not rounded.is_finite():
                raise ConfigError(
                    f"{self.unchecked}: its values do not fit {dtype}; serve it as bfloat16"
                )
            out[start - self.start : stop - self.start] = rounded.data
        return Tensor(dtype, out)

    def _whole_numbers(self) -> NDArray[np.int8]:
        out = np.empty((self.stop - self.start, self.source.shape[1]), np.int8)
        for start, stop in self._chunks():
            out[start - self.start : stop - self.start] = self.source.numbers(
                start, stop
            ) - self.source.zeros(start, stop)
        return out

    def _values(self, start: int, stop: int) -> NDArray[np.float32]:
        depth, size, columns = self.source.shape[1], self.groups.size, self.groups.of_columns
        numbers = self.source.numbers(start, stop)
        if self.group_format is not None:
            numbers = self.group_format.values(numbers)
        zeros, scales = self.source.zeros(start, stop), self.source.scales(start, stop)
        if columns is None and depth % size == 0:
            # Runs of columns that share both: 277 → 340 million weights a second (GPTQ, 4096 x 4096).
            numbers = numbers.reshape(stop - start, depth // size, size)
            zeros, scales = zeros[:, :, None], scales[:, :, None]
        else:
            columns = np.arange(depth) // size if columns is None else columns
            zeros, scales = zeros.take(columns, axis=1), scales.take(columns, axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            if self._has_minimums:
                values = numbers * scales
                values += zeros
            else:
                values = numbers - zeros
                values *= scales
        return values.reshape(stop - start, depth)

    @property
    def _has_minimums(self) -> bool:
        return self.group_format is not None and self.group_format.offset == "minimums"

    def _chunks(self) -> Iterator[tuple[int, int]]:
        step = max(8, _CHUNK // self.source.shape[1] // 8 * 8)  # whole words of every format
        for start in range(self.start, self.stop, step):
            yield start, min(start + step, self.stop)


def _as_stored(values: NDArray[np.float32], form: GroupFormat) -> NDArray[Any]:
    """Scales or minimums in the type that they had in the file."""
    return np.ascontiguousarray(Tensor("float32", values).rounded_to(form.scales).data)


def unpack_range(
    words: NDArray[np.uint32], start: int, stop: int, num_bits: int, missing: np.uint32 = _NOTHING
) -> NDArray[np.uint8]:
    """Numbers [rows, start to stop] of those that each row of words holds, `missing` added to each word."""
    per_word = 32 // num_bits
    first = start // per_word
    taken = words[:, first : -(-stop // per_word)] + missing  # may wrap around
    numbers = unpack(taken, num_bits)
    return numbers[:, start - first * per_word : stop - first * per_word]


def unpack(words: NDArray[np.uint8] | NDArray[np.uint32], num_bits: int) -> NDArray[np.uint8]:
    """The numbers of 4 or 8 bits in each row of little-endian words, lowest bits first."""
    codes = np.ascontiguousarray(words).view(np.uint8)
    if num_bits == 8:
        return codes
    numbers = np.empty((len(codes), 2 * codes.shape[1]), np.uint8)
    numbers[:, 0::2] = codes & 15
    numbers[:, 1::2] = codes >> 4
    return numbers
