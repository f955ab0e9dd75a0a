"""Converts tiles to patches, the vision tower's input, in float32."""

import numpy as np
from numpy.typing import NDArray

from weft.core.values.pictures import Pixels, Tile

Grid = tuple[int, int, int]


def to_patches(tiles: list[Tile], pixels: Pixels) -> tuple[NDArray[np.float32], list[Grid]]:
    """Returns the patches of all tiles, [patches, channels x times x side x side], and the grid of each tile."""
    table = _table(pixels)
    rows = [_patches_of(tile, pixels, table) for tile in tiles]
    return np.concatenate(rows), [grid_of(tile, pixels) for tile in tiles]


def grid_of(tile: Tile, pixels: Pixels) -> Grid:
    """Returns the grid of a tile: the number of patches in time, rows and columns."""
    frames = -(-tile.num_frames // pixels.temporal_size)
    return frames, tile.height // pixels.patch_size, tile.width // pixels.patch_size


def _table(pixels: Pixels) -> NDArray[np.float32]:
    """Returns a table of the float32 value of each byte in each channel, [3, 256]."""
    scaled = (np.arange(256) * pixels.scale).astype(np.float32)
    mean, std = (np.array(numbers, np.float32)[:, None] for numbers in (pixels.mean, pixels.std))
    return np.asarray((scaled - mean) / std, np.float32)


def _patches_of(tile: Tile, pixels: Pixels, table: NDArray[np.float32]) -> NDArray[np.float32]:
    side, merge, times = pixels.patch_size, pixels.merge_size, pixels.temporal_size
    frames, rows, columns = grid_of(tile, pixels)
    values = np.frombuffer(tile.pixels, np.uint8)
    values = values.reshape(
        tile.num_frames, rows // merge, merge, side, columns // merge, merge, side, 3
    )
    values = values.transpose(
        0, 1, 4, 2, 5, 7, 3, 6
    )  # frame, window, patch of the window, channel, pixel
    numbers = np.empty((frames, *values.shape[1:6], times, side, side), np.float32)
    for number in range(frames * times):
        frame, time = divmod(number, times)
        of_frame = values[min(number, tile.num_frames - 1)]
        for channel in range(3):
            numbers[frame, ..., channel, time, :, :] = table[channel][of_frame[..., channel, :, :]]
    return numbers.reshape(frames * rows * columns, 3 * times * side * side)
