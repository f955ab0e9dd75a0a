"""Gemma 3's pictures: a square of the whole picture; with pan and scan, also squares of parts of a long picture."""

import math

from weft.core.values.pictures import ItemTokens, Squares, Tile
from weft.media.pictures import Picture
from weft.media.processors.pieces import Piece
from weft.media.processors.resizing import resized, to_tile

# The model was trained with these words.
_BEFORE_WHOLE = "Here is the original image "
_BEFORE_PARTS = " and here are some crops to help you see better "


def square_tiles(picture: Picture, settings: Squares) -> list[Tile]:
    """Returns the whole picture as a square, followed by squares of its parts."""
    pictures = [picture, *_parts(picture, settings)]
    size, resample = settings.size, settings.pixels.resample
    return [to_tile(resized(each, size, size, resample)) for each in pictures]


def square_pieces(tiles: list[Tile], settings: Squares, tokens: ItemTokens) -> list[Piece]:
    """Returns the placeholders of each square as a paragraph, and the model's words between squares."""
    assert tokens.begin is not None
    assert tokens.end is not None
    placeholders = [tokens.placeholder] * settings.num_tokens
    square: list[Piece] = ["\n\n", tokens.begin, *placeholders, tokens.end, "\n\n"]
    if len(tiles) == 1:
        return square
    pieces: list[Piece] = [_BEFORE_WHOLE, *square, _BEFORE_PARTS, *square]
    for _ in tiles[2:]:
        pieces += [" ", *square]
    return pieces


def _parts(picture: Picture, settings: Squares) -> list[Picture]:
    """Returns the parts of a picture that is much longer in one direction, cut along this direction."""
    width, height = picture.size
    shorter, longer = sorted((width, height))
    if not settings.pan_and_scan or longer / shorter < settings.min_ratio:
        return []
    num_parts = min(longer // settings.min_crop_size, math.floor(longer / shorter + 0.5))
    num_parts = min(settings.max_num_crops, max(2, num_parts))
    step = math.ceil(longer / num_parts)
    if min(step, shorter) < settings.min_crop_size:
        return []
    starts = [step * index for index in range(num_parts)]
    if width >= height:
        return [picture.crop((s, 0, min(s + step, width), height)) for s in starts]
    return [picture.crop((0, s, width, min(s + step, height))) for s in starts]
