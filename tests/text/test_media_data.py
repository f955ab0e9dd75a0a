"""Sounds of Python programs: samples become the file that a request would have."""

import numpy as np
import pytest

from weft.core.errors import BadRequest
from weft.media.sounds.recordings import RATE, decode_sound
from weft.text.media_data import read_media

WAVE = np.sin(np.arange(1600, dtype=np.float32))


def files_of(value) -> list[bytes | None]:
    """The files of a prompt's sounds."""
    media = read_media({"multi_modal_data": {"audio": value}})
    assert media is not None
    return [item.data for item in media.items]


def test_samples_with_their_rate_are_one_sound():
    """A pair is a sound, and a list may hold several; no sample changes."""
    [alone] = files_of((WAVE, RATE))
    assert alone is not None
    assert np.array_equal(decode_sound(alone), WAVE)
    assert files_of([(WAVE, RATE), (WAVE.astype(np.float64), 8000.0), alone])[::2] == [alone] * 2


@pytest.mark.parametrize(
    "value",
    [
        [(WAVE.reshape(2, -1), RATE)],
        [(WAVE.astype(np.int16), RATE)],
        [(WAVE, 0)],
        [(WAVE, float("nan"))],
        [WAVE],
        ["a.wav"],
    ],
    ids=["channels", "whole numbers", "no rate", "no number", "no pair", "name"],
)
def test_other_values_are_refused_with_what_is_allowed(value):
    """The error names the field and both forms."""
    with pytest.raises(BadRequest, match="audio must be the bytes of a file, or a pair") as caught:
        files_of(value)
    assert caught.value.parameter == "multi_modal_data"
