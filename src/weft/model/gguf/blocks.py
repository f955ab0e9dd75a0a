"""Tensor types of GGUF: conversion of blocks of bytes to numbers, scales and minimums of groups.

Each type is converted to a format that kernels compute with, and that represents its numbers and scales exactly. Types
with five and six bits, and types with unevenly spaced values except MXFP4, use eight bits per number in this format;
scales that are products of two scales use float32.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.model.groups import GroupFormat
from weft.model.quantized.mxfp4 import FORM as MXFP4
from weft.model.quantized.mxfp4 import scales_of_doubles

Bytes = NDArray[Any]  # uint8 blocks [n, bytes]; numpy's type hints do not keep the element type
Floats = NDArray[np.float32]  # [n, groups]
_Numbers = Callable[[Bytes], NDArray[Any]]
_Scales = Callable[[Bytes], tuple[Floats, Floats | None]]

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MIDDLE = 128  # the eight-bit number that stands for zero
_LOW, _FOUR = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(4)
_IQ4_NUMBERS = (np.array(_IQ4, np.int16) + _MIDDLE).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class InHalves:
    """Reads four-bit numbers from byte `start` of a block on, in the layout of `HalvedMatrix`."""

    start: int
    run: int

    def __call__(self, blocks: Bytes) -> Bytes:
        """Returns the numbers, one per byte."""
        return _halves(blocks[:, self.start :], self.run)


@dataclass(frozen=True, slots=True)
class BlockType:
    """A tensor type: `num_weights` weights per block of `num_bytes` bytes.

    A float type has a `dtype`, one weight per block, and no `form`. `numbers` returns the numbers of blocks [n,
    num_weights]; `scales` returns their scales, and minimums if the form has them.
    """

    name: str
    num_weights: int
    num_bytes: int
    dtype: str | None = None
    form: GroupFormat | None = None
    numbers: _Numbers | None = None
    scales: _Scales | None = None


def _halves(blocks: Bytes, run: int) -> Bytes:
    """Returns, for each run of `run` bytes, the low four bits of all its bytes, then the high four bits."""
    # By columns of words, instead of run by run in numpy: 1.9 → 0.5 ns per number of Q4_0.
    if run <= 16:
        return _halves_of_words(np.ascontiguousarray(blocks).view(np.uint64), run // 8)
    runs = blocks.reshape(len(blocks), -1, 1, run)
    return np.concatenate((runs & 15, runs >> 4), axis=2).reshape(len(blocks), -1)


def _halves_of_words(words: NDArray[np.uint64], run: int) -> Bytes:
    """Returns the same as `_halves`, for runs of `run` words."""
    out = np.empty((len(words), 2 * words.shape[1]), np.uint64)
    for column in range(words.shape[1]):
        place = column + column // run * run
        out[:, place] = words[:, column] & _LOW
        out[:, place + run] = words[:, column] >> _FOUR & _LOW
    return out.view(np.uint8)


def _quarters(blocks: Bytes) -> Bytes:
    """Returns, for each run of 32 bytes, the lowest two bits of all its bytes, then the next two, up to the highest."""
    runs = blocks.reshape(len(blocks), -1, 1, 32)
    return ((runs >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3).reshape(len(blocks), -1)


def _planes(blocks: Bytes) -> Bytes:
    """Returns the lowest bits of 32 bytes, then their next bits, up to the highest bits."""
    return ((blocks[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1).reshape(
        len(blocks), -1
    )


def _bits(blocks: Bytes) -> Bytes:
    return np.unpackbits(np.ascontiguousarray(blocks), axis=1, bitorder="little")


def _joined(low: Bytes, high: Bytes, offset: int = 0, *, shift: int = 4) -> Bytes:
    numbers: Bytes = (low | high << shift) + offset
    return numbers


def _half(blocks: Bytes, start: int = 0) -> Floats:
    """Returns the float16 at `start` of each block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _one_scale(blocks: Bytes) -> tuple[Floats, None]:
    return _half(blocks), None


def _scale_and_minimum(blocks: Bytes) -> tuple[Floats, Floats]:
    return _half(blocks), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Bytes:
    return _joined(_halves(blocks[:, 6:], 16), _bits(blocks[:, 2:6]), _MIDDLE - 16)


def _q5_1(blocks: Bytes) -> Bytes:
    return _joined(_halves(blocks[:, 8:], 16), _bits(blocks[:, 4:8]))


def _q2_k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    of_groups = blocks[:, :16]
    return _half(blocks, 80) * (of_groups & 15), -(_half(blocks, 82) * (of_groups >> 4))


def _q3_k(blocks: Bytes) -> Bytes:
    low, high = _quarters(blocks[:, 32:96]), _planes(blocks[:, :32])
    return _joined(low, high, 4, shift=2)  # from -4, as from -8


def _q3_k_scales(blocks: Bytes) -> tuple[Floats, None]:
    low = _halves(blocks[:, 96:104], 8)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = ((blocks[:, None, 104:108] >> shifts) & 3).reshape(len(blocks), -1)
    return _half(blocks, 108) * ((low | high << 4).astype(np.float32) - 32), None


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Returns scales and minimums of Q4_K and Q5_K, of six bits each.

    The bytes of the first groups also have the upper two bits of the last groups.
    """
    scales, minimums, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    of_groups = np.hstack((scales & 63, (rest & 15) | (scales >> 6) << 4))
    below = np.hstack((minimums & 63, (rest >> 4) | (minimums >> 6) << 4))
    return _half(blocks) * of_groups, -(_half(blocks, 2) * below)


def _q5_k(blocks: Bytes) -> Bytes:
    return _joined(_halves(blocks[:, 48:], 32), _planes(blocks[:, 16:48]))


def _q6_k(blocks: Bytes) -> Bytes:
    return _joined(_halves(blocks[:, :128], 64), _quarters(blocks[:, 128:192]), _MIDDLE - 32)


def _q6_k_scales(blocks: Bytes) -> tuple[Floats, None]:
    return _half(blocks, 208) * blocks[:, 192:208].view(np.int8), None


def _iq4_xs(blocks: Bytes) -> Bytes:
    return _IQ4_NUMBERS.take(_halves(blocks[:, 8:], 16))


def _iq4_xs_scales(blocks: Bytes) -> tuple[Floats, None]:
    low = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=2).reshape(len(blocks), 8)
    high = (
        np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    )
    return _half(blocks) * ((low | high << 4).astype(np.float32) - 32), None


def _mxfp4_scales(blocks: Bytes) -> tuple[Floats, None]:
    return scales_of_doubles(blocks[:, :1]), None


def _small(
    name: str, num_bytes: int, bits: int, numbers: _Numbers, *, has_minimum: bool = False
) -> BlockType:
    """Returns a type whose blocks are one group each; its scales have their stored type."""
    offset, scales = ("minimums", _scale_and_minimum) if has_minimum else ("symmetric", _one_scale)
    form = GroupFormat(bits, 32, offset, "float16")
    return BlockType(name, 32, num_bytes, form=form, numbers=numbers, scales=scales)


def _large(
    name: str, num_bytes: int, group: tuple[int, int, str], numbers: _Numbers, scales: _Scales
) -> BlockType:
    """Returns a type whose blocks have several groups with the bits and size in `group`; its scales are products."""
    form = GroupFormat(*group, "float32")
    return BlockType(name, 256, num_bytes, form=form, numbers=numbers, scales=scales)


TYPES: Mapping[int, BlockType] = MappingProxyType(
    {
        0: BlockType("F32", 1, 4, "float32"),
        1: BlockType("F16", 1, 2, "float16"),
        30: BlockType("BF16", 1, 2, "bfloat16"),
        2: _small("Q4_0", 18, 4, InHalves(2, 16)),
        3: _small("Q4_1", 20, 4, InHalves(4, 16), has_minimum=True),
        6: _small("Q5_0", 22, 8, _q5_0),
        7: _small("Q5_1", 24, 8, _q5_1, has_minimum=True),
        8: _small("Q8_0", 34, 8, lambda b: b[:, 2:] ^ _MIDDLE),
        10: _large("Q2_K", 84, (4, 16, "minimums"), lambda b: _quarters(b[:, 16:80]), _q2_k_scales),
        11: _large("Q3_K", 110, (4, 16, "symmetric"), _q3_k, _q3_k_scales),
        12: _large("Q4_K", 144, (4, 32, "minimums"), InHalves(16, 32), _k_scales),
        13: _large("Q5_K", 176, (8, 32, "minimums"), _q5_k, _k_scales),
        14: _large("Q6_K", 210, (8, 16, "symmetric"), _q6_k, _q6_k_scales),
        20: _small("IQ4_NL", 18, 8, lambda b: _IQ4_NUMBERS.take(_halves(b[:, 2:], 16))),
        23: _large("IQ4_XS", 136, (8, 32, "symmetric"), _iq4_xs, _iq4_xs_scales),
        39: BlockType("MXFP4", 32, 17, None, MXFP4, InHalves(1, 16), _mxfp4_scales),
    }
)
UNREAD_TYPES: Mapping[int, str] = MappingProxyType(
    {
        9: "Q8_1",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        21: "IQ3_S",
        22: "IQ2_S",
        24: "I8",
        25: "I16",
        26: "I32",
        27: "I64",
        28: "F64",
        29: "IQ1_M",
        34: "TQ1_0",
        35: "TQ2_0",
        40: "NVFP4",
        41: "Q1_0",
    }
)
