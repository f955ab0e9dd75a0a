"""`QuantizedFormat`: the tensors that store the matrix of a quantized linear layer, and their reader."""

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

# Scales of quantized activations, keys and values, which Weft does not use.
PASSED_OVER = tuple(f".{name}_scale" for name in ("input", "output", "q", "k", "v", "kv", "prob"))


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a quantized matrix: its name after the module's name, its shape, and its allowed types.

    `is_by_row`: the tensor's rows are the rows of the matrix.
    """

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    is_optional: bool = False
    is_by_row: bool = True


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one quantized matrix, by `Part.name`; `lead` is the prefix of their full names in messages."""

    lead: str
    shape: tuple[int, int]
    tensors: Mapping[str, Tensor]
    paths: Mapping[str, str]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def words(self, name: str) -> NDArray[np.uint32]:
        """Returns an int32 tensor as unsigned words."""
        return self.tensors[name].data.view("<u4")

    def origin(self, name: str) -> str:
        """Returns the tensor's name for messages."""
        return f"{self.paths[name]}: tensor {self.lead}{name}"


class QuantizedFormat(Protocol):
    """A format of quantized matrices. The file determines which layers have this format.

    Therefore lists of exceptions in a config are not needed: an unquantized layer has its usual tensor name. The first
    of `parts` is the tensor that only quantized layers have.
    """

    @property
    def notice(self) -> str:
        """One sentence about the format for the operator."""

    @property
    def has_spare_biases(self) -> bool:
        """True if programs that write the format may add biases of zeros to layers without a bias."""

    @property
    def scales(self) -> str:
        """Name of the tensor with the scales."""

    def groups(self, scales: str) -> GroupFormat | None:
        """Returns the format in which kernels compute with a matrix whose scales have the type `scales`.

        Returns None if no kernel supports it.
        """

    def parts(self, rows: int, depth: int) -> tuple[Part, ...]:
        """Returns the tensors of a matrix of that shape."""

    def read(self, parts: Parts, dtype: str | None) -> Tensor | PackedMatrix:
        """Returns the matrix, unpacked on demand; `PackedMatrix` explains `dtype`."""


def need(fields: Fields, key: str, *allowed: object) -> None:
    """Raises `ConfigError` unless the value of `key` is one of `allowed`."""
    value = fields.values.get(key)
    if not any(value is one or (value == one and type(value) is type(one)) for one in allowed):
        offer = " or ".join("nothing" if one is None else shown(one) for one in allowed)
        raise ConfigError(f"{fields.where}: {key} is {shown(value)}; this runner reads {offer}")


def group_size(fields: Fields, key: str) -> int | None:
    """Returns the number of columns in a group; None for all columns, which files write as -1."""
    value = fields.values.get(key)
    if value == -1 and type(value) is int:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        fields.refuse(key, "a whole number above 0, or -1 for whole rows")
    return value


def known_groups(num_bits: int, size: int | None, offset: str, scales: str) -> GroupFormat | None:
    """Returns the group format if there is a kernel for it, otherwise None."""
    form = GroupFormat(num_bits, size, offset, scales)
    return form if form.can_be_computed else None


def describe_bits(bits: str, form: GroupFormat | None) -> str:
    """Returns the notice for a checkpoint whose weights have `bits` bits."""
    if form is not None:
        return (
            f"The checkpoint's weights of {bits} are computed in their stored format, and other linear layers in int8; "
            "--quantization none dequantizes them."
        )
    return (
        f"The checkpoint's weights of {bits} are dequantized while loading; --quantization int8 quantizes them "
        "again, to half the memory of bfloat16."
    )


def read_groups(parts: Parts, size: int | None, order: str | None) -> Groups:
    """Returns the groups of a matrix; `order` names the tensor that assigns each column to a group, if there is one."""
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
    """Returns all rows of `source`, which was made from `parts`; `PackedMatrix` explains the other arguments."""
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
    """Returns the number of 32-bit words for `count` numbers; the last word may be filled in part."""
    return -(-count * num_bits // 32)
