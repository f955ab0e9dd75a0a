"""Decodes sounds to one channel of 16 kHz: limits are checked by the headers, before anything is decoded.

WAV files need no library. All others are read by `soundfile`, which is optional.
"""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import BadRequest
from weft.core.extras import how_to_install
from weft.media.sounds.resample import Wave, resample
from weft.media.sounds.wav import is_wav, read_frames, read_header

RATE = 16_000
MAX_SECONDS = 600
# 115 MB when they are decoded; at higher rates than 48 kHz a recording must be shorter.
_MAX_FRAMES = MAX_SECONDS * 48_000
_RATES = range(1_000, 384_001)
_MAX_CHANNELS = 8
_BLOCK_FRAMES = 1 << 18
_FIELD = "file"


@dataclass(frozen=True, slots=True)
class _Opened:
    """The facts of a file, and a function that decodes it to the mean of its channels."""

    rate: int
    num_channels: int
    num_frames: int
    read: Callable[[], Wave]


class _RefusedError(Exception):
    """A recording that is not decoded; the message says why."""


def decode_sound(data: bytes, field: str = _FIELD, max_seconds: float = MAX_SECONDS) -> Wave:
    """Returns the wave of a file, the mean of its channels.

    Raises `BadRequest` with this field for a file that is no sound, and for a sound beyond the limits.
    """
    try:
        wave, rate = _decode(data, max_seconds)
    except _RefusedError as error:
        raise BadRequest(field, f"{field}: {error}") from None
    np.nan_to_num(wave, copy=False, nan=0.0, posinf=1.0, neginf=-1.0)
    wave = resample(np.clip(wave, -1.0, 1.0, out=wave), rate, RATE)
    if not len(wave):
        raise BadRequest(field, f"{field}: the recording has no samples")
    return wave


def seconds_of(data: bytes, field: str, max_seconds: float) -> float:
    """Returns the duration in seconds that the header of a file declares; raises `BadRequest` as `decode_sound`."""
    try:
        opened = _opened(data, max_seconds)
    except _RefusedError as error:
        raise BadRequest(field, f"{field}: {error}") from None
    return opened.num_frames / opened.rate


def _decode(data: bytes, max_seconds: float) -> tuple[Wave, int]:
    opened = _opened(data, max_seconds)
    try:
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # damaged floats; the caller replaces them
            return opened.read(), opened.rate
    except MemoryError:
        raise _RefusedError("decoding the recording needs more memory than is free") from None
    # Readers raise errors of many types for damaged files.
    except Exception as error:
        raise _RefusedError(f"the recording cannot be decoded: {_line(error)}") from error


def _opened(data: bytes, max_seconds: float) -> _Opened:
    """Reads the header of a file, and checks the limits."""
    try:
        opened = _open(data)
    except _RefusedError:
        raise
    # As above.
    except Exception as error:
        raise _RefusedError(f"the recording cannot be decoded: {_line(error)}") from error
    _check(opened, max_seconds)
    return opened


def _check(opened: _Opened, max_seconds: float) -> None:
    if opened.rate not in _RATES:
        raise _refusal(f"from {_RATES[0]} to {_RATES[-1]} samples a second", opened.rate)
    if not 1 <= opened.num_channels <= _MAX_CHANNELS:
        raise _refusal(f"from 1 to {_MAX_CHANNELS} channels", opened.num_channels)
    seconds = opened.num_frames / opened.rate
    if seconds > max_seconds:
        shown = math.ceil(seconds * 10) / 10  # never rounded down to the limit
        raise _RefusedError(
            f"the {shown:g} seconds of the recording exceed the maximum allowed duration of {max_seconds:g} seconds"
        )
    if opened.num_frames > _MAX_FRAMES:
        raise _RefusedError(
            f"the recording has {opened.num_frames} samples a channel, and may have {_MAX_FRAMES}: send it "
            "with fewer samples a second"
        )


def _refusal(allowed: str, given: int) -> _RefusedError:
    return _RefusedError(f"a recording must have {allowed}, and this one has {given}")


def _open(data: bytes) -> _Opened:
    if is_wav(data):
        header = read_header(data)
        return _Opened(
            header.rate,
            header.num_channels,
            header.num_frames,
            lambda: _mean(read_frames(data, header)),
        )
    if find_spec("soundfile") is None:
        raise _RefusedError(
            "this is not a WAV file, and other formats need soundfile on the server: "
            f"{how_to_install('media')}"
        )
    library: Any = import_module("soundfile")
    try:
        info = library.info(io.BytesIO(data))
    except library.LibsndfileError as error:
        raise _RefusedError(f"this is not a WAV, FLAC, MP3 or OGG file: {_line(error)}") from None
    return _Opened(
        info.samplerate, info.channels, info.frames, lambda: _read_blocks(library, data, info)
    )


def _read_blocks(library: Any, data: bytes, info: Any) -> Wave:
    """Decodes no more frames than the header says: it may lie."""
    blocks, left = [], info.frames
    with library.SoundFile(io.BytesIO(data)) as file:
        while left > 0:
            block = file.read(min(left, _BLOCK_FRAMES), dtype="float32", always_2d=True)
            if not len(block):
                break
            blocks.append(_mean(block))
            left -= len(block)
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def _mean(frames: NDArray[np.float32]) -> Wave:
    mean: Wave = frames.mean(axis=1, dtype=np.float32)
    return mean


def _line(error: Exception) -> str:
    return ascii(" ".join(str(error).split())[:200]).strip("'\"")
