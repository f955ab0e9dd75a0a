"""Decodes pictures with Pillow. Formats and numbers of pixels are checked by the headers before decoding."""

import io
from importlib import import_module
from typing import Any, TypeAlias

from weft.core.errors import BadRequest
from weft.core.values.media import Media, Modality

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
WHAT: Modality = "image"
# An image object of Pillow, which is an optional dependency.
Picture: TypeAlias = Any
_WHITE = (255, 255, 255, 255)


def decode_picture(data: bytes) -> Picture:
    """Returns the picture in RGB, rotated as its EXIF data say, with white in place of transparency.

    Only the first frame of an animation is read. The caller has checked the number of pixels.
    """
    pillow, turn = import_module("PIL.Image"), import_module("PIL.ImageOps").exif_transpose
    try:
        with pillow.open(io.BytesIO(data), formats=FORMATS) as opened:
            opened.load()
            return _in_rgb(pillow, turn(opened))
    except MemoryError:
        raise BadRequest(
            WHAT, "image: decoding the picture needs more memory than is free"
        ) from None
    # Pillow's readers raise errors of many types for damaged files.
    except Exception as error:
        raise BadRequest(
            WHAT, f"image: the picture cannot be decoded: {type(error).__name__}: {_line(error)}"
        ) from error


def check_pictures(media: Media, max_pixels: int) -> None:
    """Raises `BadRequest` for files that are no pictures, and if the headers declare more than `max_pixels` pixels."""
    files = [item.data for item in media.items if item.modality == WHAT]
    num_pixels = 0
    for data in files:
        if data is None:
            continue  # an item that has only a uuid
        width, height = _size(data)
        num_pixels += width * height
        if num_pixels > max_pixels:
            raise BadRequest(
                WHAT,
                f"image: the pictures of a prompt may have {max_pixels} pixels together, and one is {width} x "
                f"{height}",
            )


def _in_rgb(pillow: Any, picture: Picture) -> Picture:
    if "A" not in picture.getbands() and picture.info.get("transparency") is None:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    background = pillow.new("RGBA", picture.size, _WHITE)
    return pillow.alpha_composite(background, picture).convert("RGB")


def _size(data: bytes) -> tuple[int, int]:
    pillow: Any = import_module("PIL.Image")
    try:
        with pillow.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
            return width, height
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise BadRequest(WHAT, "image: the picture has too many pixels") from None
    # Pillow's readers raise errors of many types for damaged files.
    except Exception:  # noqa: BLE001
        raise BadRequest(
            WHAT, f"image: the bytes are not a picture in one of the formats {', '.join(FORMATS)}"
        ) from None


def _line(error: Exception) -> str:
    return ascii(" ".join(str(error).split())[:200]).strip("'\"")
