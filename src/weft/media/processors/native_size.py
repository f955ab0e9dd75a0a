"""Qwen's pictures: one tile of about the picture's own size, whose sides are whole windows of the vision tower."""

import math

from weft.core.errors import BadRequest
from weft.core.values.media import Modality
from weft.core.values.pictures import ItemTokens, NativeSize, Tile
from weft.media.pictures import WHAT, Picture
from weft.media.processors.pieces import Piece
from weft.media.processors.resizing import resized, to_tile

_MAX_RATIO = 200  # maximum ratio of the longer side to the shorter side


def native_tiles(picture: Picture, settings: NativeSize) -> list[Tile]:
    """Returns the picture as one tile."""
    width, height = picture.size
    size = native_size(height, width, settings)
    return [to_tile(resized(picture, *size, settings.pixels.resample))]


def native_pieces(tiles: list[Tile], settings: NativeSize, tokens: ItemTokens) -> list[Piece]:
    """Returns one placeholder for each window of the tile."""
    side = settings.pixels.patch_size * settings.pixels.merge_size
    [tile] = tiles
    return [tokens.placeholder] * ((tile.height // side) * (tile.width // side))


def native_size(height: int, width: int, settings: NativeSize) -> tuple[int, int]:
    """Returns height and width in pixels as whole windows, with about the same ratio and an allowed number of
    pixels.
    """
    check_ratio(height, width, WHAT)
    side = settings.pixels.patch_size * settings.pixels.merge_size
    sizes = whole_windows(height, width, side)
    return within(sizes, (height, width), side, settings.min_pixels, settings.max_pixels)


def check_ratio(height: int, width: int, what: Modality) -> None:
    """Raises `BadRequest` for a picture or frame that is too long."""
    if max(height, width) > _MAX_RATIO * min(height, width):
        raise BadRequest(
            what,
            f"{what}: one side may be at most {_MAX_RATIO} times the other for this model, got {width} x {height}",
        )


def whole_windows(height: int, width: int, side: int) -> tuple[int, int]:
    """Returns height and width rounded to windows of this side; a short side may become 0."""
    return round(height / side) * side, round(width / side) * side


def within(
    sizes: tuple[int, int], given: tuple[int, int], side: int, least: int, most: int
) -> tuple[int, int]:
    """Returns the sizes if they have `least` to `most` pixels; otherwise the `given` sizes scaled to about as many, as
    whole windows.
    """
    height, width = given
    if sizes[0] * sizes[1] > most:
        shrink = math.sqrt(height * width / most)
        return (
            max(side, math.floor(height / shrink / side) * side),
            max(side, math.floor(width / shrink / side) * side),
        )
    if sizes[0] * sizes[1] < least:
        grow = math.sqrt(least / (height * width))
        return math.ceil(height * grow / side) * side, math.ceil(width * grow / side) * side
    return sizes
