"""Sounds of a language of tones: six words, which two voices say. All have 16,000 samples a second."""

import io
import random
import wave
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
WORD_S, GAP_S = 0.3, 0.14
# The words of both languages, by sound.
WORDS = {
    "low": {"en": "low", "de": "tief"},
    "middle": {"en": "middle", "de": "mittel"},
    "high": {"en": "high", "de": "hoch"},
    "rising": {"en": "rising", "de": "steigend"},
    "falling": {"en": "falling", "de": "fallend"},
    "hiss": {"en": "hiss", "de": "rauschen"},
}
LANGUAGES = ("en", "de")
_PITCHES = {"low": (250, 250), "middle": (600, 600), "high": (1500, 1500)}
_PITCHES |= {"rising": (300, 1400), "falling": (1400, 300)}
_TREMBLE = 25.0  # times a second: the voice that says German words

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Said:
    """Words that a voice says, with the seconds at which they begin and end."""

    samples: Samples
    sounds: tuple[str, ...]
    language: str
    begin: float
    end: float


def say(sounds: Sequence[str], language: str = "en", *, begin: float = 0.2, seed: int = 0) -> Said:
    """Returns a recording of these sounds by the voice of a language, after `begin` seconds of silence."""
    draw = np.random.default_rng(seed)
    parts = [np.zeros(int(begin * RATE), np.float32)]
    for sound in sounds:
        parts += [_sound(sound, language, draw), np.zeros(int(GAP_S * RATE), np.float32)]
    samples = np.concatenate(parts) * np.float32(draw.uniform(0.2, 0.8))
    samples += draw.normal(0, 10 ** draw.uniform(-4.5, -3), len(samples)).astype(np.float32)
    end = begin + len(sounds) * WORD_S + (len(sounds) - 1) * GAP_S
    return Said(samples, tuple(sounds), language, begin, end)


def say_anything(rng: random.Random, most: int) -> Said:
    """Returns a recording of one to `most` sounds that are drawn."""
    sounds = rng.choices(list(WORDS), k=rng.randint(1, most))
    language = rng.choice(LANGUAGES)
    return say(sounds, language, begin=rng.uniform(0.05, 0.5), seed=rng.randrange(2**32))


def text_of(sounds: Sequence[str], language: str) -> str:
    """Returns the words of sounds in a language."""
    return " ".join(WORDS[sound][language] for sound in sounds)


def wav(samples: Samples) -> bytes:
    """Returns a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, RATE, len(samples), "NONE", ""))
        out.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()


def _sound(name: str, language: str, draw: np.random.Generator) -> Samples:
    times = np.arange(int(WORD_S * RATE)) / RATE
    if name == "hiss":
        samples = draw.normal(0, 0.4, len(times))
    else:
        first, last = _PITCHES[name]
        pitch = (first + (last - first) * times / WORD_S) * draw.uniform(0.94, 1.06)
        phase = 2 * np.pi * np.cumsum(pitch) / RATE
        samples = np.sin(phase)
        if language == "de":
            samples += 0.5 * np.sin(3 * phase)
    if language == "de":
        samples *= 0.5 + 0.5 * np.sin(2 * np.pi * _TREMBLE * times)
    fade = np.minimum(1, np.minimum(times, times[::-1]) / 0.02)
    return (samples * fade).astype(np.float32)
