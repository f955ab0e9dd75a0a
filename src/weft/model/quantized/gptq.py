"""GPTQ: words along the columns, with one row of words for several columns; zeros are packed along the rows.

A file of the format "gptq" stores zeros minus one, "gptq_v2" the zeros themselves. The one was subtracted from whole
words, with borrow, and is added back in the same way.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.fields import Fields, shown
from weft.model.groups import GroupFormat, num_groups
from weft.model.quantized.format import (
    Part,
    Parts,
    describe_bits,
    group_size,
    known_groups,
    need,
    num_words,
    packed_matrix,
    read_groups,
)
from weft.model.quantized.packed import PackedMatrix, unpack, unpack_range
from weft.model.weights import DTYPES, Tensor

_ONES = {4: np.uint32(0x11111111), 8: np.uint32(0x01010101)}


@dataclass(frozen=True, slots=True)
class GptqFormat:
    """Format of a GPTQ checkpoint. With `is_offset` the stored zeros are one too small."""

    num_bits: int
    group_size: int | None
    is_offset: bool
    has_order: bool = False
    has_spare_biases: bool = True
    scales: str = "scales"

    @property
    def notice(self) -> str:
        return describe_bits(f"{self.num_bits} bits (GPTQ)", self.groups("float16"))

    def groups(self, scales: str) -> GroupFormat | None:
        if self.has_order:
            return None
        return known_groups(self.num_bits, self.group_size, "zeros", scales)

    def parts(self, rows: int, depth: int) -> tuple[Part, ...]:
        groups = num_groups(depth, self.group_size)
        return (
            Part("qweight", (num_words(depth, self.num_bits), rows), ("int32",)),
            Part("qzeros", (groups, num_words(rows, self.num_bits)), ("int32",)),
            Part("scales", (groups, rows), DTYPES),
            Part("g_idx", (depth,), ("int32",), is_optional=not self.has_order),
        )

    def read(self, parts: Parts, dtype: str | None) -> Tensor | PackedMatrix:
        source = _GptqRows(
            shape=parts.shape,
            num_bits=self.num_bits,
            words=parts.words("qweight"),
            zero_words=parts.words("qzeros"),
            missing=_ONES[self.num_bits] if self.is_offset else np.uint32(0),
            scale=parts["scales"],
        )
        groups = read_groups(parts, self.group_size, "g_idx")
        return packed_matrix(self, parts, source, groups, dtype)


@dataclass(frozen=True, slots=True)
class _GptqRows:
    shape: tuple[int, int]
    num_bits: int
    words: NDArray[np.uint32]  # [words of depth, rows]
    zero_words: NDArray[np.uint32]  # [groups, words of rows]
    missing: np.uint32  # number to add to each of these words
    scale: Tensor  # [groups, rows]

    def numbers(self, start: int, stop: int) -> NDArray[np.uint8]:
        return unpack(self.words[:, start:stop].T, self.num_bits)[:, : self.shape[1]]

    def zeros(self, start: int, stop: int) -> NDArray[np.float32]:
        numbers = unpack_range(self.zero_words, start, stop, self.num_bits, self.missing)
        return numbers.T.astype(np.float32)

    def scales(self, start: int, stop: int) -> NDArray[np.float32]:
        return Tensor(self.scale.dtype, self.scale.data[:, start:stop]).float32().T


def read_gptq(config: Fields) -> GptqFormat:
    """Returns the format in a config of GPTQ."""
    need(config, "bits", 4, 8)
    # Older files say "checkpoint_format", newer files "format", some both.
    need(config, "checkpoint_format", "gptq", "gptq_v2", None)
    need(config, "format", "gptq", "gptq_v2", None)
    need(config, "is_marlin_format", None, False)
    need(config, "pack_dtype", None, "int32")
    need(config, "planar", None, False)
    need(config, "adapter", None, {})
    need(config, "rotation", None)
    refuse_overrides(config)
    names = {config.values.get(key) for key in ("checkpoint_format", "format")} - {None}
    if len(names) > 1:
        raise ConfigError(
            f"{config.where}: checkpoint_format is {shown(config.values['checkpoint_format'])} and format "
            f"is {shown(config.values['format'])}; they must agree"
        )
    for flag in ("desc_act", "sym"):  # the tensors have the same form with either value
        config.flag_or(flag, False)
    return GptqFormat(
        num_bits=config.integer("bits"),
        group_size=group_size(config, "group_size"),
        is_offset="gptq_v2" not in names,
        has_order=config.flag_or("desc_act", False),
    )


def refuse_overrides(config: Fields) -> None:
    """Raises `ConfigError` for overrides per layer.

    Layers may be left out of the quantization ("-:"), but all other layers must have one format.
    """
    overrides = config.object("dynamic")
    for name in {} if overrides is None else overrides.values:
        if not name.startswith("-:"):
            raise ConfigError(
                f"{config.where}: dynamic has {shown(name)}; this runner reads layers that are all rounded "
                'alike, or left out ("-:")'
            )
