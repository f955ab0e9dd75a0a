"""Whisper's input: the logarithm of a spectrogram in mels, as transformers' feature extractor makes it."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from weft.media.sounds.resample import Wave

FFT, HOP = 400, 160  # samples of a column, and from one column to the next, at 16 kHz
_RATE = 16_000
_TOP = 8000.0  # highest frequency
_LEAST_POWER = 1e-10
_PIECE = 3000  # columns that are computed at once: it bounds the memory
_RANGE = 8.0  # decades below the highest power; lower powers are raised to there


def log_mel(wave: Wave, num_mels: int, num_columns: int) -> NDArray[np.float32]:
    """Returns [columns, mels] of the beginning of a wave, with silence behind its end."""
    samples = np.zeros(num_columns * HOP, np.float32)
    given = wave[: len(samples)]
    samples[: len(given)] = given
    return whole_log_mel(samples, num_mels)


def whole_log_mel(wave: Wave, num_mels: int) -> NDArray[np.float32]:
    """Returns [columns, mels] of a whole wave, whose last samples are in no column if they fill none."""
    padded = np.pad(wave, FFT // 2, mode="reflect")
    columns = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP][: len(wave) // HOP]
    pieces = range(0, len(columns), _PIECE)
    mels = np.concatenate([_log_power(columns[i : i + _PIECE], num_mels) for i in pieces])
    mels = np.maximum(mels, mels.max() - _RANGE)
    result: NDArray[np.float32] = ((mels + 4.0) / 4.0).astype(np.float32)
    return result


def _log_power(columns: NDArray[np.float32], num_mels: int) -> NDArray[np.float64]:
    spectrum = np.fft.rfft(columns * _window(), axis=1)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    logarithm: NDArray[np.float64] = np.log10(np.maximum(power @ _filters(num_mels), _LEAST_POWER))
    return logarithm


@lru_cache(maxsize=1)
def _window() -> NDArray[np.float64]:
    """Returns Hann's window, as of a period."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)


@lru_cache(maxsize=4)
def _filters(num_mels: int) -> NDArray[np.float64]:
    """Returns triangles from each frequency of the spectrum to the mels, of the same area each: [frequencies, mels]."""
    edges = _hertz(np.linspace(0, _mel(_TOP), num_mels + 2))
    frequencies = np.linspace(0, _RATE / 2, FFT // 2 + 1)[:, None]
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies - low) / (centre - low)
    falling = (high - frequencies) / (high - centre)
    return np.maximum(np.minimum(rising, falling), 0) * (2 / (high - low))


# Slaney's scale: linear up to 1 kHz, and logarithmic from there on.
_KNEE_HZ, _HZ_PER_MEL = 1000.0, 200.0 / 3
_KNEE_MEL = _KNEE_HZ / _HZ_PER_MEL
_STEP = np.log(6.4) / 27


def _mel(hertz: float) -> float:
    if hertz < _KNEE_HZ:
        return hertz / _HZ_PER_MEL
    return float(_KNEE_MEL + np.log(hertz / _KNEE_HZ) / _STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _KNEE_HZ * np.exp(_STEP * (mels - _KNEE_MEL))
    return np.where(mels < _KNEE_MEL, mels * _HZ_PER_MEL, above)
