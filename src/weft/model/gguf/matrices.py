"""Tensors of a GGUF file: floats as stored, and blocks as packed matrices."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weft.model.files.match import read_floats
from weft.model.files.safetensors_files import MappedFiles, StoredTensor
from weft.model.gguf.blocks import Bytes, Floats, InHalves
from weft.model.gguf.header import GgufTensor
from weft.model.quantized.packed import Groups, PackedMatrix
from weft.model.weights import Tensor, Values, refuse_values

Order = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ReorderedTensor:
    """A tensor whose rows or columns are read in another order than stored; each read copies them."""

    tensor: Tensor
    order: Order
    columns: Order | None = None

    @property
    def unchecked(self) -> str | None:
        return self.tensor.unchecked

    def is_finite(self) -> bool:
        return self.tensor.is_finite()

    def rows(self, start: int, stop: int) -> "ReorderedTensor":
        """Returns some of the rows, in the new order."""
        return replace(self, order=self.order[start:stop])

    def unpacked(self) -> Tensor:
        data = self.tensor.data[self.order]
        data = data if self.columns is None else data[:, self.columns]
        return replace(self.tensor, data=data, is_mapped=False)


@dataclass(frozen=True, slots=True)
class JoinedHeads:
    """Two tensors read as the one tensor of a checkpoint: for each head, the rows of its keys, then those of its
    values.

    The file stores the keys' tensor transposed.
    """

    keys: Values  # [heads * rank, key]
    values: Values  # [heads * value, rank]
    num_heads: int

    @property
    def unchecked(self) -> str | None:
        """Origin of the first of both tensors that is not finite, for messages."""
        return _first_unchecked((self.keys, self.values))

    def is_finite(self) -> bool:
        return self.keys.is_finite() and self.values.is_finite()

    def unpacked(self) -> Tensor:
        if (unchecked := self.unchecked) is not None:
            refuse_values(unchecked)
        keys, values = self.keys.unpacked(), self.values.unpacked()
        if keys.dtype != values.dtype:
            keys, values = (Tensor("float32", part.float32()) for part in (keys, values))
        rank = values.shape[1]
        turned = keys.data.reshape(self.num_heads, rank, -1).swapaxes(1, 2)
        heads = (turned, values.data.reshape(self.num_heads, -1, rank))
        return Tensor(keys.dtype, np.concatenate(heads, axis=1).reshape(-1, rank))


@dataclass(frozen=True, slots=True)
class JoinedFrames:
    """The matrix of patches with several frames, of which the file has a tensor for each frame."""

    frames: tuple[Values, ...]  # [hidden, channels * pixels] each
    num_channels: int

    @property
    def unchecked(self) -> str | None:
        """Origin of the first frame that is not finite, for messages."""
        return _first_unchecked(self.frames)

    def is_finite(self) -> bool:
        return all(frame.is_finite() for frame in self.frames)

    def unpacked(self) -> Tensor:
        if (unchecked := self.unchecked) is not None:
            refuse_values(unchecked)
        frames = [frame.unpacked() for frame in self.frames]
        if len({frame.dtype for frame in frames}) > 1:
            frames = [Tensor("float32", frame.float32()) for frame in frames]
        rows = len(frames[0].data)
        by_channel = [frame.data.reshape(rows, self.num_channels, -1) for frame in frames]
        return Tensor(frames[0].dtype, np.stack(by_channel, axis=2).reshape(rows, -1))


@dataclass(frozen=True, slots=True)
class Transposed:
    """A matrix that the file stores as [in, out]."""

    stored: Values

    @property
    def unchecked(self) -> str | None:
        return self.stored.unchecked

    def is_finite(self) -> bool:
        return self.stored.is_finite()

    def unpacked(self) -> Tensor:
        return self.stored.unpacked().transposed()


def _first_unchecked(parts: Iterable[Values]) -> str | None:
    return next((p.unchecked for p in parts if p.unchecked and not p.is_finite()), None)


@dataclass(frozen=True, slots=True)
class _BlockRows:
    """The `PackedRows` of a GGUF tensor; `order` has the stored index of each row, `columns` of each column."""

    stored: GgufTensor
    data: Bytes  # [rows, bytes]
    order: Order | None
    columns: Order | None

    @property
    def shape(self) -> tuple[int, int]:
        rows, depth = self.stored.shape
        return rows, depth

    @property
    def num_bits(self) -> int:
        assert self.stored.type.form is not None
        return self.stored.type.form.bits

    def numbers(self, start: int, stop: int) -> NDArray[np.uint8]:
        read = self.stored.type.numbers
        assert read is not None
        numbers = read(self._blocks(start, stop)).reshape(stop - start, -1)
        return numbers if self.columns is None else numbers[:, self.columns]

    def halves(self, start: int, stop: int) -> tuple[Bytes, int] | None:
        read = self.stored.type.numbers
        if not isinstance(read, InHalves) or self.columns is not None:
            return None
        blocks = self._blocks(start, stop).reshape(stop - start, -1, self.stored.type.num_bytes)
        return blocks[:, :, read.start :], read.run

    def zeros(self, start: int, stop: int) -> NDArray[np.float32]:
        scales, minimums = self._scales(start, stop)
        if minimums is not None:
            return minimums
        form = self.stored.type.form
        assert form is not None
        zero = 0 if form.offset == "e2m1" else 2 ** (form.bits - 1)
        return np.full(scales.shape, zero, np.float32)

    def scales(self, start: int, stop: int) -> NDArray[np.float32]:
        return self._scales(start, stop)[0]

    def _scales(self, start: int, stop: int) -> tuple[Floats, Floats | None]:
        read = self.stored.type.scales
        assert read is not None
        with np.errstate(invalid="ignore"):  # values that are not finite are refused later
            scales, minimums = read(self._blocks(start, stop))
        count = stop - start
        by_group = None if minimums is None else self._by_group(minimums, count)
        return self._by_group(scales, count), by_group

    def _by_group(self, part: Floats, count: int) -> Floats:
        """Returns the scales or minimums of `count` rows; columns keep their order within a group."""
        by_row = part.reshape(count, -1)
        if self.columns is None:
            return by_row
        size = self.stored.shape[1] // by_row.shape[1]
        return by_row[:, self.columns[::size] // size]

    def _blocks(self, start: int, stop: int) -> Bytes:
        rows = self.data[start:stop] if self.order is None else self.data[self.order[start:stop]]
        return rows.reshape(-1, self.stored.type.num_bytes)


def read_tensor(
    files: MappedFiles,
    stored: GgufTensor,
    order: Order | None,
    dtype: str | None,
    *,
    widened: str,
    columns: Order | None = None,
) -> Tensor | ReorderedTensor | PackedMatrix:
    """Returns a tensor, memory-mapped, with its rows in `order`, and its columns in the order `columns`.

    `dtype` is the type of float tensors, None for the stored type. Blocks that are converted to floats get the type
    `widened`.
    """
    kind = stored.type
    if kind.form is None:
        tensor = read_floats(files, stored.name, stored.as_floats, dtype)
        if order is None and columns is None:
            return tensor
        rows_order = np.arange(len(tensor.data)) if order is None else order
        return ReorderedTensor(tensor, rows_order, columns)
    rows, depth = stored.shape
    per_row = depth // kind.num_weights * kind.num_bytes
    data = files.read(StoredTensor(stored.path, "int8", (rows, per_row), stored.offset)).data
    assert kind.form.size is not None, "only whole rows of 4 bits have none"
    return PackedMatrix(
        _BlockRows(stored, data.view(np.uint8), order, columns),
        Groups(kind.form.size),
        0,
        rows,
        widened,
        f"{stored.path}: tensor {stored.name}",
        group_format=kind.form,
    )
