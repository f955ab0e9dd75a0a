"""Sounds of a realtime session: samples within limits, in base64, and as WAV files, which engines read.

Samples are those of the format audio/pcm: 16 bits with a sign, little-endian, 24,000 a second, one channel.
"""

import base64
import binascii
import struct
from dataclasses import dataclass
from typing import Final

from weft.core.errors import BadRequest, Overloaded

RATE: Final = 24_000
_SAMPLE_BYTES: Final = 2
# A multiple of 3, so that the base64 of a file is that of its header and that of its samples, one after the other.
_HEADER_BYTES: Final = 54
_PCM: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundLimits:
    """Limits of the sounds that a server keeps for sessions: in buffers, in items, and waiting to be transcribed.

    `max_bytes` is that of one session, and `max_bytes_of_all` that of all sessions together. At most `max_waiting`
    sounds of a session wait to be transcribed.
    """

    max_bytes: int = 8 * 2**20
    max_bytes_of_all: int = 512 * 2**20
    max_waiting: int = 16


class SoundRoom:
    """Counts the samples that all sessions of one server keep."""

    def __init__(self, limits: SoundLimits) -> None:
        self.limits = limits
        self.num_bytes = 0


class SoundAccount:
    """Counts the samples that one session keeps."""

    def __init__(self, room: SoundRoom) -> None:
        self._room = room
        self.num_bytes = 0

    def add(self, num_bytes: int, parameter: str) -> None:
        """Counts more samples; raises `BadRequest` or `Overloaded`, and counts none, if there is no room."""
        limits = self._room.limits
        if self.num_bytes + num_bytes > limits.max_bytes:
            seconds = limits.max_bytes // (RATE * _SAMPLE_BYTES)
            raise BadRequest(
                parameter,
                f"{parameter}: a session keeps {seconds} seconds of sound in its buffer and its items;"
                " commit or clear the buffer, or delete an item",
            )
        if self._room.num_bytes + num_bytes > limits.max_bytes_of_all:
            raise Overloaded("the sounds of all sessions together take the most memory they may")
        self.num_bytes += num_bytes
        self._room.num_bytes += num_bytes

    def remove(self, num_bytes: int) -> None:
        """Counts fewer samples."""
        self.num_bytes -= num_bytes
        self._room.num_bytes -= num_bytes

    def close(self) -> None:
        """Counts none any more."""
        self.remove(self.num_bytes)


class SoundBuffer:
    """The samples that a client has appended, and not committed yet."""

    def __init__(self, account: SoundAccount) -> None:
        self._account = account
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def append(self, audio: str) -> None:
        """Adds samples in base64."""
        data = to_samples(audio, "audio")
        self._account.add(len(data), "audio")
        self._data += data

    def take(self) -> bytes:
        """Empties the buffer; returns its samples, which are counted no longer. Raises `BadRequest` for none."""
        check_samples(len(self._data), "input_audio_buffer")
        data = bytes(self._data)
        self.clear()
        return data

    def clear(self) -> None:
        """Drops the samples."""
        self._account.remove(len(self._data))
        self._data.clear()


def to_samples(audio: str, parameter: str) -> bytes:
    """The bytes of a text in base64."""
    try:
        return base64.b64decode(audio, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(parameter, f"{parameter} must be samples in base64") from None


def check_samples(num_bytes: int, parameter: str) -> None:
    """Raises `BadRequest` for no samples, and for half of one."""
    if not num_bytes:
        raise BadRequest(parameter, f"{parameter} is empty: append samples first")
    if num_bytes % _SAMPLE_BYTES:
        raise BadRequest(parameter, f"{parameter} must hold whole samples of {_SAMPLE_BYTES} bytes")


def wav_file(samples: bytes) -> bytes:
    """The samples as a WAV file."""
    return _header(len(samples)) + samples


def wav_base64(audio: str) -> str:
    """Samples in base64 as a WAV file in base64."""
    return base64.b64encode(_header(num_samples_bytes(audio))).decode() + audio


def num_samples_bytes(audio: str) -> int:
    """Number of bytes of a valid text in base64."""
    return len(audio) // 4 * 3 - audio[-2:].count("=")


def _header(num_bytes: int) -> bytes:
    """The beginning of a WAV file with so many bytes of samples; `junk` is a chunk that readers skip."""
    form = (_PCM, 1, RATE, RATE * _SAMPLE_BYTES, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES)
    return b"".join(
        (
            struct.pack("<4sI4s", b"RIFF", _HEADER_BYTES - 8 + num_bytes, b"WAVE"),
            struct.pack("<4sI2x", b"junk", 2),
            struct.pack("<4sIHHIIHH", b"fmt ", 16, *form),
            struct.pack("<4sI", b"data", num_bytes),
        )
    )
