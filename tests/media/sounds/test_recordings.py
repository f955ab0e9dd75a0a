"""Files to waves: formats, rates, channels, limits and damage."""

import io
import struct
import tracemalloc
import wave as waves
from contextlib import suppress

import numpy as np
import pytest

from weft.core.errors import BadRequest
from weft.media.sounds.recordings import MAX_SECONDS, RATE, decode_sound
from weft.media.sounds.resample import resample


def tone(rate, seconds=0.5, pitch=440.0):
    return 0.5 * np.sin(2 * np.pi * pitch * np.arange(int(rate * seconds)) / rate)


def wav(samples, rate=RATE, kind="<i2"):
    """A file of these samples, [frames] or [frames, channels], from -1 to 1."""
    frames = np.atleast_2d(np.asarray(samples, np.float64).T).T
    if kind == "u1":
        raw = np.round(frames * 127 + 128).astype("u1").tobytes()
    elif kind == "i3":
        whole = np.round(frames * (2**23 - 1)).astype("<i4")
        raw = whole.view("u1").reshape(-1, 4)[:, :3].tobytes()
    elif kind[1] == "f":
        raw = frames.astype(kind).tobytes()
    else:
        raw = np.round(frames * (2 ** (8 * int(kind[2]) - 1) - 1)).astype(kind).tobytes()
    size = int(kind[-1])
    return wav_file(raw, rate, frames.shape[1], size, tag=3 if kind[1] == "f" else 1)


def wav_file(raw, rate=RATE, channels=1, size=2, tag=1):
    form = struct.pack(
        "<HHIIHH", tag, channels, rate, rate * channels * size, channels * size, 8 * size
    )
    body = (
        b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(raw)) + raw
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def inner(made, wanted):
    """Both without their first and last tenth of a second, where a filter sees the edge."""
    edge = RATE // 10
    return made[edge:-edge], wanted[edge : len(made) - edge]


@pytest.mark.parametrize(
    ("kind", "error"),
    [("u1", 1e-2), ("<i2", 1e-4), ("i3", 1e-6), ("<i4", 1e-6), ("<f4", 1e-6), ("<f8", 1e-6)],
)
def test_samples_of_every_format_are_read(kind, error):
    """Within a step of the format."""
    made = decode_sound(wav(tone(RATE), kind=kind))
    np.testing.assert_allclose(made, tone(RATE), atol=error)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 24000, 44100, 48000, 96000, 192000, 12345])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_rates_and_channels_end_at_one_of_16_khz(rate, channels):
    """A tone keeps its pitch, its time and its height; channels are averaged."""
    samples = np.stack([tone(rate)] * channels, axis=1)
    samples[:, 1:] *= 0.5
    made = decode_sound(wav(samples, rate, kind="<f4"))
    assert abs(len(made) - RATE // 2) <= 1
    height = (1 + 0.5 * (channels - 1)) / channels
    np.testing.assert_allclose(*inner(made, height * tone(RATE)), atol=1e-3)


def test_what_the_lower_rate_cannot_hold_is_removed():
    """A tone above 8 kHz does not come back as a lower one."""
    made = decode_sound(wav(tone(48_000, pitch=10_000.0), 48_000, kind="<f4"))
    assert np.abs(inner(made, made)[0]).max() < 1e-3


def test_resampling_is_that_of_a_filter_in_double_precision():
    """The product with a matrix equals the sum at each place, for a ratio that is no whole number."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(4410).astype(np.float32)
    there = resample(noise, 44_100, 16_000)
    back = resample(np.pad(noise, (441, 0)), 44_100, 16_000)[160:]
    np.testing.assert_allclose(there, back, atol=1e-5)  # ten milliseconds later, the same


@pytest.mark.parametrize("rate", [1001, 1999, 4001, 7993, 44_101])
def test_unusual_rates_need_little_memory(rate):
    """A short recording may state any rate. The filters for it are bounded, and so is the error of its length."""
    tracemalloc.start()
    made = resample(np.zeros(rate, np.float32), rate, RATE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert abs(len(made) - RATE) <= RATE // 1000
    assert peak < 80e6


def test_headers_of_other_writers_are_read():
    """Chunks of any name stand before the samples, and an extensible header names the format further behind."""
    samples = tone(RATE)
    file = io.BytesIO()
    with waves.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(np.round(samples * 32767).astype("<i2").tobytes())
    data = file.getvalue()
    listed = data[:12] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + data[12:]
    extensible = struct.pack("<HHIIHHHHIH", 0xFFFE, 1, RATE, 2 * RATE, 2, 16, 22, 16, 4, 1) + bytes(
        14
    )
    other = data[:12] + b"fmt " + struct.pack("<I", len(extensible)) + extensible + data[36:]
    for one in (data, listed, other):
        np.testing.assert_allclose(decode_sound(one), samples, atol=1e-4)


@pytest.mark.filterwarnings("error")
def test_floats_beyond_the_range_are_clipped():
    """And so are those that are no numbers, without a warning in the server's log."""
    made = decode_sound(wav([1e300, -1e300, np.inf, np.nan] * 100, kind="<f8"))
    np.testing.assert_array_equal(made[:4], [1, -1, 1, 0])


def test_a_file_that_ends_early_is_its_beginning():
    """Recorders that are stopped write such files, and so do programs that write to a pipe."""
    data = wav(tone(RATE))
    assert len(decode_sound(data[:-4000])) == RATE // 2 - 2000
    endless = data[:40] + b"\xff\xff\xff\xff" + data[44:]
    assert len(decode_sound(endless)) == RATE // 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"RIFF\x00\x00\x00\x00WAVE", "no samples"),
        (wav([]), "no samples"),
        (wav_file(b"\0" * 64, tag=6, size=1), "format 6"),
        (wav_file(b"\0" * 64, rate=0), "from 1000 to 384000 samples a second, and this one has 0"),
        (wav_file(b"\0" * 64, rate=10**6), "samples a second"),
        (wav_file(b"\0" * 64, channels=9), "from 1 to 8 channels, and this one has 9"),
        (wav_file(b"\0" * 64, channels=0), "no channels"),
        (
            wav_file(bytes(16_002 * MAX_SECONDS), rate=8000),
            "maximum allowed duration of 600 seconds",
        ),
        (wav_file(bytes(28_800_001), rate=384_000, size=1), "and may have 28800000"),
        (wav(tone(RATE))[:30], "no samples"),
        (b"RIFF\x00\x00\x00\x00WAVE" + b"none\0\0\0\0" * 1001 + wav([1])[12:], "no samples"),
    ],
    ids=[
        "empty",
        "nothing",
        "format",
        "rate 0",
        "rate",
        "channels",
        "no channel",
        "seconds",
        "samples",
        "cut",
        "chunks",
    ],
)
def test_what_is_no_recording_is_refused(data, words):
    """With the field's name, and what is allowed."""
    with pytest.raises(BadRequest) as caught:
        decode_sound(data)
    assert caught.value.parameter == "file"
    assert words in str(caught.value)


def test_other_formats_need_a_library(monkeypatch):
    """The server's operator reads how to install it."""
    monkeypatch.setattr("weft.media.sounds.recordings.find_spec", lambda name: None)
    with pytest.raises(BadRequest, match="need soundfile on the server: pip install"):
        decode_sound(b"fLaC" + bytes(100))


@pytest.mark.parametrize("kind", ["FLAC", "MP3", "OGG"])
def test_other_formats_are_decoded(kind):
    """Where soundfile is installed; noise stays within a tenth of it."""
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, tone(44_100), 44_100, format=kind)
    made = decode_sound(file.getvalue())
    assert abs(len(made) - RATE // 2) < RATE // 10
    assert 0.4 < np.abs(made).max() < 0.6
    with pytest.raises(BadRequest, match="not a WAV, FLAC, MP3 or OGG file"):
        decode_sound(b"no sound at all" * 10)


def test_damaged_files_end_in_a_sentence_or_a_wave():
    """A thousand files with wrong bytes in their first hundred, or without their end."""
    rng = np.random.default_rng(1)
    good = wav(tone(RATE, 0.05))
    for _ in range(1000):
        data = bytearray(good[: rng.integers(1, len(good))])
        for at in rng.integers(0, min(len(data), 100), rng.integers(0, 6)):
            data[at] = rng.integers(256)
        with suppress(BadRequest):
            assert np.isfinite(decode_sound(bytes(data))).all()
