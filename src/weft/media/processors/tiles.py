"""Pictures of Idefics3 and SmolVLM: square tiles in rows and columns, followed by the whole picture in a square."""

import math

from weft.core.values.pictures import ItemTokens, Tile, Tiles
from weft.media.pictures import Picture
from weft.media.processors.pieces import Piece
from weft.media.processors.resizing import resized, to_tile

_MAX_SIDE = 4096
_BEGIN = "<fake_token_around_image>"


def grid_tiles(picture: Picture, settings: Tiles) -> tuple[list[Tile], int, int]:
    """Returns the tiles, row by row, then the numbers of rows and of columns, both 0 for a picture in one tile."""
    size, resample = settings.tile_size, settings.pixels.resample
    width, height = picture.size
    picture = resized(picture, *_scaled(height, width, settings.longest_edge), resample)
    if not settings.is_split:
        return [to_tile(resized(picture, size, size, resample))], 0, 0
    width, height = picture.size
    picture = resized(picture, *_whole_tiles(height, width, size), resample)
    num_columns, num_rows = picture.width // size, picture.height // size
    whole = to_tile(resized(picture, size, size, resample))
    if num_rows == num_columns == 1:
        return [whole], 0, 0
    corners = [(x * size, y * size) for y in range(num_rows) for x in range(num_columns)]
    parts = [to_tile(picture.crop((x, y, x + size, y + size))) for x, y in corners]
    return [*parts, whole], num_rows, num_columns


def grid_pieces(
    num_rows: int, num_columns: int, settings: Tiles, tokens: ItemTokens
) -> list[Piece]:
    """Returns each tile's row and column followed by its placeholders, then the placeholders of the whole picture."""
    begin: Piece = _BEGIN if tokens.begin is None else tokens.begin
    square = [tokens.placeholder] * settings.num_tokens
    pieces: list[Piece] = []
    for row in range(1, num_rows + 1):
        for column in range(1, num_columns + 1):
            pieces += [begin, f"<row_{row}_col_{column}>", *square]
        pieces.append("\n")
    if num_rows:
        pieces.append("\n")
    return [*pieces, begin, "<global-img>", *square, begin]


def _scaled(height: int, width: int, longest_edge: int) -> tuple[int, int]:
    """Returns the size with this longer side, at most the largest allowed size; the shorter side is even."""
    longest, ratio = longest_edge, width / height
    if width >= height:
        shorter = int(longest / ratio)
        height, width = max(shorter + shorter % 2, 1), longest
    else:
        shorter = int(longest * ratio)
        height, width = longest, max(shorter + shorter % 2, 1)
    ratio = width / height
    if width >= height and width > _MAX_SIDE:
        height, width = int(_MAX_SIDE / ratio), _MAX_SIDE
    elif height > width and height > _MAX_SIDE:
        height, width = _MAX_SIDE, int(_MAX_SIDE * ratio)
    return max(height, 1), max(width, 1)


def _whole_tiles(height: int, width: int, size: int) -> tuple[int, int]:
    """Returns the size rounded to whole tiles."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / size) * size
        return math.ceil(int(width / ratio) / size) * size, width
    height = math.ceil(height / size) * size
    return height, math.ceil(int(height * ratio) / size) * size
