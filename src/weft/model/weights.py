"""Tensors of a checkpoint: stored or rounded bits, and their exact conversion to float32."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")
FLOAT8 = "float8_e4m3fn"
BYTES_PER_ELEMENT: Mapping[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    FLOAT8: 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
STORAGE = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.float16}
_LOWEST_INT8 = np.float32(-128)
_CHUNK = 1 << 22  # elements checked at a time, to bound temporary memory


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. For bfloat16, which numpy lacks, `data` has the bits as uint16.

    `dtype` "int8" is a matrix that its checkpoint quantized: an element's value is its whole number times the entry of
    `scales` for its row. `unchecked` is the origin of the tensor for error messages, until its values are known to be
    finite.
    """

    dtype: str
    data: NDArray[Any]
    scales: NDArray[np.float32] | None = None  # [rows]
    unchecked: str | None = None
    # True if the data is a read-only map of a file: its pages may be dropped, and are read again on access.
    is_mapped: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions of the tensor."""
        return self.data.shape

    def float32(self) -> NDArray[np.float32]:
        """Returns the same values as a float32 array, exactly. The array may share memory with the checkpoint."""
        if self.dtype == "bfloat16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        if self.scales is not None:
            return self.data.astype(np.float32) * self.scales[:, None]
        return self.data.astype(np.float32, copy=False)

    def unpacked(self) -> "Tensor":
        """Returns the tensor itself, as it is not packed."""
        return self

    def rows(self, start: int, stop: int) -> "Tensor":
        """Returns the rows [start, stop), as a view of the same memory."""
        scales = None if self.scales is None else np.ascontiguousarray(self.scales[start:stop])
        return Tensor(self.dtype, self.data[start:stop], scales, self.unchecked, self.is_mapped)

    def taken(self, index: NDArray[np.intp]) -> "Tensor":
        """Returns a copy of the rows in the order of `index`."""
        scales = None if self.scales is None else self.scales[index]
        return Tensor(self.dtype, self.data[index], scales, self.unchecked)

    def transposed(self) -> "Tensor":
        """Returns the transposed tensor, as a view of the same memory."""
        return replace(self, data=self.data.T)

    def is_finite(self) -> bool:
        """True if no element is NaN or infinite."""
        if self.scales is not None:
            with np.errstate(over="ignore"):
                return bool(np.isfinite(self.scales * _LOWEST_INT8).all())
        flat = self.data.reshape(-1)
        chunks = (flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK))
        if self.dtype == "bfloat16":  # an exponent of all ones
            return all(bool(((chunk & 0x7F80) != 0x7F80).all()) for chunk in chunks)
        return all(bool(np.isfinite(chunk).all()) for chunk in chunks)

    def rounded_to(self, dtype: str) -> "Tensor":
        """Returns the nearest values of `dtype`, ties to even; the tensor itself if it already has that type."""
        if dtype == self.dtype:
            return self
        wide = self.float32()
        if dtype == "bfloat16":
            return Tensor(dtype, bfloat16_bits(wide))
        with np.errstate(over="ignore"):  # the caller checks for infinities and names the tensor
            return Tensor(dtype, wide.astype(STORAGE[dtype]))


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Returns the upper halves of finite float32 values, rounded to nearest even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Values(Protocol):
    """A tensor, or packed values that can become a tensor at any time: packed weights are never all floats at once."""

    @property
    def unchecked(self) -> str | None:
        """Origin of the values until they are checked; None afterwards."""

    def is_finite(self) -> bool:
        """True if no element is NaN or infinite."""

    def unpacked(self) -> Tensor:
        """Returns the values as a tensor; packed values make a new tensor in each call."""


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix as a product: a table of narrow rows times the matrix from their width to the model's width."""

    table: Tensor
    matrix: Tensor

    @property
    def unchecked(self) -> str | None:
        return self.table.unchecked

    def is_finite(self) -> bool:
        return self.table.is_finite() and self.matrix.is_finite()

    def unpacked(self) -> Tensor:
        product = self.table.float32() @ self.matrix.float32()
        return Tensor("float32", product, unchecked=self.unchecked)


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model under Weft's own names, which are the same for all families.

    Names are `embed`, `positions`, `token_types`, `embed_norm`, `norm`, `head` (absent when tied) and, for layer i,
    `layers.i.` followed by q, k, v, o, gate, up, down, q_norm, k_norm, or by attention_norm or mlp_norm and _before,
    _after or _sum; each exists if the spec has it, and so does its `.bias`. A matrix is [out, in].

    A layer with experts has router, and `experts.j.` followed by gate, up, down; its plain gate, up and down then
    belong to the shared expert, and shared_gate weights it. `router_correction` has one number per expert, `sinks` one
    per head. Latent attention has q, or q_a, q_a_norm and q_b; kv_a, kv_a_norm and kv_b.
    """

    tensors: Mapping[str, Values]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].unpacked()

    def __contains__(self, name: str) -> bool:
        return name in self.tensors


def refuse_values(unchecked: str) -> NoReturn:
    """Raises a `ConfigError` that names a tensor with NaN or infinity."""
    raise ConfigError(f"{unchecked} holds NaN or infinity")


LoadWeights = Callable[[], Weights]
