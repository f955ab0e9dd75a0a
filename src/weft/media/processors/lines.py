"""Pixtral's pictures: one tile of at most the largest size, with a token after each line of patches."""

import math

from weft.core.values.pictures import ItemTokens, Lines, Tile
from weft.media.pictures import Picture
from weft.media.processors.pieces import Piece
from weft.media.processors.resizing import resized, to_tile


def line_tiles(picture: Picture, settings: Lines) -> list[Tile]:
    """Returns the picture as one tile."""
    width, height = picture.size
    ratio = max(height, width) / settings.longest_edge
    if ratio > 1:
        height, width = max(1, math.floor(height / ratio)), max(1, math.floor(width / ratio))
    side = _side(settings)
    size = math.ceil(height / side) * side, math.ceil(width / side) * side
    return [to_tile(resized(picture, *size, settings.pixels.resample))]


def line_pieces(tiles: list[Tile], settings: Lines, tokens: ItemTokens) -> list[Piece]:
    """Returns placeholders in lines; `settings.line_end` follows each line except the last, `settings.end` the last."""
    side = _side(settings)
    [tile] = tiles
    line: list[Piece] = [*[tokens.placeholder] * (tile.width // side), settings.line_end]
    return [*(line * (tile.height // side))[:-1], settings.end]


def _side(settings: Lines) -> int:
    return settings.pixels.patch_size * settings.pixels.merge_size
