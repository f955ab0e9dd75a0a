"""Spectrograms beside transformers' own feature extractor."""

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from weft.media.sounds.log_mel import log_mel

RATE = 16_000


def speechlike(seconds, seed=0):
    """Swelling tones with noise."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * RATE)) / RATE
    tones = sum(np.sin(2 * np.pi * f * at * (1 + 0.02 * at)) for f in (120, 240, 510, 2300))
    wave = 0.1 * tones * (1 + np.sin(3 * at)) + 0.01 * rng.standard_normal(len(at))
    return wave.astype(np.float32)


@pytest.mark.parametrize(
    ("wave", "num_mels"),
    [
        (speechlike(3.7), 80),
        (speechlike(30), 80),
        (speechlike(31.5), 128),
        (np.zeros(RATE, np.float32), 80),
        (np.ones(RATE, np.float32), 80),
        (np.sign(speechlike(2)), 128),
        (np.array([0.5], np.float32), 80),
    ],
    ids=["short", "whole", "long", "silence", "constant", "clipped", "one sample"],
)
def test_columns_are_those_of_transformers(wave, num_mels):
    """Within 1e-4: theirs are computed in float32, with values of about 1."""
    extractor = WhisperFeatureExtractor(feature_size=num_mels)
    wanted = extractor(wave, sampling_rate=RATE, return_tensors="np").input_features[0]
    made = log_mel(wave, num_mels, 3000)
    assert made.shape == (3000, num_mels)
    np.testing.assert_allclose(made, wanted.T, atol=1e-4)
