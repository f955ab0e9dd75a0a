"""`StoredMatrix`: a matrix on the card in few bits; its numbers become values in the product's kernel.

The values, and so the results, are those of the same matrix dequantized to the model's type.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from weft.compute.gpu import launches
from weft.compute.gpu.card_tensors import bits_to_card, to_card
from weft.compute.gpu.formats import BY_ROW, padded_depth
from weft.compute.gpu.kernels.stored import stored_rows
from weft.compute.gpu.matrices.products import PARTS, Ending, Matrix
from weft.model.groups import GroupedMatrix, GroupFormat
from weft.model.weights import Tensor

_MOST_PIECE = 32  # columns of a piece; a group of 16 has pieces of 16
_MIDDLE = 128
_MOST, _LEAST = 127.0, 1e-30  # rows below the least become zeros
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Numbers:
    """A quantized matrix on the card.

    `numbers` is [depth / piece, rows, piece] in bytes; with four bits a byte has a column of one piece in its lower
    half, and of the next piece in its upper half. `scales` and `offsets` are [groups, rows].
    """

    form: GroupFormat
    numbers: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None

    @classmethod
    def of(cls, matrix: GroupedMatrix) -> Self:
        """Copies a matrix to the card."""
        form, offsets = matrix.format, None
        if matrix.offsets is not None:
            is_float = form.offset == "minimums"
            offsets = bits_to_card(matrix.offsets, form.scales if is_float else "")
        return cls.packed(
            form, bits_to_card(matrix.numbers), bits_to_card(matrix.scales, form.scales), offsets
        )

    @classmethod
    def packed(
        cls,
        form: GroupFormat,
        numbers: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor | None = None,
    ) -> Self:
        """Returns a matrix from numbers [rows, depth], one per byte, and scales and offsets [rows, groups]."""
        count = form.count(padded_depth(numbers.shape[1]))
        by_group = None if offsets is None else _by_group(offsets, count)
        return cls(form, pack(numbers, form), _by_group(scales, count), by_group)

    @property
    def num_rows(self) -> int:
        return int(self.scales.shape[-1])

    @property
    def num_groups(self) -> int:
        return int(self.scales.shape[-2])

    @property
    def depth(self) -> int:
        """Padded depth."""
        pieces, _, piece = self.numbers.shape[-3:]
        return int(pieces * piece) * 8 // self.form.bits

    def is_finite(self, dtype: torch.dtype) -> bool:
        """True if every value that the bits allow is finite in `dtype`."""
        most = self.scales.float().abs() * 2**self.form.bits
        if self.form.offset == "minimums" and self.offsets is not None:
            most += self.offsets.float().abs()
        return bool(torch.isfinite(most.to(dtype)).all())

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        """Returns the rows of all parts, which have the same format, one part after the other."""
        return cls._together(parts, lambda tensors: torch.cat(tensors, 1))

    @classmethod
    def stack(cls, parts: list[Self]) -> Self:
        """Returns matrices of the same shape with one more dimension, [experts, ...]."""
        return cls._together(parts, torch.stack)

    @classmethod
    def _together(
        cls, parts: list[Self], join: Callable[[list[torch.Tensor]], torch.Tensor]
    ) -> Self:
        offsets = [part.offsets for part in parts if part.offsets is not None]
        return cls(
            parts[0].form,
            join([part.numbers for part in parts]),
            join([part.scales for part in parts]),
            join(offsets) if offsets else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMatrix(Matrix):
    """A matrix in few bits; each step launches the same kernel, with tiles that its rows fill."""

    weights: Numbers

    @classmethod
    def of(
        cls, weights: Numbers, ending: Ending = PARTS, bias: torch.Tensor | None = None
    ) -> "StoredMatrix":
        """Returns the matrix with these numbers."""
        rows, depth = weights.num_rows, weights.depth
        return cls(num_rows=rows, depth=depth, weights=weights, ending=ending, bias=bias)

    def __call__(self, rows: torch.Tensor, out: torch.Tensor) -> int:
        outputs, weights = self.num_outputs, self.weights
        is_serial = self.is_serial(len(rows))
        num_programs = 1 if is_serial else self.num_parts
        tile = launches.tuning().stored(len(rows), self.ending.kind)
        tiles = -(-len(rows) // tile.rows) * -(-outputs // tile.outputs)
        unused = weights.scales
        bias = self.bias if self.adds_bias and self.bias is not None else unused
        counts = (len(rows), outputs, self.depth, self.part_depth, self.num_rows, 0)
        stored_rows[(tiles, num_programs)](
            *(rows, *arguments(weights), out, bias, unused, unused, *counts),
            *(rows.stride(0), self.stride(out)),
            **self.constants(),
            **constants(weights.form),
            BM=tile.rows,
            BN=tile.outputs,
            EVEN=outputs % tile.outputs == 0,
            PARTS=self.num_parts,
            IS_SERIAL=is_serial,
            SHARED_BY=0,
            **tile.options(),
        )
        return num_programs


def arguments(weights: Numbers) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns numbers, scales and offsets as the kernel takes them."""
    offsets = weights.scales if weights.offsets is None else weights.offsets
    return weights.numbers, weights.scales, offsets


def constants(form: GroupFormat) -> dict[str, Any]:
    """Returns the kernel's arguments that follow from the format."""
    return {
        "BITS": form.bits,
        "SIZE": form.size or 0,
        "OFFSET": form.offset,
        "PIECE": piece_of(form),
    }


def piece_of(form: GroupFormat) -> int:
    """Returns the number of columns that one step of the kernel's loop over the depth takes, at most a group."""
    return min(_MOST_PIECE, form.size or _MOST_PIECE)


def pack(numbers: torch.Tensor, form: GroupFormat) -> torch.Tensor:
    """Returns numbers [rows, depth], one per byte, in the layout of `Numbers`, with zeros up to the padded depth."""
    rows, depth = numbers.shape
    whole = torch.zeros(rows, padded_depth(depth), dtype=torch.uint8, device=numbers.device)
    whole[:, :depth] = numbers
    pieces = whole.view(rows, -1, piece_of(form)).transpose(0, 1)
    if form.bits == 4:
        pieces = pieces[0::2] | (pieces[1::2] << 4)
    return pieces.contiguous()


def numbers_by_row(tensor: Tensor) -> Numbers:
    """Returns a matrix in int8 with one scale for each row: a stored one, or floats quantized to it."""
    if tensor.scales is not None:
        numbers = bits_to_card(tensor.data.view(np.uint8)) ^ _MIDDLE
        return Numbers.packed(BY_ROW, numbers, bits_to_card(tensor.scales[:, None]))
    parts = [rounded_by_row(rows.float()) for rows in to_card(tensor).split(_ROWS_AT_ONCE)]
    numbers, scales = (torch.cat(part) for part in zip(*parts, strict=True))
    return Numbers.packed(BY_ROW, numbers, scales)


def rounded_by_row(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns float32 values [rows, depth] as bytes, 128 for zero, and scales [rows, 1]; NaN for rows with NaN.

    The rounding is that of `weft.compute.arithmetic.int8`.
    """
    most = values.abs().amax(1, keepdim=True)
    zero = torch.zeros((), device=values.device)
    is_zero = most < _LEAST
    inverse = torch.where(is_zero, zero, _MOST / most)
    rounded = (values * inverse).round() + _MIDDLE
    return rounded.to(torch.uint8), torch.where(is_zero, zero, most / _MOST)


def _by_group(values: torch.Tensor, count: int) -> torch.Tensor:
    """Returns scales or offsets [rows, groups] as [groups, rows], with zeros up to `count` groups."""
    rows, groups = values.shape
    whole = torch.zeros(count, rows, dtype=values.dtype, device=values.device)
    whole[:groups] = values.T
    return whole
