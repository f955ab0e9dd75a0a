"""AWQ in its "gemm" form: words along the rows, with eight numbers per word in AWQ's own order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.model.fields import Fields
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
from weft.model.quantized.gptq import refuse_overrides
from weft.model.quantized.packed import PackedMatrix
from weft.model.weights import DTYPES, Tensor

_ROWS = (0, 2, 4, 6, 1, 3, 5, 7)  # rows of a word's eight numbers, from its lowest bits up
_PER_WORD = len(_ROWS)


@dataclass(frozen=True, slots=True)
class AwqFormat:
    """AWQ's format: four bits, with zeros."""

    group_size: int | None
    has_spare_biases: bool = False
    scales: str = "scales"

    @property
    def notice(self) -> str:
        return describe_bits("4 bits (AWQ)", self.groups("float16"))

    def groups(self, scales: str) -> GroupFormat | None:
        return known_groups(4, self.group_size, "zeros", scales)

    def parts(self, rows: int, depth: int) -> tuple[Part, ...]:
        groups, words = num_groups(depth, self.group_size), num_words(rows, 4)
        return (
            Part("qweight", (depth, words), ("int32",)),
            Part("qzeros", (groups, words), ("int32",)),
            Part("scales", (groups, rows), DTYPES),
        )

    def read(self, parts: Parts, dtype: str | None) -> Tensor | PackedMatrix:
        source = _AwqRows(
            parts.shape, parts.words("qweight"), parts.words("qzeros"), parts["scales"]
        )
        return packed_matrix(self, parts, source, read_groups(parts, self.group_size, None), dtype)


@dataclass(frozen=True, slots=True)
class _AwqRows:
    shape: tuple[int, int]
    words: NDArray[np.uint32]  # [depth, words of rows]
    zero_words: NDArray[np.uint32]  # [groups, words of rows]
    scale: Tensor  # [groups, rows]
    num_bits: int = 4

    def numbers(self, start: int, stop: int) -> NDArray[np.uint8]:
        return _unpack(self.words, start, stop)

    def zeros(self, start: int, stop: int) -> NDArray[np.float32]:
        return _unpack(self.zero_words, start, stop).astype(np.float32)

    def scales(self, start: int, stop: int) -> NDArray[np.float32]:
        return Tensor(self.scale.dtype, self.scale.data[:, start:stop]).float32().T


def _unpack(words: NDArray[np.uint32], start: int, stop: int) -> NDArray[np.uint8]:
    """Returns the numbers [rows, columns] of the rows [start, stop), from words [columns, words of rows]."""
    first = start // _PER_WORD
    taken = np.ascontiguousarray(words[:, first : -(-stop // _PER_WORD)].T)
    numbers = np.empty((len(taken), _PER_WORD, taken.shape[1]), np.uint8)
    for place, row in enumerate(_ROWS):
        numbers[:, row] = (taken >> np.uint32(4 * place)) & np.uint32(15)
    skipped = start - first * _PER_WORD
    return numbers.reshape(-1, taken.shape[1])[skipped : skipped + stop - start]


def read_awq(config: Fields) -> AwqFormat:
    """Returns the format in an AWQ config; `bits` and `group_size` have older names too."""
    need(config, "bits" if config.has("bits") else "w_bit", 4)
    need(config, "zero_point", None, True)
    for key in ("version", "format", "checkpoint_format"):
        need(config, key, None, "gemm", "GEMM")
    if config.values.get("backend") == "llm-awq":
        config.refuse("backend", "autoawq or any other that keeps the order of gemm")
    refuse_overrides(config)
    config.texts("modules_to_not_convert")
    return AwqFormat(
        group_size(config, "group_size" if config.has("group_size") else "q_group_size")
    )
