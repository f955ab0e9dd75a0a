"""Files that `weft chat` sends with a message."""

import pytest

from tests.doubles.videos import video
from tests.doubles.whisper import sound
from weft.cli.chat.attachments import read_attachment, text_of, with_attachments
from weft.core.errors import BadRequest


def test_each_kind_of_file_is_a_part_of_its_own(tmp_path):
    """The type of the data is that of the file's name; people read marks in place of the files."""
    (tmp_path / "a.mp4").write_bytes(video(2))
    (tmp_path / "a.wav").write_bytes(sound(0.1))
    film = read_attachment(tmp_path / "a.mp4", "video")
    heard = read_attachment(tmp_path / "a.wav", "audio")
    assert film["type"] == "video_url"
    assert film["video_url"]["url"].startswith("data:video/mp4;base64,")
    assert heard["type"] == "audio_url"
    assert text_of(with_attachments("What?", [film, heard])) == "[video]\n[sound]\nWhat?"


def test_a_file_that_no_request_has_room_for_is_refused(tmp_path):
    """The error says how large a file may be."""
    (tmp_path / "a.mp4").write_bytes(bytes(8 * 2**20 + 1))
    with pytest.raises(BadRequest, match="a video may have at most 8 MiB"):
        read_attachment(tmp_path / "a.mp4", "video")
