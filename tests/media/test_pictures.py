"""Damaged files end in a `BadRequest` with a sentence: truncated, changed at random, bombs, wrong headers."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from weft.core.errors import BadRequest
from weft.core.values.media import Media, MediaItem
from weft.media.pictures import FORMATS, check_pictures, decode_picture

MAX_PIXELS = 10_000


def file_of(kind: str) -> bytes:
    """A file of a picture in one of the formats."""
    values = np.random.default_rng(7).integers(0, 256, (40, 60, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind)
    return file.getvalue()


def read(data: bytes) -> tuple[int, int]:
    """Reads a file as a request's picture is read."""
    check_pictures(Media(items=[MediaItem(modality="image", data=data)]), MAX_PIXELS)
    return decode_picture(data).size


def damaged(kind: str) -> list[bytes]:
    """A hundred damaged files: cut off, and with bytes changed."""
    whole, random = file_of(kind), np.random.default_rng(len(kind))
    cut = [whole[: int(at)] for at in random.integers(0, len(whole), 40)]
    changed = []
    for count in random.integers(1, 30, 60):
        values = bytearray(whole)
        for place in random.integers(0, min(len(whole), 400), count):
            values[place] = int(random.integers(256))
        changed.append(bytes(values))
    return cut + changed


def outcome(data: bytes) -> str:
    """What reading a file ends in; any other error than `BadRequest` is raised."""
    try:
        return f"{read(data)}"
    except BadRequest as error:
        return str(error)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_damaged_file_is_read_or_refused_in_a_sentence(kind: str) -> None:
    """No damage of a file raises anything but a `BadRequest` that begins with the modality."""
    ends = [outcome(data) for data in damaged(kind)]
    assert [end for end in ends if not end.startswith(("image: ", "("))] == []
    assert any(end.startswith("image: ") for end in ends)


def bomb(width: int, height: int) -> bytes:
    """A PNG that claims a size, and whose rows are zeros that compress well."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("size", [(101, 100), (50_000, 50_000), (2**31 - 1, 2**31 - 1)])
def test_a_claimed_size_is_refused_before_decoding(size: tuple[int, int]) -> None:
    """Pixels are counted by the header: a bomb is never unpacked."""
    with pytest.raises(BadRequest, match="pixels"):
        read(bomb(*size))


@pytest.mark.parametrize("data", [b"", b"no picture", b"II*\0" + bytes(100), b"%PDF-1.4 ..."])
def test_bytes_of_no_known_format_are_refused(data: bytes) -> None:
    """Only the listed formats are read, whatever else Pillow knows."""
    with pytest.raises(
        BadRequest, match="not a picture in one of the formats PNG, JPEG, WEBP, GIF, BMP"
    ):
        read(data)


def test_a_transparent_picture_stands_on_white() -> None:
    """Transparent pixels are white, whatever colour is stored below."""
    file = io.BytesIO()
    Image.new("RGBA", (2, 2), (10, 20, 30, 0)).save(file, "PNG")
    assert decode_picture(file.getvalue()).getpixel((0, 0)) == (255, 255, 255)
