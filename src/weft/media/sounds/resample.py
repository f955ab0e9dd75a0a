"""Changes the rate of a wave: a low-pass filter at each new sample's place, as one product of matrices."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Wave = NDArray[np.float32]

_CROSSINGS = 24  # of the sinc function, on either side of a sample
_BETA = 9.0  # of the Kaiser window: about 90 dB of attenuation
_PASSED = 0.94  # share of the lower rate's band that passes in full
_MOST_STEPS = 1000  # a ratio of rates is rounded to a fraction with no number above this: it bounds the matrix
_BLOCK = 256  # minimum of a product's width, in samples of the higher rate


def resample(wave: Wave, rate: int, new_rate: int) -> Wave:
    """Returns the wave at another rate. The result begins at the same time, and is as long, rounded up to a sample."""
    if rate == new_rate or not len(wave):
        return wave
    if rate < new_rate:
        ratio = 1 / Fraction(rate, new_rate).limit_denominator(_MOST_STEPS)
    else:
        ratio = Fraction(new_rate, rate).limit_denominator(_MOST_STEPS)
    times = -(-_BLOCK // max(ratio.numerator, ratio.denominator))
    into, out = ratio.denominator * times, ratio.numerator * times
    matrix, reach = _filters(into, out, float(ratio))
    num_blocks = -(-len(wave) // into)
    padded = np.zeros((num_blocks * into) + 2 * reach, np.float32)
    padded[reach : reach + len(wave)] = wave
    rows = np.lib.stride_tricks.sliding_window_view(padded, into + 2 * reach)[::into]
    made = np.empty((num_blocks, out), np.float32)
    for begin in range(0, num_blocks, 4096):  # a product copies its rows
        made[begin : begin + 4096] = rows[begin : begin + 4096] @ matrix
    return made.reshape(-1)[: -(-len(wave) * ratio.numerator // ratio.denominator)]


def _filters(into: int, out: int, ratio: float) -> tuple[Wave, int]:
    """Returns the matrix from a block of samples, with `reach` samples on either side, to a block of new ones; and
    the reach.
    """
    width = min(1.0, ratio) * _PASSED  # of the band that passes, in units of the given rate
    reach = int(np.ceil(_CROSSINGS / width))
    places = np.arange(out) * (into / out)  # of the new samples
    away = np.arange(-reach, into + reach)[:, None] - places
    shape = np.sqrt(np.maximum(1 - (away / reach) ** 2, 0))
    window = np.where(np.abs(away) < reach, np.i0(_BETA * shape) / np.i0(_BETA), 0)
    return (width * np.sinc(width * away) * window).astype(np.float32), reach
