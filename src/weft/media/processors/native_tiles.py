"""LFM2-VL's pictures: about their own size; large ones as square tiles in rows and columns, then the whole picture."""

from weft.core.errors import BadRequest
from weft.core.values.pictures import ItemTokens, NativeTiles, Tile
from weft.media.pictures import WHAT, Picture
from weft.media.processors.native_size import whole_windows, within
from weft.media.processors.pieces import Piece
from weft.media.processors.resizing import resized, to_tile

_BEGIN, _END, _WHOLE = "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"
# A very long picture keeps at least one window on its short side, and so exceeds the number of pixels.
_MAX_EXCESS = 8


def native_grid(picture: Picture, settings: NativeTiles) -> tuple[list[Tile], int, int]:
    """Returns the tiles, row by row, then the numbers of rows and of columns, both 0 for a picture in one tile."""
    width, height = picture.size
    resample, size = settings.pixels.resample, settings.tile_size
    whole = to_tile(resized(picture, *_whole_size(height, width, settings), resample))
    if settings.max_tiles == 1 or not _is_large(height, width, settings):
        return [whole], 0, 0
    num_columns, num_rows = _closest_grid(height, width, settings)
    picture = resized(picture, num_rows * size, num_columns * size, resample)
    corners = [(x * size, y * size) for y in range(num_rows) for x in range(num_columns)]
    parts = [to_tile(picture.crop((x, y, x + size, y + size))) for x, y in corners]
    return [*parts, whole] if settings.has_whole else parts, num_rows, num_columns


def native_grid_pieces(
    tiles: list[Tile], num_columns: int, settings: NativeTiles, tokens: ItemTokens
) -> list[Piece]:
    """Returns each tile's row and column followed by its placeholders, then the placeholders of the whole picture."""
    pieces: list[Piece] = [_BEGIN]
    num_parts = len(tiles) - settings.has_whole if num_columns else 0
    for number, tile in enumerate(tiles):
        if number < num_parts:
            row, column = divmod(number, num_columns)
            pieces.append(f"<|img_row_{row + 1}_col_{column + 1}|>")
        elif num_parts:
            pieces.append(_WHOLE)
        pieces += [tokens.placeholder] * (tile.height * tile.width // _side(settings) ** 2)
    pieces.append(_END)
    return pieces if settings.has_marks else [one for one in pieces if isinstance(one, int)]


def _side(settings: NativeTiles) -> int:
    return settings.pixels.patch_size * settings.pixels.merge_size


def _rounded(height: int, width: int, side: int, shortest: int) -> tuple[int, int]:
    rounded = whole_windows(height, width, side)
    return max(shortest, rounded[0]), max(shortest, rounded[1])


def _whole_size(height: int, width: int, settings: NativeTiles) -> tuple[int, int]:
    """Returns height and width of the whole picture in pixels, as whole windows."""
    side = _side(settings)
    least, most = settings.min_tokens * side**2, settings.max_tokens * side**2
    size = within(_rounded(height, width, side, side), (height, width), side, least, most)
    if size[0] * size[1] > _MAX_EXCESS * most:
        raise BadRequest(
            WHAT, f"image: a picture of {width} x {height} pixels is too long for this model"
        )
    return size


def _is_large(height: int, width: int, settings: NativeTiles) -> bool:
    side = _side(settings)
    sizes = _rounded(height, width, side, settings.pixels.patch_size)
    return sizes[0] * sizes[1] > settings.max_tokens * side**2 * settings.tolerance


def _closest_grid(height: int, width: int, settings: NativeTiles) -> tuple[int, int]:
    """Returns the numbers of columns and rows whose ratio is closest to the picture's.

    Of grids with the same ratio the largest one is chosen of which the picture has more than half of the pixels.
    """
    least, most = settings.min_tiles, settings.max_tiles
    sides = range(1, most + 1)
    grids = [(x, y) for x in sides for y in sides if least <= x * y <= most]
    best, best_distance = (1, 1), float("inf")
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        distance = abs(width / height - columns / rows)
        num_pixels = settings.tile_size**2 * columns * rows
        if distance < best_distance or (
            distance == best_distance and height * width > 0.5 * num_pixels
        ):
            best, best_distance = (columns, rows), distance
    return best
