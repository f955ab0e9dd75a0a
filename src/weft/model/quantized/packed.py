"""A quantized matrix as its file packs it; converted to floats on demand, one tensor at a time.

A value is (number - zero) * scale, all three as float32: the difference is exact, the product is rounded once. Zero and
scale belong to the row and to the column's group. If a group has a minimum instead of a zero, the value is number *
scale + minimum. Codes are first converted to their values.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.groups import GroupedMatrix, GroupFormat, HalvedMatrix
from weft.model.weights import STORAGE, Tensor, refuse_values

_NOTHING = np.uint32(0)
_CHUNK = 1 << 18  # elements converted at once: they stay in the cache between unpacking and scaling


class PackedRows(Protocol):
    """Storage of a matrix [rows, depth] in one format; every method takes a range of rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and depth."""

    @property
    def num_bits(self) -> int:
        """Number of bits of a stored number."""

    def numbers(self, start: int, stop: int) -> NDArray[Any]:
        """Returns the numbers, unsigned or as floats, [rows, depth]."""

    def zeros(self, start: int, stop: int) -> NDArray[np.float32]:
        """Returns the numbers that stand for 0, or the minimums, [rows, groups]."""

    def scales(self, start: int, stop: int) -> NDArray[np.float32]:
        """Returns the scales, [rows, groups]."""


@runtime_checkable
class HalvedRows(Protocol):
    """Packed rows whose four-bit numbers can be read in place."""

    def halves(self, start: int, stop: int) -> tuple[NDArray[np.uint8], int] | None:
        """Returns blocks and run, in the layout of `HalvedMatrix`; None if the rows cannot be read in place."""


@dataclass(frozen=True, slots=True)
class _TakenRows:
    """Rows of `source` in the order of `index`; rows that are read together are near each other."""

    source: PackedRows
    index: NDArray[np.intp]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.index), self.source.shape[1]

    @property
    def num_bits(self) -> int:
        return self.source.num_bits

    def numbers(self, start: int, stop: int) -> NDArray[Any]:
        return self._of(self.source.numbers, start, stop)

    def zeros(self, start: int, stop: int) -> NDArray[np.float32]:
        return self._of(self.source.zeros, start, stop)

    def scales(self, start: int, stop: int) -> NDArray[np.float32]:
        return self._of(self.source.scales, start, stop)

    def _of(self, read: Callable[[int, int], NDArray[Any]], start: int, stop: int) -> NDArray[Any]:
        index = self.index[start:stop]
        first = int(index.min())
        found = read(first, int(index.max()) + 1)
        return found if len(found) == 1 else found[index - first]  # zeros may be one row for all


@dataclass(frozen=True, slots=True)
class Groups:
    """The group of each column: runs of `size` columns, or the entries of `of_columns`."""

    size: int
    of_columns: NDArray[np.intp] | None = None


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Rows [start, stop) of `source`. `unchecked` has the same meaning as in `Tensor`.

    `dtype` rounds the values; None leaves float32. `is_by_row`: each row has one scale, and all numbers share one zero;
    such a matrix is returned as int8 with its scales.
    """

    source: PackedRows
    groups: Groups
    start: int
    stop: int
    dtype: str | None
    unchecked: str
    is_by_row: bool = False
    group_format: GroupFormat | None = None  # format of the kernels that use the stored numbers

    def grouped(self) -> GroupedMatrix:
        """Returns the stored numbers; `group_format` must not be None."""
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
        """Returns the stored numbers in place, None if their layout does not allow it; `group_format` must not be
        None.
        """
        form = self.group_format
        assert form is not None
        if not isinstance(self.source, HalvedRows):
            return None
        found = self.source.halves(self.start, self.stop)
        return found and HalvedMatrix(*found, *self._as_stored(form), self.unchecked)

    def _as_stored(self, form: GroupFormat) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Returns scales, and offsets if there are any, in the types that the file has."""
        offsets = None
        if form.offset == "zeros":
            offsets = np.ascontiguousarray(
                self.source.zeros(self.start, self.stop).astype(np.int16)
            )
        elif self._has_minimums:
            offsets = _as_stored(self.source.zeros(self.start, self.stop), form)
        return _as_stored(self.source.scales(self.start, self.stop), form), offsets

    def rows(self, start: int, stop: int) -> "PackedMatrix":
        """Returns the rows [start, stop)."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    def taken(self, index: NDArray[np.intp]) -> "PackedMatrix":
        """Returns the rows in the order of `index`."""
        source = _TakenRows(self.source, self.start + index)
        return replace(self, source=source, start=0, stop=len(index))

    def is_finite(self) -> bool:
        """True if no value can be NaN or infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            most = self.source.scales(self.start, self.stop) * np.float32(2**self.source.num_bits)
            if self._has_minimums:
                most += self.source.zeros(self.start, self.stop)
        return bool(np.isfinite(most).all())

    def unpacked(self) -> Tensor:
        """Returns all values in a new tensor, which belongs to the caller."""
        if self.is_by_row:
            scales = np.ascontiguousarray(self.source.scales(self.start, self.stop)[:, 0])
            return Tensor("int8", self._whole_numbers(), scales, self.unchecked)
        dtype = self.dtype or "float32"
        out = np.empty((self.stop - self.start, self.source.shape[1]), STORAGE[dtype])
        for start, stop in self._chunks():
            # float32 values of all rows at the same time would take more memory than the file, gigabytes for an
            # embedding.
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
            # Broadcast over runs of columns with the same zero and scale: 277 → 340 million weights per second (GPTQ,
            # 4096 x 4096).
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
    """Returns scales or minimums in the type that the file has."""
    return np.ascontiguousarray(Tensor("float32", values).rounded_to(form.scales).data)


def unpack_range(
    words: NDArray[np.uint32], start: int, stop: int, num_bits: int, missing: np.uint32 = _NOTHING
) -> NDArray[np.uint8]:
    """Returns the numbers [start, stop) of each row of words, [rows, numbers], after `missing` was added to each
    word.
    """
    per_word = 32 // num_bits
    first = start // per_word
    taken = words[:, first : -(-stop // per_word)] + missing  # may wrap around
    numbers = unpack(taken, num_bits)
    return numbers[:, start - first * per_word : stop - first * per_word]


def unpack(words: NDArray[np.uint8] | NDArray[np.uint32], num_bits: int) -> NDArray[np.uint8]:
    """Returns the numbers of 4 or 8 bits in each row of little-endian words, lowest bits first."""
    codes = np.ascontiguousarray(words).view(np.uint8)
    if num_bits == 8:
        return codes
    numbers = np.empty((len(codes), 2 * codes.shape[1]), np.uint8)
    numbers[:, 0::2] = codes & 15
    numbers[:, 1::2] = codes >> 4
    return numbers
