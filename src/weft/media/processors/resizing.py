"""Resizes Pillow images and converts them to tiles."""

from importlib import import_module
from typing import Any

from weft.core.values.pictures import Tile
from weft.media.pictures import Picture


def resized(picture: Picture, height: int, width: int, resample: int) -> Picture:
    """Returns the picture in this size; the same object if the picture already has this size."""
    if picture.size == (width, height):
        return picture
    filters: Any = import_module("PIL.Image").Resampling
    return picture.resize((width, height), filters(resample))


def to_tile(picture: Picture) -> Tile:
    """Returns an RGB picture as a tile."""
    width, height = picture.size
    return Tile(height, width, picture.tobytes())
