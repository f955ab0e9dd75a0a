"""Tiles from pictures of Pillow: resized parts as bytes."""

from importlib import import_module
from typing import Any

from weft.core.values.pictures import Tile
from weft.media.pictures import Picture


def resized(picture: Picture, height: int, width: int, resample: int) -> Picture:
    """Returns the picture in this size; the same one if it has the size already."""
    if picture.size == (width, height):
        return picture
    filters: Any = import_module("PIL.Image").Resampling
    return picture.resize((width, height), filters(resample))


def to_tile(picture: Picture) -> Tile:
    """Returns the pixels of a picture in RGB."""
    width, height = picture.size
    return Tile(height, width, picture.tobytes())
