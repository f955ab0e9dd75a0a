"""compressed-tensors: int8 with a scale per row, numbers of 4 or 8 bits packed into words, and float8.

Int8 is stored as I8 beside a tensor `weight_scale` of shape [rows, 1]. Packed numbers are stored along the columns in
`weight_packed`, shifted to be unsigned; zeros, if any, along the rows.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.fields import Fields
from weft.model.groups import GroupFormat, num_groups
from weft.model.quantized.format import (
    Part,
    Parts,
    QuantizedFormat,
    describe_bits,
    known_groups,
    need,
    num_words,
    packed_matrix,
    read_groups,
)
from weft.model.quantized.fp8 import Fp8Format, read_block
from weft.model.quantized.packed import PackedMatrix, unpack, unpack_range
from weft.model.weights import DTYPES, Tensor

_BY_BYTE = ("int-quantized", "naive-quantized")
_PACKED = "pack-quantized"
_FLOAT = "float-quantized"
_SCALE = "weight_scale"


@dataclass(frozen=True, slots=True)
class Int8Format:
    """Int8 with one scale per row: one byte per number."""

    has_spare_biases: bool = False
    scales: str = _SCALE

    @property
    def notice(self) -> str:
        return (
            "The checkpoint's int8 weights are dequantized while loading; --quantization int8 computes with "
            "them as they are, and rounds the head too."
        )

    def groups(self, scales: str) -> GroupFormat | None:
        return None

    def parts(self, rows: int, depth: int) -> tuple[Part, ...]:
        return (
            Part("weight", (rows, depth), ("int8",)),
            Part(_SCALE, (rows, 1), DTYPES),
        )

    def read(self, parts: Parts, dtype: str | None) -> Tensor | PackedMatrix:
        """Returns the matrix as stored, since int8 values rounded to `dtype` would not be more exact."""
        scales = parts[_SCALE].float32().reshape(-1)
        return replace(parts["weight"], scales=scales, unchecked=parts.origin(_SCALE))


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """Numbers of 4 or 8 bits in words. `group_size` None means one scale per row.

    With `has_order` a tensor assigns columns to groups.
    """

    num_bits: int
    group_size: int | None
    is_symmetric: bool
    has_order: bool
    has_spare_biases: bool = False
    scales: str = _SCALE

    @property
    def notice(self) -> str:
        if self._is_by_row and self.num_bits == 8:
            return (
                "The checkpoint's 8-bit weights are dequantized while loading; --quantization int8 computes "
                "with them as they are, and rounds the head too."
            )
        return describe_bits(f"{self.num_bits} bits", self.groups("float16"))

    def groups(self, scales: str) -> GroupFormat | None:
        if self.has_order:
            return None
        offset = "symmetric" if self.is_symmetric else "zeros"
        return known_groups(self.num_bits, self.group_size, offset, scales)

    @property
    def _is_by_row(self) -> bool:
        return self.is_symmetric and self.group_size is None

    def parts(self, rows: int, depth: int) -> tuple[Part, ...]:
        groups = num_groups(depth, self.group_size)
        parts = [
            Part("weight_packed", (rows, num_words(depth, self.num_bits)), ("int32",)),
            Part(_SCALE, (rows, groups), DTYPES),
            Part("weight_shape", (2,), ("int64", "int32")),
        ]
        if not self.is_symmetric:
            zeros = (num_words(rows, self.num_bits), groups)
            parts.append(Part("weight_zero_point", zeros, ("int32",)))
        if self.has_order:
            parts.append(Part("weight_g_idx", (depth,), ("int32",)))
        return tuple(parts)

    def read(self, parts: Parts, dtype: str | None) -> Tensor | PackedMatrix:
        shape = tuple(parts["weight_shape"].data.tolist())
        if shape != parts.shape:
            raise ConfigError(
                f"{parts.origin('weight_shape')} is {list(shape)}; config.json asks for {list(parts.shape)}"
            )
        zeros = None if self.is_symmetric else parts.words("weight_zero_point")
        source = _PackedRows(
            parts.shape, self.num_bits, parts.words("weight_packed"), zeros, parts[_SCALE]
        )
        groups = read_groups(parts, self.group_size, "weight_g_idx")
        return packed_matrix(self, parts, source, groups, dtype, is_by_row=self._is_by_row)


@dataclass(frozen=True, slots=True)
class _PackedRows:
    shape: tuple[int, int]
    num_bits: int
    words: NDArray[np.uint32]  # [rows, words of depth]
    zero_words: NDArray[np.uint32] | None  # [words of rows, groups]
    scale: Tensor  # [rows, groups]

    def numbers(self, start: int, stop: int) -> NDArray[np.uint8]:
        return unpack(self.words[start:stop], self.num_bits)[:, : self.shape[1]]

    def zeros(self, start: int, stop: int) -> NDArray[np.float32]:
        if self.zero_words is None:
            return np.full((1, self.scale.shape[1]), 2 ** (self.num_bits - 1), np.float32)
        return unpack_range(self.zero_words.T, start, stop, self.num_bits).T.astype(np.float32)

    def scales(self, start: int, stop: int) -> NDArray[np.float32]:
        return self.scale.rows(start, stop).float32()


def read_compressed(config: Fields) -> QuantizedFormat:
    """Returns the format in a compressed-tensors config; all groups of the config must have the same format."""
    need(config, "format", *_BY_BYTE, _PACKED, _FLOAT)
    config.object("kv_cache_scheme")  # this setting does not make Weft quantize keys and values
    sparsity = config.object("sparsity_config")
    if sparsity is not None and sparsity.values:
        need(sparsity, "format", "dense")
    need(config, "transform_config", None, {})
    config.texts("ignore")
    groups = config.object("config_groups")
    if groups is None or not groups.values:
        config.refuse("config_groups", "an object of groups")
    formats: dict[str, QuantizedFormat] = {}
    for name in groups.values:
        group = groups.object(name)
        if group is None:
            groups.refuse(name, "an object")
        formats[name] = _read_group(group, config.text("format"))
    first, *others = formats
    for name in others:
        if formats[name] != formats[first]:
            raise ConfigError(
                f"{groups.where}: {first} and {name} differ in their weights; this runner reads layers that "
                "are all rounded alike"
            )
    return formats[first]


def _read_group(group: Fields, form: str) -> QuantizedFormat:
    need(group, "output_activations", None)
    need(group, "format", None, *(_BY_BYTE if form in _BY_BYTE else (form,)))
    group.texts("targets")
    if group.has("input_activations"):
        _check_activations(group, is_float=form == _FLOAT)
    weights = group.object("weights")
    if weights is None:
        group.refuse("weights", "an object")
    need(weights, "type", "float" if form == _FLOAT else "int")
    need(weights, "dynamic", False, None)
    if form == _FLOAT:
        return _read_float(weights)
    need(weights, "block_structure", None)
    if form in _BY_BYTE:
        return _read_int8(weights)
    need(weights, "num_bits", 4, 8)
    need(weights, "symmetric", True, False)
    need(weights, "strategy", "group", "channel")
    is_grouped = weights.text("strategy") == "group"
    if not is_grouped:
        need(weights, "group_size", None, -1)
    need(weights, "actorder", None, False, "weight", "static", "group", "dynamic")
    return PackedFormat(
        num_bits=weights.integer("num_bits"),
        group_size=weights.integer("group_size") if is_grouped else None,
        is_symmetric=weights.flag_or("symmetric", True),
        has_order=is_grouped and weights.values.get("actorder") in ("group", "dynamic"),
    )


def _read_int8(weights: Fields) -> Int8Format:
    need(weights, "num_bits", 8)
    need(weights, "symmetric", True)
    need(weights, "strategy", "channel")
    need(weights, "group_size", None)
    need(weights, "actorder", None)
    return Int8Format()


def _read_float(weights: Fields) -> Fp8Format:
    need(weights, "num_bits", 8)
    need(weights, "symmetric", True)
    need(weights, "strategy", "block", "channel", "tensor")
    need(weights, "group_size", None)
    need(weights, "actorder", None)
    strategy = weights.text("strategy")
    if strategy == "block":
        return Fp8Format(read_block(weights, "block_structure"), _SCALE)
    need(weights, "block_structure", None)
    return Fp8Format((1 if strategy == "channel" else None, None), _SCALE)


def _check_activations(group: Fields, *, is_float: bool) -> None:
    """Raises `ConfigError` for an unsupported quantization of activations; Weft quantizes activations only for int8."""
    numbers = group.object("input_activations")
    assert numbers is not None
    need(numbers, "num_bits", 8)
    need(numbers, "type", "float" if is_float else "int")
    need(numbers, "symmetric", True)
    if is_float:  # quantized by token, or by groups of one
        need(numbers, "strategy", "token", "group", "tensor")
        need(numbers, "dynamic", True, False)
        return
    need(numbers, "strategy", "token")
    need(numbers, "dynamic", True)
    need(numbers, "group_size", None)
    need(numbers, "actorder", None)
    need(numbers, "block_structure", None)
