"""`PictureProcessor`: converts a file to a prepared item, in the same way as the model's own processor."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.media import PROCESSOR_KWARGS
from weft.core.values.pictures import (
    Lines,
    NativeSize,
    NativeTiles,
    PictureSettings,
    PictureTokens,
    PreparedItem,
    Squares,
    Tile,
    Tiles,
)
from weft.media.pictures import WHAT, Picture, decode_picture
from weft.media.processors.lines import line_pieces, line_tiles
from weft.media.processors.native_size import native_pieces, native_tiles
from weft.media.processors.native_tiles import native_grid, native_grid_pieces
from weft.media.processors.pieces import Encode, Piece, runs_of, to_token_ids
from weft.media.processors.squares import square_pieces, square_tiles
from weft.media.processors.tiles import grid_pieces, grid_tiles


@dataclass(frozen=True, slots=True)
class PictureProcessor:
    """Prepares pictures for one model. `encode` encodes text with the model's tokenizer.

    The methods are slow; threads may share a processor.
    """

    settings: PictureSettings
    tokens: PictureTokens
    encode: Encode
    salt: str | None = None  # a part of the hashes of all items

    def prepare(self, data: bytes, digest: str) -> PreparedItem:
        """Returns the prepared item for a file; `digest` becomes its `hash`.

        Raises `BadRequest` for a file that cannot be read.
        """
        tiles, pieces = self._process(decode_picture(data))
        token_ids = to_token_ids(pieces, self.encode)
        return PreparedItem(
            modality=WHAT,
            hash=digest,
            token_ids=token_ids,
            runs=runs_of(token_ids, self.tokens.placeholder),
            tiles=tiles,
        )

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
            case NativeTiles():
                tiles, _, num_columns = native_grid(picture, settings)
                return tiles, native_grid_pieces(tiles, num_columns, settings, tokens)
        assert_never(settings)

    def salted(self, salt: str | None) -> "PictureProcessor":
        """Returns the processor for a request with this salt."""
        return self if salt == self.salt else replace(self, salt=salt)

    def digest(self, content: bytes) -> str:
        """Returns the hash of an item, which depends on the settings and the salt."""
        return self._hash("content", content)

    def name(self, uuid: str) -> str:
        """Returns the name of an item in the cache, made from its uuid and the processor's settings."""
        return self._hash("uuid", uuid.encode())

    def _hash(self, kind: str, content: bytes) -> str:
        salt = () if self.salt is None else (self.salt,)
        digest = hashlib.sha256(msgspec.json.encode((kind, self.settings, *salt)))
        digest.update(content)
        return digest.hexdigest()

    def changed(self, kwargs: Mapping[str, Any] | None) -> "PictureProcessor":
        """Returns a processor with a request's processor arguments; raises `BadRequest` for an unknown argument."""
        settings = self.settings
        for name, value in (kwargs or {}).items():
            settings = _changed(settings, name, value)
        return self if settings is self.settings else replace(self, settings=settings)


def _changed(settings: PictureSettings, name: str, value: Any) -> PictureSettings:
    match settings, name:
        case (NativeSize(), "min_pixels" | "max_pixels"):
            most = settings.max_pixels
            if type(value) is not int or not 1 <= value <= most:
                raise _refusal(f"{name} must be a number from 1 to {most}, got {value!a:.40}")
            changed = msgspec.structs.replace(settings, **{name: value})
            if changed.min_pixels > changed.max_pixels:
                changed = msgspec.structs.replace(changed, min_pixels=changed.max_pixels)
            return changed
        case (Squares(), "do_pan_and_scan"):
            return msgspec.structs.replace(settings, pan_and_scan=_read_bool(name, value))
        case (Tiles(), "do_image_splitting"):
            return msgspec.structs.replace(settings, is_split=_read_bool(name, value))
        case (NativeTiles(), "do_image_splitting"):
            return settings if _read_bool(name, value) else _undivided(settings)
    allowed = {NativeSize: "min_pixels and max_pixels", Squares: "do_pan_and_scan"}
    allowed |= {Tiles: "do_image_splitting", NativeTiles: "do_image_splitting", Lines: "nothing"}
    raise _refusal(f"{name[:40]!a} is not supported; this model allows {allowed[type(settings)]}")


def _undivided(settings: NativeTiles) -> NativeTiles:
    return msgspec.structs.replace(settings, min_tiles=1, max_tiles=1)


def _read_bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _refusal(f"{name} must be true or false")


def _refusal(message: str) -> BadRequest:
    return BadRequest(PROCESSOR_KWARGS, f"{PROCESSOR_KWARGS}: {message}")
