"""`VideoProcessor`: converts a file to a prepared video, in the same way as the model's own processor."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np

from weft.core.values.media import Media, Modality
from weft.core.values.pictures import PreparedItem, Tile, Videos
from weft.media.limits import MediaLimits, check_prepared
from weft.media.pictures import Picture
from weft.media.processors.item_processor import ItemProcessor, refused_argument
from weft.media.processors.patches import grid_of
from weft.media.processors.pieces import Piece
from weft.media.processors.resizing import resized
from weft.media.processors.video_frames import frame_indexes, frame_size, patch_times
from weft.media.videos import WHAT, check_videos, decode_frames, read_facts

_MAX_FPS = 240


@dataclass(frozen=True, slots=True)
class VideoProcessor(ItemProcessor[Videos]):
    """Prepares videos for one model."""

    modality: ClassVar[Modality] = WHAT

    def check(self, media: Media, limits: MediaLimits) -> None:
        """Checks duration and pixels of all videos of a prompt together."""
        del limits
        check_videos(media)

    def prepare(self, data: bytes, digest: str) -> PreparedItem:
        settings, facts = self.settings, read_facts(data)
        indexes = frame_indexes(facts, settings)
        with closing(decode_frames(data, indexes)) as pictures:
            size, frames = self._resized(pictures, len(indexes))
        if settings.is_timed:
            times = patch_times(indexes, facts, settings)
            tiles = self._tiles(frames, size)
        else:
            times = []
            rate = len(indexes) / facts.num_frames * facts.rate
            tiles = [Tile(*size, b"".join(frames), len(frames), self._time_step(rate))]
        frame = self._frame if settings.is_timed else None
        return self.of_tiles(digest, tiles, self._pieces(tiles, times), frame)

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("fps", "num_frames", "min_pixels", "max_pixels")

    def with_argument(self, name: str, value: Any) -> Videos:
        settings = self.settings
        match name:
            case "fps":
                if type(value) not in (int, float) or not 0 < value <= _MAX_FPS:
                    raise refused_argument(f"fps must be above 0 and at most {_MAX_FPS}")
                return msgspec.structs.replace(settings, fps=float(value), num_frames=None)
            case "num_frames":
                _check_integer(name, value, settings.pixels.temporal_size, settings.max_frames)
                return msgspec.structs.replace(settings, num_frames=value)
            case _:
                _check_integer(name, value, 1, settings.max_pixels)
                changed = msgspec.structs.replace(settings, **{name: value})
                least = min(changed.min_pixels, changed.max_pixels)
                return msgspec.structs.replace(changed, min_pixels=least)

    def _resized(
        self, pictures: Iterator[Picture], num_frames: int
    ) -> tuple[tuple[int, int], list[bytes]]:
        """Returns height and width of the frames, and their pixels; the first frame decides on the size."""
        settings, size = self.settings, (0, 0)
        frames: list[bytes] = []
        for picture in pictures:
            if not frames:
                size = frame_size(picture.height, picture.width, num_frames, settings)
                check_prepared(WHAT, 3 * size[0] * size[1] * num_frames)
            frames.append(resized(picture, *size, settings.pixels.resample).tobytes())
        return size, frames

    @property
    def _frame(self) -> tuple[int, int]:
        begin, end = self.tokens.begin, self.tokens.end
        assert begin is not None
        assert end is not None
        return begin, end

    def _time_step(self, rate: float) -> float:
        """Returns the difference of positions of two patches of frames, with so many frames a second."""
        if not self.settings.positions_per_second:
            return 1.0
        seconds = np.float32(self.settings.pixels.temporal_size / rate)
        return float(np.float32(self.settings.positions_per_second) * seconds)

    def _tiles(self, frames: list[bytes], size: tuple[int, int]) -> list[Tile]:
        """Returns a tile for each patch of frames: texts stand between them."""
        times = self.settings.pixels.temporal_size
        parts = (frames[start : start + times] for start in range(0, len(frames), times))
        return [Tile(*size, b"".join(part), len(part)) for part in parts]

    def _pieces(self, tiles: list[Tile], times: list[float]) -> list[Piece]:
        pieces: list[Piece] = []
        for number, tile in enumerate(tiles):
            count, rows, columns = grid_of(tile, self.settings.pixels)
            windows = count * rows * columns // self.settings.pixels.merge_size**2
            placeholders = [self.tokens.placeholder] * windows
            if times:
                begin, end = self._frame
                pieces += [f"<{times[number]:.1f} seconds>", begin, *placeholders, end]
            else:
                pieces += placeholders
        return pieces


def _check_integer(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise refused_argument(f"{name} must be a number from {least} to {most}, got {value!a:.40}")
