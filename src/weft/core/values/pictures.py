"""Pictures in the form that a model's vision tower takes: settings of its processor, and prepared items of a prompt.

Videos have the form of pictures, with frames.

A prepared picture has its pixels as bytes, at most a quarter of the size of the tower's input: the engine converts
bytes to numbers when it computes the tower. Sounds have their settings and configurations here too.
"""

from enum import StrEnum
from typing import Protocol

import msgspec

from weft.core.values.media import Media, Modality, SpeechRules, SpeechTokens

# Numbers of Pillow's filters: nearest, Lanczos, bilinear, bicubic, box, Hamming.
RESAMPLING = range(6)


class Pixels(msgspec.Struct, frozen=True, kw_only=True):
    """Conversion of a picture's pixels to patches: each channel is `(byte * scale - mean) / std`.

    Patches have `patch_size` x `patch_size` pixels and are ordered by windows of `merge_size` x `merge_size` patches;
    the vision tower makes one row of output per window. A patch repeats its pixels `temporal_size` times, like a video
    without motion.
    """

    patch_size: int
    merge_size: int = 1
    temporal_size: int = 1
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    resample: int = 3


class NativeSize(msgspec.Struct, frozen=True, kw_only=True, tag="native"):
    """Qwen's picture processor: width and height are rounded to whole windows, between a minimum and a maximum of
    pixels.
    """

    pixels: Pixels
    min_pixels: int
    max_pixels: int


class Squares(msgspec.Struct, frozen=True, kw_only=True, tag="squares"):
    """Gemma 3's picture processor: the picture as one square; with `pan_and_scan`, then squares of parts of a long
    picture.

    Each square takes `num_tokens` tokens, between a token that begins a picture and a token that ends it.
    """

    pixels: Pixels
    size: int
    num_tokens: int
    pan_and_scan: bool = False
    min_crop_size: int = 256
    max_num_crops: int = 4
    min_ratio: float = 1.2


class Tiles(msgspec.Struct, frozen=True, kw_only=True, tag="tiles"):
    """The picture processor of Idefics3 and SmolVLM: square tiles in rows and columns, then the whole picture as a
    square.

    Each square takes `num_tokens` tokens.
    """

    pixels: Pixels
    longest_edge: int
    tile_size: int
    num_tokens: int
    is_split: bool = True


class Lines(msgspec.Struct, frozen=True, kw_only=True, tag="lines"):
    """Pixtral's picture processor: width and height are rounded up to whole windows.

    Each window is a token. The text `line_end` follows each line of windows but the last, and `end` follows the last.
    """

    pixels: Pixels
    longest_edge: int
    line_end: str = "[IMG_BREAK]"
    end: str = "[IMG_END]"


class Middles(msgspec.Struct, frozen=True, kw_only=True, tag="middles"):
    """CLIP's picture processor: the square of `size` pixels a side in the middle of the picture, which takes
    `num_tokens` tokens. The picture is resized before: its shorter side has `shortest_edge` pixels.
    """

    pixels: Pixels
    shortest_edge: int
    size: int
    num_tokens: int


class NativeTiles(msgspec.Struct, frozen=True, kw_only=True, tag="native_tiles"):
    """LFM2-VL's picture processor: the picture in about its own size, as `min_tokens` to `max_tokens` whole windows.

    A picture with more than `tolerance` times the largest allowed number of pixels becomes `min_tiles` to `max_tiles`
    square tiles in rows and columns, and with `has_whole` then the whole picture as above. With `max_tiles` 1 no
    picture is divided. With `has_marks` texts stand around the picture and before each tile.
    """

    pixels: Pixels
    min_tokens: int
    max_tokens: int
    tile_size: int
    min_tiles: int
    max_tiles: int
    tolerance: float = 2.0
    has_whole: bool = True
    has_marks: bool = True


PictureSettings = NativeSize | Squares | Tiles | Lines | Middles | NativeTiles


MIN_SAMPLES = 8000  # of a sound in chunks: silence fills a shorter one


def rows_of_chunk(size: int) -> int:
    """Returns how many of so many columns, or mels, three convolutions leave that take every second one."""
    return -(-size // 8)


class SoundEnds(StrEnum):
    """Ways in which a sound ends in the windows that an encoder hears."""

    WHOLE = "whole"
    CUT = "cut"
    CHUNKS = "chunks"


class Spectrograms(msgspec.Struct, frozen=True, kw_only=True, tag="spectrograms"):
    """Processor of sounds of Whisper's kind: the logarithm of a spectrogram with `num_mels` mels, a column each 10 ms.

    The encoder hears windows of `num_columns` columns. `ends` says how a sound ends: WHOLE: silence fills its last
    window; CUT: it has one window at most, and its last row ends with it; CHUNKS: it has any number of windows, and its
    last column ends with it. A row is made of two columns, and a token joins `num_joined` rows; in CHUNKS, a window has
    as many tokens as `rows_of_chunk` says.
    """

    num_mels: int
    num_columns: int
    num_joined: int = 1
    ends: SoundEnds


class Videos(msgspec.Struct, frozen=True, kw_only=True, tag="videos"):
    """Qwen's video processor: frames at equal distances, in one size, whose sides are whole windows of the tower.

    It takes `num_frames` frames or, without that number, `fps` a second, and then from `min_frames` to `max_frames`.

    Of a model with `is_timed` each patch of frames has tokens of its own, after a text that says its time in seconds;
    `min_pixels` and `max_pixels` bound the pixels of all frames together. Otherwise they bound those of each frame, and
    the position of a patch of frames grows by `positions_per_second` a second; 0: by one. `max_tokens` bounds the
    pixels once more: of a frame, in windows, in models with `is_timed`, and in others of all frames together; None: it
    does not.
    """

    pixels: Pixels
    tokens: "ItemTokens"
    is_timed: bool
    positions_per_second: int = 0
    min_pixels: int
    max_pixels: int
    max_tokens: int | None = None
    fps: float = 2.0
    num_frames: int | None = None
    min_frames: int = 4
    max_frames: int = 768


ItemSettings = PictureSettings | Spectrograms


class ItemTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the tokens for items. The chat template writes one `anchor` per item, which the item's tokens replace.

    Each `placeholder` among the item's tokens takes one row of the vision tower's output. `begin` and `end` stand
    around placeholders.
    """

    anchor: int
    placeholder: int
    begin: int | None = None
    end: int | None = None


class Tile(msgspec.Struct, frozen=True):
    """Pixels of a picture or of a part of it: bytes [frames, height, width, 3].

    Height and width are multiples of the patch size. The last frame is repeated until it fills a patch of frames.
    `time_step` is the difference of the positions of two patches of frames that follow each other.
    """

    height: int
    width: int
    pixels: bytes
    num_frames: int = 1
    time_step: float = 1.0


Grid = tuple[int, int, int]  # frames, rows and columns of patches


class PreparedItem(msgspec.Struct, frozen=True, kw_only=True):
    """A media item in the form that the engine takes. `hash` identifies its content and its processing.

    `token_ids` replace the anchor token, and with it the tokens of `frame`, if they stand before and after it. `runs`
    are the tokens among them that take rows of the vision tower's output, in order: pairs of the first token's index
    and the number of tokens. A picture or video has `tiles`; a sound has `columns` of a spectrogram, as in
    `PlacedItem`.

    A picture that came as a processor's tensors has `patches` instead, which are float32 numbers in this machine's byte
    order, and the `grids` of these. Its tokens are in the prompt already: `span` has the first one's position, their
    number, and the token that takes a row.
    """

    modality: Modality
    hash: str
    token_ids: list[int]
    runs: list[tuple[int, int]]
    tiles: list[Tile] = []
    columns: bytes = b""
    frame: tuple[int, int] | None = None
    patches: bytes = b""
    grids: list[Grid] = []
    span: tuple[int, int, int] | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows of the vision tower's output for this item."""
        return sum(length for _, length in self.runs)

    @property
    def num_bytes(self) -> int:
        """Memory of the item in bytes, without small objects."""
        pixels = sum(len(tile.pixels) for tile in self.tiles)
        return pixels + len(self.columns) + len(self.patches) + 8 * len(self.token_ids)


class PlacedItem(msgspec.Struct, frozen=True, kw_only=True):
    """A media item at the prompt tokens `start` to `start + num_tokens`; `runs` are counted from `start`.

    A picture or video has `tiles`, or `patches` and `grids` as in `PreparedItem`. A sound has `columns` of a
    spectrogram, [columns, mels], which are float32 numbers in this machine's byte order. A sound that all tokens attend
    to has no runs, and covers every token that may come; `rules` limit the tokens of a transcript.
    """

    start: int
    num_tokens: int
    modality: Modality
    hash: str
    runs: list[tuple[int, int]]
    tiles: list[Tile]
    columns: bytes = b""
    rules: SpeechRules | None = None
    patches: bytes = b""
    grids: list[Grid] = []

    @property
    def end(self) -> int:
        """Position after the item's last token."""
        return self.start + self.num_tokens

    @property
    def num_rows(self) -> int:
        """Number of rows of the vision tower's output for this item."""
        return sum(length for _, length in self.runs)


class ItemPreparer(Protocol):
    """Prepares the media of a prompt for the vision tower."""

    async def prepare(self, media: Media, salt: str | None = None) -> list[PreparedItem]:
        """Returns the prepared items in order; raises `BadRequest` for an item that cannot be prepared. Items of
        different salts have different hashes.
        """

    def clear(self) -> None:
        """Drops all cached items."""

    async def aclose(self) -> None:
        """Closes the connections to servers of media."""


class ItemsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures or sounds in prompts of a model whose tower the engine computes itself: processing, sources and limits.

    A model that takes videos beside pictures has `videos`.

    `domains` and `directory` are the sources of items besides the request itself. Prepared items take up to
    `prepared_bytes` of memory in each server process, and outputs of the tower up to `output_bytes` in each engine. A
    step computes up to `max_step_rows` rows of outputs, or one item.

    A row of the tower's output has `row_size` numbers: `hidden_size` for the token's embedding, and as many again for
    each layer that adds a part of the row. If `sees_both_ways`, the rows of a picture attend to each other in both
    directions, so one step computes all of them. With `has_rope_sections` the model counts positions of rows and
    columns inside a picture.
    """

    settings: ItemSettings
    tokens: ItemTokens
    videos: Videos | None = None
    domains: tuple[str, ...] = ()
    directory: str | None = None
    prepared_bytes: int = 0
    output_bytes: int = 0
    max_step_rows: int = 1
    hidden_size: int
    row_size: int
    sees_both_ways: bool = False
    has_rope_sections: bool = False

    @property
    def anchors(self) -> dict[Modality, int]:
        """The anchor token of each modality that the engine accepts."""
        modality: Modality = "audio" if isinstance(self.settings, Spectrograms) else "image"
        anchors: dict[Modality, int] = {modality: self.tokens.anchor}
        if self.videos is not None:
            anchors["video"] = self.videos.tokens.anchor
        return anchors

    def pixels(self, modality: Modality) -> Pixels:
        """Returns how the engine converts the pixels of pictures or videos to patches."""
        if modality == "video":
            assert self.videos is not None
            return self.videos.pixels
        assert not isinstance(self.settings, Spectrograms)
        return self.settings.pixels

    def num_rows(self, item: PlacedItem) -> int:
        """Returns the number of rows that the tower computes for an item."""
        return item.num_rows

    def num_bytes(self, item: PlacedItem) -> int:
        """Returns the memory of the tower's output for an item."""
        return 4 * self.row_size * item.num_rows


class SoundsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model of speech that an engine of ours computes, with cross-attention to a sound.

    It hears `num_columns` columns of `num_mels` mels at a time, 10 ms each. Its encoder makes a row of two columns, and
    of the rows the keys and values of cross-attention, which take `memory_bytes` in the engine. All of these together
    take up to `output_bytes`. A step computes up to `max_step_rows` rows of the encoder, or one sound.
    """

    tokens: SpeechTokens
    num_mels: int
    num_columns: int
    memory_bytes: int
    output_bytes: int
    max_step_rows: int

    @property
    def sees_both_ways(self) -> bool:
        """False: a sound has no rows of its own in the prompt."""
        return False

    def num_rows(self, item: PlacedItem) -> int:
        """Returns the number of rows that the tower computes for a sound: the same for all."""
        del item
        return self.num_columns // 2

    def num_bytes(self, item: PlacedItem) -> int:
        """Returns the memory of the tower's output for a sound: the same for all."""
        del item
        return self.memory_bytes


TowerConfig = ItemsConfig | SoundsConfig
