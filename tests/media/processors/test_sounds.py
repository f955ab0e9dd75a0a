"""Sounds become the columns and the numbers of tokens that transformers' own processors make of them."""

import io
import wave

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from tests.doubles.hearing import extractor_of, silence
from tests.doubles.whisper import sound
from weft.core.errors import BadRequest
from weft.core.values.media import Media, MediaItem
from weft.core.values.pictures import ItemTokens, SoundEnds, Spectrograms
from weft.media.limits import MediaLimits
from weft.media.processors.sound_processor import SoundProcessor
from weft.media.sounds.recordings import RATE, decode_sound

MELS, PLACEHOLDER = 16, 7
QWEN = Spectrograms(num_mels=MELS, num_columns=3000, num_joined=2, ends=SoundEnds.CUT)
VOXTRAL = Spectrograms(num_mels=MELS, num_columns=3000, num_joined=4, ends=SoundEnds.WHOLE)
ASR = Spectrograms(num_mels=MELS, num_columns=100, ends=SoundEnds.CHUNKS)
EXTRACTOR = WhisperFeatureExtractor(feature_size=MELS)


def processor(settings: Spectrograms) -> SoundProcessor:
    """A processor of sounds, which encodes no text."""
    return SoundProcessor(settings, ItemTokens(anchor=PLACEHOLDER, placeholder=PLACEHOLDER), list)


def file_of(seconds: float, *, rate: int = RATE, channels: int = 1) -> bytes:
    """A WAV file of noise, other noise in each channel."""
    count = round(seconds * rate)
    noise = np.random.default_rng(3).integers(-16_000, 16_000, (count, channels))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(noise.astype("<i2").tobytes())
    return file.getvalue()


FILES = {
    "short": file_of(0.05),
    "odd rows": file_of(0.25),
    "samples beyond a column": file_of(1.0003),
    "whole window": file_of(30),
    "8 kHz": file_of(1.5, rate=8000),
    "192 kHz, six channels": file_of(0.5, rate=192_000, channels=6),
    "44.1 kHz, two channels": file_of(0.9, rate=44_100, channels=2),
    "silence": sound(0.7, 0.0),
}


def columns_of(item) -> np.ndarray:
    return np.frombuffer(item.columns, np.float32).reshape(-1, MELS)


@pytest.mark.parametrize("name", FILES)
def test_qwen2_audio_hears_the_columns_of_a_sound_up_to_its_end(name):
    """Columns within 1e-4 of transformers', as many as its mask has, and the one behind them; tokens by its formula."""
    data = FILES[name]
    item = processor(QWEN).prepare(data, "hash")
    made = EXTRACTOR(
        decode_sound(data), sampling_rate=RATE, padding="max_length", return_attention_mask=True,
        return_tensors="np",
    )  # fmt: skip
    length = int(made.attention_mask.sum())
    num_rows = (length - 1) // 2 + 1
    num_tokens = (num_rows - 2) // 2 + 1
    assert item.token_ids == [PLACEHOLDER] * num_tokens
    assert item.runs == [(0, num_tokens)]
    wanted = made.input_features[0].T[: 2 * num_rows + 1]
    np.testing.assert_allclose(columns_of(item), wanted, atol=1e-4)


@pytest.mark.parametrize("seconds", [0.3, 30, 31, 61])
def test_voxtral_hears_whole_windows_of_a_sound_of_any_length(seconds):
    """Silence fills the last window, and 375 tokens stand for each."""
    data = sound(seconds)
    item = processor(VOXTRAL).prepare(data, "hash")
    made = EXTRACTOR(
        decode_sound(data), sampling_rate=RATE, padding=True, truncation=False,
        pad_to_multiple_of=480_000, return_tensors="np",
    )  # fmt: skip
    wanted = made.input_features[0].T
    assert len(item.token_ids) == len(wanted) // 8
    np.testing.assert_allclose(columns_of(item), wanted, atol=1e-4)


@pytest.mark.parametrize("name", FILES)
def test_qwen3_asr_hears_chunks_that_end_with_the_sound(name):
    """Columns of the sound alone, at least half a second; a token for eight of them in each chunk."""
    data = FILES[name]
    item = processor(ASR).prepare(data, "hash")
    made = extractor_of("qwen3_asr")(
        decode_sound(data), sampling_rate=RATE, padding=True, return_attention_mask=True,
        return_tensors="np",
    )  # fmt: skip
    length = int(made.attention_mask.sum())
    assert len(item.token_ids) == length // 100 * 13 + -(-(length % 100) // 8)
    wanted = made.input_features[0].T[:length]
    np.testing.assert_allclose(columns_of(item), wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "files", "words"),
    [
        (QWEN, [silence(30.01)], "exceed the maximum allowed duration of 30 seconds"),
        (VOXTRAL, [silence(600.1)], "exceed the maximum allowed duration of 600 seconds"),
        (VOXTRAL, [silence(301)] * 2, "may last 600 seconds together, and they last 602"),
        (QWEN, [b"no sound at all"], "audio: this is not a WAV"),
        (QWEN, [sound(1.0)[:40]], "no samples"),
    ],
    ids=["longer than a window", "longer than any", "together", "no sound", "cut"],
)
def test_headers_are_checked_before_anything_is_decoded(settings, files, words):
    """Refusals name the modality and what is allowed."""
    media = Media(items=[MediaItem(modality="audio", data=data) for data in files])
    with pytest.raises(BadRequest, match=words) as caught:
        processor(settings).check(media, MediaLimits())
    assert caught.value.parameter == "audio"


def test_a_sound_without_a_token_is_refused():
    """Four columns make a token of Qwen2-Audio's."""
    with pytest.raises(BadRequest, match=r"audio: .* at least 0.04 seconds"):
        processor(QWEN).prepare(sound(0.02), "hash")
    assert processor(QWEN).prepare(sound(0.04), "hash").token_ids == [PLACEHOLDER]


def test_arguments_of_the_processor_are_refused():
    """There are none to give."""
    with pytest.raises(BadRequest, match="'fps' is not supported"):
        processor(QWEN).changed("fps", 2)


def outcome(data: bytes) -> str:
    """The field that a refusal of a file names; nothing for a file that is heard."""
    media = Media(items=[MediaItem(modality="audio", data=data)])
    try:
        processor(QWEN).check(media, MediaLimits())
        processor(QWEN).prepare(data, "hash")
    except BadRequest as error:
        return error.parameter
    return ""


def test_damaged_files_are_read_or_refused_in_a_sentence():
    """No damage of a file raises anything but a `BadRequest` of the modality."""
    random, whole, ends = np.random.default_rng(5), file_of(0.1), []
    for _ in range(20):
        values = bytearray(whole[: int(random.integers(1, len(whole)))])
        for place in random.integers(0, min(len(values), 64), 3):
            values[place] = int(random.integers(256))
        ends.append(outcome(bytes(values)))
    assert "audio" in ends
    assert set(ends) <= {"", "audio"}
