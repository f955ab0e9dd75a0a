"""Group-quantized weights of four or eight bits, with a scale for each group along a row: the form for kernels.

A weight is (number - zero) * scale, or number * scale + minimum; numbers are unsigned. Or the number is the code of an
E2M1 float, and the scale is multiplied by twice the float's value. Formats of files are read into this form
(`weft.model.quantized`), and floats are quantized to it.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.model.weights import Tensor

SIZES = (16, 32, 64, 128)  # sizes of groups; with four bits a whole row may also be one group
# Twice the value of each E2M1 code: a sign bit, two bits of exponent and one of mantissa.
E2M1_DOUBLES = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)


def num_groups(depth: int, size: int | None) -> int:
    """Returns the number of groups in a row of `depth` columns; `size` None means one group per row."""
    return 1 if size is None else -(-depth // size)


@dataclass(frozen=True, slots=True)
class GroupFormat:
    """Format of a quantized matrix.

    `size` None is a whole row. `offset` is "symmetric" (the zero is half of the range of the bits), "zeros", "minimums"
    or, for codes, "e2m1". `scales` is the type of scales and minimums.
    """

    bits: int
    size: int | None
    offset: str
    scales: str

    @property
    def can_be_computed(self) -> bool:
        """True if there is a kernel for this format."""
        return (self.bits, self.size) == (4, None) or (self.bits in (4, 8) and self.size in SIZES)

    def count(self, depth: int) -> int:
        """Returns the number of groups of a row."""
        return num_groups(depth, self.size)

    def values(self, numbers: NDArray[np.uint8]) -> NDArray[Any]:
        """Returns the values of the numbers before zeros and scales are applied."""
        return E2M1_DOUBLES.take(numbers) if self.offset == "e2m1" else numbers


# The format to which floats are quantized; the native core explains the choice.
ROUNDED = GroupFormat(bits=4, size=32, offset="minimums", scales="bfloat16")


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """A quantized matrix: numbers [rows, depth]; scales, and zeros (int16) or minimums, [rows, groups] as stored.

    `unchecked` has the same meaning as in `Tensor`.
    """

    format: GroupFormat
    numbers: NDArray[np.uint8]
    scales: NDArray[Any]
    offsets: NDArray[Any] | None
    unchecked: str | None = None

    def wide_scales(self) -> NDArray[np.float32]:
        """Returns the scales as float32."""
        return Tensor(self.format.scales, self.scales).float32()

    def wide_offsets(self) -> NDArray[np.float32]:
        """Returns the zeros or minimums as float32."""
        match self.format.offset:
            case "symmetric":
                return np.full(self.scales.shape, 2 ** (self.format.bits - 1), np.float32)
            case "e2m1":
                return np.zeros(self.scales.shape, np.float32)
            case "zeros":
                assert self.offsets is not None
                return self.offsets.astype(np.float32)
            case _:
                assert self.offsets is not None
                return Tensor(self.format.scales, self.offsets).float32()

    def is_finite(self) -> bool:
        """True if every scale and offset is finite."""
        return bool(
            np.isfinite(self.wide_scales()).all() and np.isfinite(self.wide_offsets()).all()
        )

    def rows(self, start: int, stop: int) -> "GroupedMatrix":
        """Returns the rows [start, stop), as views of the same memory."""
        offsets = None if self.offsets is None else self.offsets[start:stop]
        numbers, scales = self.numbers[start:stop], self.scales[start:stop]
        return GroupedMatrix(self.format, numbers, scales, offsets, self.unchecked)

    def float32(self) -> NDArray[np.float32]:
        """Returns the values as float32, rounded once; with minimums, rounded twice."""
        depth = self.numbers.shape[1]
        columns = np.arange(depth) // (self.format.size or depth)
        scales, offsets = self.wide_scales()[:, columns], self.wide_offsets()[:, columns]
        numbers = self.format.values(self.numbers)
        if self.format.offset == "minimums":
            return numbers * scales + offsets
        return (numbers - offsets) * scales


@dataclass(frozen=True, slots=True)
class HalvedMatrix:
    """A matrix of four-bit numbers in its file's memory: `blocks` [rows, blocks, bytes], strided.

    Of each `run` bytes of a block, the low halves come first, then the high halves.
    """

    blocks: NDArray[np.uint8]
    run: int
    scales: NDArray[Any]
    offsets: NDArray[Any] | None
    unchecked: str | None


@runtime_checkable
class StoredGroups(Protocol):
    """Values that kernels may compute with in their stored format."""

    @property
    def group_format(self) -> GroupFormat | None:
        """Stored format; None if no kernel supports it."""

    def grouped(self) -> GroupedMatrix:
        """Returns the stored numbers, if `group_format` is not None."""

    def halved(self) -> HalvedMatrix | None:
        """Returns the stored numbers without a copy; None if kernels' panels cannot be made from their layout."""
