"""`PictureProcessor`: converts a file to a prepared item, in the same way as the model's own processor."""

from dataclasses import dataclass
from typing import Any, ClassVar, assert_never

import msgspec

from weft.core.values.media import Media, Modality
from weft.core.values.pictures import (
    Lines,
    Middles,
    NativeSize,
    NativeTiles,
    PictureSettings,
    PreparedItem,
    Squares,
    Tile,
    Tiles,
)
from weft.media.limits import MediaLimits
from weft.media.pictures import WHAT, Picture, check_pictures, decode_picture
from weft.media.processors.item_processor import ItemProcessor, refused_argument
from weft.media.processors.lines import line_pieces, line_tiles
from weft.media.processors.middles import middle_pieces, middle_tiles
from weft.media.processors.native_size import native_pieces, native_tiles
from weft.media.processors.native_tiles import native_grid, native_grid_pieces
from weft.media.processors.pieces import Piece
from weft.media.processors.squares import square_pieces, square_tiles
from weft.media.processors.tiles import grid_pieces, grid_tiles


@dataclass(frozen=True, slots=True)
class PictureProcessor(ItemProcessor[PictureSettings]):
    """Prepares pictures for one model."""

    modality: ClassVar[Modality] = WHAT

    def check(self, media: Media, limits: MediaLimits) -> None:
        """Checks the pixels of all pictures of a prompt together."""
        check_pictures(media, limits.max_pixels)

    def prepare(self, data: bytes, digest: str) -> PreparedItem:
        tiles, pieces = self._process(decode_picture(data))
        return self.of_tiles(digest, tiles, pieces)

    @property
    def arguments(self) -> tuple[str, ...]:
        match self.settings:
            case NativeSize():
                return ("min_pixels", "max_pixels")
            case Squares():
                return ("do_pan_and_scan",)
            case Tiles() | NativeTiles():
                return ("do_image_splitting",)
            case Lines() | Middles():
                return ()
        assert_never(self.settings)

    def with_argument(self, name: str, value: Any) -> PictureSettings:
        return _changed(self.settings, name, value)

    def _process(self, picture: Picture) -> tuple[list[Tile], list[Piece]]:
        settings, tokens = self.settings, self.tokens
        match settings:
            case NativeSize():
                tiles = native_tiles(picture, settings)
                return tiles, native_pieces(tiles, settings, tokens)
            case Squares():
                tiles = square_tiles(picture, settings)
                return tiles, square_pieces(tiles, settings, tokens)
            case Tiles():
                tiles, num_rows, num_columns = grid_tiles(picture, settings)
                return tiles, grid_pieces(num_rows, num_columns, settings, tokens)
            case Lines():
                tiles = line_tiles(picture, settings)
                return tiles, line_pieces(tiles, settings, tokens)
            case Middles():
                return middle_tiles(picture, settings), middle_pieces(settings, tokens)
            case NativeTiles():
                tiles, _, num_columns = native_grid(picture, settings)
                return tiles, native_grid_pieces(tiles, num_columns, settings, tokens)
        assert_never(settings)


def _changed(settings: PictureSettings, name: str, value: Any) -> PictureSettings:
    match settings:
        case NativeSize():
            most = settings.max_pixels
            if type(value) is not int or not 1 <= value <= most:
                raise refused_argument(
                    f"{name} must be a number from 1 to {most}, got {value!a:.40}"
                )
            changed = msgspec.structs.replace(settings, **{name: value})
            if changed.min_pixels > changed.max_pixels:
                changed = msgspec.structs.replace(changed, min_pixels=changed.max_pixels)
            return changed
        case Squares():
            return msgspec.structs.replace(settings, pan_and_scan=_read_bool(name, value))
        case Tiles():
            return msgspec.structs.replace(settings, is_split=_read_bool(name, value))
        case NativeTiles():
            return settings if _read_bool(name, value) else _undivided(settings)
        case Lines() | Middles():
            raise AssertionError(f"there are no arguments: {name}")
    assert_never(settings)


def _undivided(settings: NativeTiles) -> NativeTiles:
    return msgspec.structs.replace(settings, min_tiles=1, max_tiles=1)


def _read_bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise refused_argument(f"{name} must be true or false")
