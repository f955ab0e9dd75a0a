"""Videos are decoded within limits that their headers are checked against; damaged ones end in a sentence."""

import random

import numpy as np
import pytest

from tests.doubles.videos import decoded, frames, video
from weft.core.errors import BadRequest
from weft.core.values.media import Media, MediaItem
from weft.media import videos
from weft.media.videos import VideoFacts, check_videos, decode_frames, read_facts


@pytest.mark.parametrize(
    ("codec", "form"),
    [
        ("libx264", "mp4"),
        ("libx264", "mov"),
        ("libvpx-vp9", "webm"),
        ("mpeg4", "avi"),
        ("mjpeg", "matroska"),
    ],
)
def test_every_container_gives_its_frames(codec, form):
    """Facts are those of the file, and frames those that the library decodes."""
    data = video(9, codec=codec, form=form)
    assert read_facts(data) == VideoFacts(9, 6.0, 64, 48)
    chosen = [np.asarray(one) for one in decode_frames(data, [0, 4, 8])]
    np.testing.assert_array_equal(chosen, decoded(data)[[0, 4, 8]])
    assert np.abs(np.array(chosen, np.int16) - frames(9)[[0, 4, 8]]).mean() < 12


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a video in one of the formats MP4, MOV, WebM, Matroska or AVI"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "not a video in one of the formats"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "not a video in one of the formats"),
        (video(9)[:-200], "cannot be decoded|no pictures|cut off"),
        (video(1), "at least 2 frames, and this one has 1"),
        (video(4, codec="wmv2", form="avi"), "codec of a video must be one of h264"),
    ],
    ids=["nothing", "playlist", "list of files", "cut off", "one frame", "another codec"],
)
def test_files_that_are_no_videos_are_refused(data, says):
    """A sentence says why; a file that names other files is none."""
    with pytest.raises(BadRequest, match=f"^video: .*({says})"):
        read_facts(data)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("MAX_SECONDS", 2, "may last 2 seconds together, and last 3"),
        ("MAX_DECODED_PIXELS", 50_000, "may have 50000 pixels together, and have 55296"),
        ("_MAX_FRAME_PIXELS", 3000, "a frame may have 3000 pixels, and it is 64 x 48"),
    ],
)
def test_videos_beyond_the_limits_are_refused_by_their_headers(name, value, says, monkeypatch):
    """Two videos of a second and a half together."""
    monkeypatch.setattr(videos, name, value)
    items = [MediaItem(modality="video", data=video(9)) for _ in range(2)]
    with pytest.raises(BadRequest, match=says):
        check_videos(Media(items=items))


def test_damaged_videos_end_in_a_sentence():
    """Truncated files and flipped bytes: a `BadRequest` for the field, or frames."""
    whole = [video(12), video(12, codec="libvpx-vp9", form="webm")]
    draw = random.Random(7)
    errors = []
    for number in range(120):
        data = bytearray(whole[number % 2])
        for _ in range(number % 7):
            data[draw.randrange(len(data))] = draw.randrange(256)
        end = draw.randrange(1, len(data)) if number % 3 == 0 else len(data)
        errors.append(_refusal(bytes(data[:end])))
    refused = [error for error in errors if error is not None]
    assert 40 < len(refused) < 120
    assert {error.parameter for error in refused} == {"video"}
    assert all(str(error).startswith("video: ") for error in refused)


def _refusal(data: bytes) -> BadRequest | None:
    try:
        last = read_facts(data).num_frames - 1
        assert all(picture.mode == "RGB" for picture in decode_frames(data, [0, last]))
    except BadRequest as error:
        return error
    return None
