"""Weights of four or eight bits in groups of a row's depth, each with a scale: the one form that kernels compute in.

A weight is (number - zero) * scale, or number * scale + minimum; numbers have no sign. Or a number is the code of
an E2M1 float, and its double is multiplied by the scale. Formats of files are read into this form
(`weft.model.quantized`), and floats are rounded to it.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.model.weights import Tensor

SIZES = (16, 32, 64, 128)  # of groups; of four bits a whole row may be one too
# Twice what each code of E2M1 means: a sign, two bits of exponent and one of mantissa.
E2M1_DOUBLES = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)


def num_groups(depth: int, size: int | None) -> int:
    """Groups of so many columns in a row; None is all of them."""
    return 1 if size is None else -(-depth // size)


@dataclass(frozen=True, slots=True)
class GroupFormat:
    """`size` None is a whole row; `offset` is "symmetric" (zeros are half of what the bits can say), "zeros",
    "minimums" or, of codes, "e2m1"; `scales` is the type of scales and minimums.
    """

    bits: int
    size: int | None
    offset: str
    scales: str

    @property
    def can_be_computed(self) -> bool:
        """Whether there is a kernel for it."""
        return (self.bits, self.size) == (4, None) or (self.bits in (4, 8) and self.size in SIZES)

    def count(self, depth: int) -> int:
        """Groups of a row."""
        return num_groups(depth, self.size)

    def values(self, numbers: NDArray[np.uint8]) -> NDArray[Any]:
        """What they stand for before zeros and scales."""
        return E2M1_DOUBLES.take(numbers) if self.offset == "e2m1" else numbers


# What floats are rounded to; the core says why.
ROUNDED = GroupFormat(bits=4, size=32, offset="minimums", scales="bfloat16")


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """Numbers [rows, depth]; scales, and zeros (int16) or minimums, [rows, groups] as the format's type stores them.

    `unchecked` as in `Tensor`.
    """

    format: GroupFormat
    numbers: NDArray[np.uint8]
    scales: NDArray[Any]
    offsets: NDArray[Any] | None
    unchecked: str | None = None

    def wide_scales(self) -> NDArray[np.float32]:
        """As float32."""
        return Tensor(self.format.scales, self.scales).float32()

    def wide_offsets(self) -> NDArray[np.float32]:
        """Zeros or minimums, as float32."""
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
        """Whether every scale and offset is a number."""
        return bool(
            np.isfinite(self.wide_scales()).all() and np.isfinite(self.wide_offsets()).all()
        )

    def rows(self, start: int, stop: int) -> "GroupedMatrix":
        """Some of its rows, in the same memory."""
        offsets = None if self.offsets is None else self.offsets[start:stop]
        numbers, scales = self.numbers[start:stop], self.scales[start:stop]
        return GroupedMatrix(self.format, numbers, scales, offsets, self.unchecked)

    def float32(self) -> NDArray[np.float32]:
        """The values, rounded once, or of minimums twice."""
        depth = self.numbers.shape[1]
        columns = np.arange(depth) // (self.format.size or depth)
        scales, offsets = self.wide_scales()[:, columns], self.wide_offsets()[:, columns]
        numbers = self.format.values(self.numbers)
        if self.format.offset == "minimums":
            return numbers * scales + offsets
        return (numbers - offsets) * scales


@dataclass(frozen=True, slots=True)
class HalvedMatrix:
    """The same with numbers of four bits where they lie: `blocks` [rows, blocks, bytes], with steps between them.

    Of each `run` bytes of a block come the low halves, and then the high ones.
    """

    blocks: NDArray[np.uint8]
    run: int
    scales: NDArray[Any]
    offsets: NDArray[Any] | None
    unchecked: str | None


@runtime_checkable
class StoredGroups(Protocol):
    """Values that kernels may compute with as they are stored."""

    @property
    def group_format(self) -> GroupFormat | None:
        """In which form; None: in none."""

    def grouped(self) -> GroupedMatrix:
        """Their own numbers, where there is such a form."""

    def halved(self) -> HalvedMatrix | None:
        """Those without a copy, where they lie so that kernels' panels can be made of them."""
