"""Rotary position embedding: the frequencies of every `RopeKind`, and their application."""

import math
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from weft.compute.protocols.runner import FloatArray, IntArray
from weft.model.spec import RopeKind, RopeSpec

Wide = NDArray[np.float64]


def inverse_frequencies(rope: RopeSpec, max_model_len: int) -> FloatArray:
    """Returns the radians per position of each pair of elements, [dim / 2]."""
    exponents = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    return _scaled(rope, rope.theta**-exponents, max_model_len).astype(np.float32)


def _scaled(rope: RopeSpec, plain: Wide, max_model_len: int) -> Wide:
    match rope.kind:
        case RopeKind.DEFAULT:
            return plain
        case RopeKind.LINEAR:
            return plain / rope.factor
        case RopeKind.LLAMA3:
            return _llama3(rope, plain)
        case RopeKind.YARN:
            return _yarn(rope, plain)
        case RopeKind.LONGROPE:
            # All sequences use one set of frequencies: short and long sequences share cached keys.
            is_long = max_model_len > rope.original_max_position
            factors: Wide = np.asarray(rope.long_factors if is_long else rope.short_factors)
            return plain / factors
        case RopeKind.PROPORTIONAL:
            return np.where(np.arange(len(plain)) < rope.num_turned, plain / rope.factor, 0.0)
        case _:
            assert_never(rope.kind)


def _llama3(rope: RopeSpec, plain: Wide) -> Wide:
    """Returns the frequencies with slow ones divided by the factor, fast ones unchanged, and those in between
    blended.
    """
    turns = rope.original_max_position * plain / (2 * math.pi)  # turns over the trained length
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    unscaled: Wide = np.clip(blend, 0.0, 1.0)
    return (1 - unscaled) * plain / rope.factor + unscaled * plain


def _yarn(rope: RopeSpec, plain: Wide) -> Wide:
    """Returns the frequencies blended like those of llama3, but linearly in the element's index between two numbers
    of turns.
    """

    def element(turns: float) -> float:
        wavelength = rope.original_max_position / (turns * 2 * math.pi)
        return rope.dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = element(rope.beta_fast), element(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    high += 0.001 if low == high else 0
    stretched: Wide = np.clip((np.arange(rope.dim // 2) - low) / (high - low), 0.0, 1.0)
    return stretched * plain / rope.factor + (1 - stretched) * plain


def rotations(
    rope: RopeSpec, frequencies: FloatArray, positions: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Returns cosine and sine for each row, [rows, 1, dim / 2], which all heads share.

    `positions` are one per row, or one per row and pair.
    """
    of_pairs = positions[:, None] if positions.ndim == 1 else positions
    angles = of_pairs.astype(np.float32) * frequencies  # in float32, as in training
    wide = angles.astype(np.float64)
    cosine = (np.cos(wide) * rope.attention_factor).astype(np.float32)
    sine = (np.sin(wide) * rope.attention_factor).astype(np.float32)
    return cosine[:, None], sine[:, None]


def section_axes(sections: tuple[int, int, int], *, is_interleaved: bool) -> IntArray:
    """Returns, for each rotary pair, which of a row's three positions rotates it; `ModelSpec` explains sections."""
    if not is_interleaved:
        return np.repeat(np.arange(3, dtype=np.int32), sections)
    axes = np.zeros(sum(sections), np.int32)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


def rotate(
    heads: FloatArray, cosine: FloatArray, sine: FloatArray, *, is_interleaved: bool = False
) -> None:
    """Rotates [rows, heads, head_dim] in place; elements after the rotary ones are unchanged.

    Element i is paired with i + dim / 2, or, if `is_interleaved`, 2i with 2i + 1.
    """
    dim = 2 * cosine.shape[-1]
    here, there = slice(0, dim // 2), slice(dim // 2, dim)
    if is_interleaved:
        here, there = slice(0, dim, 2), slice(1, dim, 2)
    first, second = heads[..., here].copy(), heads[..., there].copy()
    heads[..., here] = first * cosine - second * sine
    heads[..., there] = second * cosine + first * sine
