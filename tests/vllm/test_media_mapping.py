"""What vLLM is given of media, by the names of its fields, and pictures that are refused unread. No vLLM is needed."""

import io
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from tests.doubles.fake_engine import make_config
from tests.vllm.test_mapping import fields
from weft.core.errors import BadRequest
from weft.core.values.media import Media, MediaConfig, MediaItem, check_anchors
from weft.media.limits import MediaLimits
from weft.media.pictures import FORMATS, check_pictures
from weft.vllm.convert.config import with_media
from weft.vllm.media import FramePixels, to_multi_modal

IMAGES = [
    MediaItem(modality="image", data=b"1"),
    MediaItem(modality="audio", data=b"2"),
    MediaItem(modality="image", uuid="u"),
]


def image(size=(4, 3), form="PNG") -> MediaItem:
    """One of that size."""
    file = io.BytesIO()
    Image.new("RGB", size).save(file, form)
    return MediaItem(modality="image", data=file.getvalue())


def claiming(width: int, height: int) -> MediaItem:
    """A PNG that says how large it is, and has nothing behind that."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return MediaItem(modality="image", data=b"\x89PNG\r\n\x1a\n" + chunk + b"\0\0\0\0IDAT")


def test_items_are_given_by_modality():
    """In order, with nothing in the place of one that is known by its uuid."""
    given = to_multi_modal(
        Media(items=IMAGES, processor_kwargs={"num_crops": 4}), ["one", "two", None]
    )
    assert given == {
        "multi_modal_data": {"image": ["one", None], "audio": ["two"]},
        "multi_modal_uuids": {"image": [None, "u"]},
        "mm_processor_kwargs": {"num_crops": 4},
    }
    assert given.keys() <= fields("TokensPrompt")
    assert {"prompt_token_ids", "prompt", "cache_salt"} <= fields("TokensPrompt")


@pytest.mark.parametrize("form", FORMATS)
def test_pictures_are_measured_by_their_headers(form):
    """Of every format that is taken."""
    check_pictures(Media(items=[image((40, 30), form)]), 1200)
    with pytest.raises(BadRequest, match="40 x 30"):
        check_pictures(Media(items=[image((40, 30), form)]), 1199)


def test_a_bomb_is_not_decoded():
    """Some bytes that would be twelve gigabytes, or as many as Pillow itself refuses."""
    for size in ((65_535, 65_535), (9500, 9500), (2**31 - 1, 2**31 - 1), (0, 5)):
        with pytest.raises(BadRequest) as caught:
            check_pictures(Media(items=[claiming(*size)]), 2**26)
        assert caught.value.parameter == "image"


def test_pictures_of_a_prompt_are_counted_together():
    """Many small ones are as large as one."""
    with pytest.raises(BadRequest, match="may have 25 pixels together"):
        check_pictures(Media(items=[image(), image(), image()]), 25)


def test_frames_of_a_prompts_videos_are_counted_together():
    """A thousand small ones are as large as one, and two videos as one that is longer."""
    frames = FramePixels(MediaLimits(max_pixels=3000).max_video_pixels)
    frames.take(5, 40, 30)
    frames.take(5, 40, 30)
    with pytest.raises(BadRequest, match=r"at most 12000 pixels .* 1 frames of 40 x 30") as caught:
        frames.take(1, 40, 30)
    assert caught.value.parameter == "video"


@pytest.mark.parametrize(
    "data", [b"GIF89a", b"%!PS-Adobe-3.0 EPSF", b"<svg/>", b"\xff\xd8\xff\xe0"]
)
def test_what_is_no_picture_is_refused(data):
    """With the formats that there are; none that runs a program."""
    with pytest.raises(BadRequest, match="PNG, JPEG, WEBP, GIF, BMP"):
        check_pictures(Media(items=[MediaItem(modality="image", data=data)]), 2**26)


@pytest.mark.parametrize("name", ["image_token_id", "image_token_index"])
def test_a_model_says_what_its_anchors_are(name):
    """By either name."""
    model = SimpleNamespace(hf_config=SimpleNamespace(**{name: 9}))
    config = with_media(make_config(), {"image": 999, "vision_chunk": 1, "video": 0}, model)
    facts = config.model_config
    assert facts.is_multimodal_model
    assert facts.media == MediaConfig(max_items={"image": 999, "video": 0}, anchor_ids={"image": 9})


def test_a_model_of_texts_takes_no_media():
    """Nor one whose operator has set all its limits to 0."""
    model = SimpleNamespace(hf_config=SimpleNamespace(image_token_id=9))
    for limits in ({}, {"image": 0}):
        assert with_media(make_config(), limits, model).model_config.media is None


def test_anchors_may_be_fewer_than_items():
    """Some models have others, that no configuration names; vLLM's processor refuses what is wrong."""
    config = MediaConfig(max_items={"image": 2}, anchor_ids={"image": 9})
    check_anchors([1, 2], Media(items=[image()]), config)
    check_anchors([1, 9], Media(items=[image()]), config)
    with pytest.raises(BadRequest, match="2 placeholder tokens 9"):
        check_anchors([9, 9], Media(items=[image()]), config)
    with pytest.raises(BadRequest, match="0 of these are given"):
        check_anchors([9], None, config)


def test_the_table_of_fields_is_whole():
    """It is made by a script."""
    assert Path(__file__).with_name("fields_0_32.tsv").read_text().count("TokensPrompt\t") > 3
