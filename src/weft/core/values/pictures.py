"""Pictures as a model's tower takes them: settings of its processor, and prepared items of a prompt.

A prepared picture keeps its pixels as bytes, a quarter of the size of the tower's input and less: the engine converts
them when it computes the tower.
"""

from typing import Protocol

import msgspec

from weft.core.values.media import Media, Modality

# Filters of Pillow, by their numbers: nearest, Lanczos, bilinear, bicubic, box, Hamming.
RESAMPLING = range(6)


class Pixels(msgspec.Struct, frozen=True, kw_only=True):
    """Conversion of a picture's pixels to patches: each channel is `(byte * scale - mean) / std`.

    Patches of `patch_size` x `patch_size` pixels are ordered by windows of `merge_size` x `merge_size` patches, and
    the tower makes a row of each window. A patch repeats its pixels `temporal_size` times, as a film without motion.
    """

    patch_size: int
    merge_size: int = 1
    temporal_size: int = 1
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    resample: int = 3


class NativeSize(msgspec.Struct, frozen=True, kw_only=True, tag="native"):
    """Qwen's processor: sides are rounded to whole windows, within bounds of the number of pixels."""

    pixels: Pixels
    min_pixels: int
    max_pixels: int


class Squares(msgspec.Struct, frozen=True, kw_only=True, tag="squares"):
    """Gemma 3's processor: a square, and with `pan_and_scan` squares of parts of a long picture after it.

    Each square takes `num_tokens` tokens, between a token that begins a picture and one that ends it.
    """

    pixels: Pixels
    size: int
    num_tokens: int
    pan_and_scan: bool = False
    min_crop_size: int = 256
    max_num_crops: int = 4
    min_ratio: float = 1.2


class Tiles(msgspec.Struct, frozen=True, kw_only=True, tag="tiles"):
    """The processor of Idefics3 and SmolVLM: square tiles in rows and columns, and after them the whole picture in a
    square. Each square takes `num_tokens` tokens.
    """

    pixels: Pixels
    longest_edge: int
    tile_size: int
    num_tokens: int
    is_split: bool = True


class Lines(msgspec.Struct, frozen=True, kw_only=True, tag="lines"):
    """Pixtral's processor: sides are rounded up to whole windows, each a token, and a further token ends each line."""

    pixels: Pixels
    longest_edge: int


PictureSettings = NativeSize | Squares | Tiles | Lines


class PictureTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the tokens of pictures. The chat template writes `anchor` for an item, which becomes the item's tokens;
    each `placeholder` among these takes a row of the tower. `begin` and `end` stand around placeholders.
    """

    anchor: int
    placeholder: int
    begin: int | None = None
    end: int | None = None


class Tile(msgspec.Struct, frozen=True):
    """Pixels of a picture or of a part of it: bytes [height, width, 3], of which the sides are whole patches."""

    height: int
    width: int
    pixels: bytes


class PreparedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item as the engine takes it. `hash` names its content and its processing.

    `token_ids` replace the anchor. `runs` are the tokens among them that take rows of the tower's output, in order:
    the first token and the number of tokens.
    """

    modality: Modality
    hash: str
    token_ids: list[int]
    runs: list[tuple[int, int]]
    tiles: list[Tile]

    @property
    def num_rows(self) -> int:
        """Number of rows of the tower's output."""
        return sum(length for _, length in self.runs)

    @property
    def num_bytes(self) -> int:
        """Memory of the item, without small objects."""
        return sum(len(tile.pixels) for tile in self.tiles) + 8 * len(self.token_ids)


class PlacedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a prompt at the tokens `start` to `start + num_tokens`; `runs` are counted from `start`."""

    start: int
    num_tokens: int
    modality: Modality
    hash: str
    runs: list[tuple[int, int]]
    tiles: list[Tile]

    @property
    def end(self) -> int:
        """Position after the item's last token."""
        return self.start + self.num_tokens

    @property
    def num_rows(self) -> int:
        """Number of rows of the tower's output."""
        return sum(length for _, length in self.runs)


class ItemPreparer(Protocol):
    """Prepares the media of a prompt."""

    async def prepare(self, media: Media) -> list[PreparedItem]:
        """Returns the items in order; raises `BadRequest` for an item that cannot be prepared."""

    def clear(self) -> None:
        """Drops cached items."""

    async def aclose(self) -> None:
        """Closes the connections."""


class PicturesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures of a model that an engine of ours computes: their processing, their sources, and limits.

    `domains` and `directory` are the places that pictures are read from, beside the request itself. Prepared pictures
    take up to `prepared_bytes` of memory in each server process, and outputs of the tower up to `output_bytes` in each
    engine. A step computes up to `max_step_rows` rows of outputs, or one item.

    A row of the tower has `row_size` numbers: `hidden_size` for the token itself, and as many for each layer that adds
    some. If `sees_both_ways`, the rows of a picture see each other, and no step computes a part of them. With
    `has_rope_sections` the model counts positions of rows and columns inside a picture.
    """

    settings: PictureSettings
    tokens: PictureTokens
    domains: tuple[str, ...] = ()
    directory: str | None = None
    prepared_bytes: int = 0
    output_bytes: int = 0
    max_step_rows: int = 1
    hidden_size: int
    row_size: int
    sees_both_ways: bool = False
    has_rope_sections: bool = False
