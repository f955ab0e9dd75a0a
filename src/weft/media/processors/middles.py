"""CLIP's pictures: the square in the middle of a picture whose shorter side has a fixed size."""

from weft.core.values.pictures import ItemTokens, Middles, Tile
from weft.media.pictures import Picture
from weft.media.processors.pieces import Piece
from weft.media.processors.resizing import resized, to_tile


def middle_tiles(picture: Picture, settings: Middles) -> list[Tile]:
    """Returns the square in the middle as one tile."""
    width, height = picture.size
    shortest, crop = settings.shortest_edge, settings.size
    if width <= height:
        width, height = shortest, int(shortest * height / width)
    else:
        width, height = int(shortest * width / height), shortest
    picture = resized(picture, height, width, settings.pixels.resample)
    left, top = (width - crop) // 2, (height - crop) // 2
    return [to_tile(picture.crop((left, top, left + crop, top + crop)))]


def middle_pieces(settings: Middles, tokens: ItemTokens) -> list[Piece]:
    """Returns one placeholder for each patch of the square."""
    return [tokens.placeholder] * settings.num_tokens
