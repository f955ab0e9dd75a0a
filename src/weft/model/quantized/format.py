"""`QuantizedFormat`: which tensors stand for a linear layer's matrix, and how they are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.fields import Fields, shown
from weft.model.groups import GroupFormat, num_groups
from weft.model.quantized.packed import Groups, PackedMatrix, PackedRows
from weft.model.weights import Tensor

# Scales by which others round activations, keys and values, which stay as they are here.
PASSED_OVER = tuple(f".{name}_scale" for name in ("input", "output", "q", "k", "v", "kv", "prob"))


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a rounded matrix: its name after the module's, its shape, and types it may have.

    `is_by_row`: its rows are those of the matrix.
    """

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    is_optional: bool = False
    is_by_row: bool = True


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one matrix, by `Part.name`; `lead` is how their full names begin in messages."""

    lead: str
    shape: tuple[int, int]
    tensors: Mapping[str, Tensor]
    paths: Mapping[str, str]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def words(self, name: str) -> NDArray[np.uint32]:
        """An int32 tensor as the bits that it holds."""
        return self.tensors[name].data.view("<u4")

    def origin(self, name: str) -> str:
        """How a message calls that tensor."""
        return f"{self.paths[name]}: tensor {self.lead}{name}"


class QuantizedFormat(Protocol):
    """A way to store rounded matrices. Which layers are stored so is for the file to say.

    Lists of exceptions in a config are therefore not needed: a layer that was left as it is lies there
    under its usual name. `parts` begins with the tensor that decides.
    """

    @property
    def notice(self) -> str:
        """One sentence for whoever serves it."""

    @property
    def has_spare_biases(self) -> bool:
        """Whether its writers may add biases of zeros to layers that have none."""

    @property
    def scales(self) -> str:
        """The name of the tensor of scales."""

    def groups(self, scales: str) -> GroupFormat | None:
        """In which form kernels compute with a matrix as it is, with scales of that type; None: in none."""

    def parts(self, rows: int, depth: int) -> tuple[Part, ...]:
        """The tensors of a matrix of that shape."""

    def read(self, parts: Parts, dtype: str | None) -> Tensor | PackedMatrix:
        """The matrix, unpacked when it is needed; `dtype` as in `PackedMatrix`."""


def need(fields: Fields, key: str, *allowed: object) -> None:
    """Refuse every other value of `key`."""
    value = fields.values.get(key)
    if not any(value is one or (value == one and type(value) is type(one)) for one in allowed):
        offer = " or ".join("nothing" if one is None else shown(one) for one in allowed)
        raise ConfigError(f"{fields.where}: {key} is {shown(value)}; this runner reads {offer}")


def group_size(fields: Fields, key: str) -> int | None:
    """Columns of a group; None for all of them, which files write as -1."""
    value = fields.values.get(key)
    if value == -1 and type(value) is int:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        fields.refuse(key, "a whole number above 0, or -1 for whole rows")
    return value


def known_groups(num_bits: int, size: int | None, offset: str, scales: str) -> GroupFormat | None:
    """That form, if there is a kernel for it."""
    form = GroupFormat(num_bits, size, offset, scales)
    return form if form.can_be_computed else None


def describe_bits(bits: str, form: GroupFormat | None) -> str:
    """The notice of a checkpoint with weights of so many bits."""
    if form is not None:
        return (
            f"The checkpoint's weights of {bits} are computed as they are, and other linear layers in int8; "
            "--quantization none widens them."
        )
    return (
        f"The checkpoint's weights of {bits} are widened as they are read; --quantization int8 rounds them "
        "again, to half the memory of bfloat16."
    )


def read_groups(parts: Parts, size: int | None, order: str | None) -> Groups:
    """Groups of a matrix; `order` names the tensor that puts each column in one, if there is any."""
    depth = parts.shape[1]
    run = depth if size is None else size
    if order is None or order not in parts.tensors:
        return Groups(run)
    columns = parts[order].data
    if columns.size and not 0 <= columns.min() <= columns.max() < num_groups(depth, size):
        raise ConfigError(
            f"{parts.origin(order)} names group {columns.min()} to {columns.max()}; there are "
            f"{num_groups(depth, size)}"
        )
    if np.array_equal(columns, np.arange(depth) // run):
        return Groups(run)
    return Groups(run, columns.astype(np.intp))


def packed_matrix(
    form: QuantizedFormat,
    parts: Parts,
    source: PackedRows,
    groups: Groups,
    dtype: str | None,
    *,
    is_by_row: bool = False,
) -> PackedMatrix:
    """All rows of `source`, which was made of `parts`; the rest as in `PackedMatrix`."""
    return PackedMatrix(
        source,
        groups,
        0,
        parts.shape[0],
        dtype,
        parts.origin(form.scales),
        is_by_row,
        form.groups(parts[form.scales].dtype),
    )


def num_words(count: int, num_bits: int) -> int:
    """32-bit words that `count` numbers fill, the last perhaps in part."""
    return -(-count * num_bits // 32)
