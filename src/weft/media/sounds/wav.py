"""Reads WAV files: whole numbers of 8 to 32 bits, and floats."""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_MAX_CHUNKS = 1000  # before the samples: a file of many empty chunks would take seconds


@dataclass(frozen=True, slots=True)
class WavHeader:
    """Format of the samples, and their place in the file. A frame has a sample for each channel."""

    rate: int
    num_channels: int
    sample_bytes: int
    is_float: bool
    start: int
    num_frames: int


def is_wav(data: bytes) -> bool:
    """True if the file begins as WAV files do."""
    return data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE"


def read_header(data: bytes) -> WavHeader:
    """Returns the header; raises `ValueError` for a file without one, and for other formats of samples.

    A file may be shorter than its header says, as it is if its end has been cut off, or if it was written to a pipe.
    """
    at, form = 12, b""
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(data):
            break
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8
        if name == b"fmt ":
            form = data[at : at + size]
        elif name == b"data":
            return _header(form, at, min(size, len(data) - at))
        at += size + size % 2
    raise ValueError("the recording has no samples")


def _header(form: bytes, start: int, num_bytes: int) -> WavHeader:
    if len(form) < 16:
        raise ValueError("the header does not state the format of the samples")
    kind, num_channels, rate, _, _, bits = struct.unpack("<HHIIHH", form[:16])
    if kind == _EXTENSIBLE and len(form) >= 26:
        kind = int.from_bytes(form[24:26], "little")
    if (kind, bits) not in {(_PCM, b) for b in (8, 16, 24, 32)} | {(_FLOAT, 32), (_FLOAT, 64)}:
        raise ValueError(f"samples of format {kind} with {bits} bits are not supported")
    if not num_channels:
        raise ValueError("the recording has no channels")
    frame_bytes = num_channels * bits // 8
    return WavHeader(rate, num_channels, bits // 8, kind == _FLOAT, start, num_bytes // frame_bytes)


def read_frames(data: bytes, header: WavHeader) -> NDArray[np.float32]:
    """Returns the samples from -1 to 1, [frames, channels]."""
    size, count = header.sample_bytes, header.num_frames * header.num_channels
    if header.is_float:
        samples = np.frombuffer(data, f"<f{size}", count, header.start).astype(np.float32)
    elif size == 1:  # without a sign
        samples = np.frombuffer(data, np.uint8, count, header.start).astype(np.float32)
        samples = (samples - 128) / np.float32(128)
    elif size == 3:
        parts = np.frombuffer(data, np.uint8, 3 * count, header.start).reshape(-1, 3)
        wide = np.zeros((count, 4), np.uint8)
        wide[:, 1:] = parts
        samples = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    else:
        whole = np.frombuffer(data, f"<i{size}", count, header.start)
        samples = whole.astype(np.float32) / np.float32(2 ** (8 * size - 1))
    return samples.reshape(-1, header.num_channels)
