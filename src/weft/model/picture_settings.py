"""Reads preprocessor_config.json and video_preprocessor_config.json, or their parts of processor_config.json: settings
for the preparation of pictures and videos.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from weft.core.errors import ConfigError
from weft.core.values.pictures import (
    RESAMPLING,
    ItemTokens,
    Lines,
    Middles,
    NativeSize,
    NativeTiles,
    PictureSettings,
    Pixels,
    Squares,
    Tiles,
    Videos,
)
from weft.model.card import ItemCard
from weft.model.fields import Fields, is_finite_number, read_fields
from weft.model.spec import ModelSpec
from weft.model.towers.spec import Resampling, TowerSpec

PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
VIDEO_PREPROCESSOR = "video_preprocessor_config.json"
_MAX_SIDE = 1 << 14
MAX_PIXELS = 1 << 26
_MAX_TOKENS = 1 << 14  # of a picture that is not divided
_MAX_TILES = 64
_MAX_FRAMES = 1 << 12
# Settings of the releases' own programs: files of Qwen2.5-VL have none, and its limits for pictures are too large for
# each frame of a video.
_VIDEOS: Mapping[bool, Mapping[str, object]] = {
    False: {
        "video_processor_type": "Qwen2VLVideoProcessor",
        "size": {"shortest_edge": 128 * 28**2, "longest_edge": 768 * 28**2},
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "max_video_tokens": 128_000,
    },
    True: {
        "video_processor_type": "Qwen3VLVideoProcessor",
        "size": {"shortest_edge": 128 * 32**2, "longest_edge": 768 * 32**2},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "max_video_tokens": 768,
    },
}


@dataclass(frozen=True, slots=True)
class TowerSizes:
    """Sizes of a tower: a patch in pixels, a token's patches in one direction, and a patch's frames."""

    patch_size: int
    merge_size: int = 1
    temporal_size: int = 1


def read_picture_settings(directory: Path, sizes: TowerSizes) -> PictureSettings | None:
    """Returns the picture settings for a model's tower; None if the checkpoint has no such file.

    Raises `ConfigError` for values that are not supported.
    """
    fields = _read_file(directory)
    if fields is None:
        return None
    settings = make_picture_settings(fields, sizes)
    match settings:
        case Lines():
            return _with_marks(settings, directory)
        case NativeTiles():
            whole = _read_processor(directory)
            has_marks = whole.flag_or("use_image_special_tokens", True)
            return msgspec.structs.replace(settings, has_marks=has_marks)
    return settings


def make_picture_settings(fields: Fields, sizes: TowerSizes) -> PictureSettings:
    """Returns the picture settings that a preprocessor_config.json alone has."""
    kind = fields.text("image_processor_type").removesuffix("Fast").removesuffix("Pil")
    read = _READERS.get(kind)
    if read is None:
        raise ConfigError(
            f"{fields.where}: image_processor_type {kind!a:.80} is not supported; supported are "
            f"{', '.join(_READERS)}"
        )
    _check_steps(fields)
    return read(fields, sizes)


def read_picture_card(directory: Path, spec: ModelSpec) -> ItemCard | None:
    """Returns the facts for pictures of a model with a tower; None if its files do not say how pictures are
    prepared.
    """
    tower = spec.tower
    if tower is None or tower.image_token_id is None:
        return None
    settings = read_picture_settings(directory, sizes_of(tower))
    if settings is None:
        return None
    return picture_card(
        settings, spec, _read_part(directory, "video_processor", VIDEO_PREPROCESSOR)
    )


def sizes_of(tower: TowerSpec) -> TowerSizes:
    """Returns the sizes of a tower that picture settings depend on."""
    return TowerSizes(tower.patch_size, tower.merge, tower.temporal_patch_size)


def picture_card(
    settings: PictureSettings, spec: ModelSpec, videos: Fields | None = None
) -> ItemCard:
    """Returns the facts for pictures of a model with a tower and tokens for its rows.

    `videos` are the settings of its video processor; the family's own are taken in place of those that are missing.
    """
    tower = spec.tower
    assert tower is not None
    assert tower.image_token_id is not None
    _check_side(settings, tower)
    anchor = tower.start_token_id if isinstance(settings, Squares) else None
    return ItemCard(
        settings=settings,
        tokens=ItemTokens(
            anchor=tower.image_token_id if anchor is None else anchor,
            placeholder=tower.image_token_id,
            begin=tower.start_token_id,
            end=tower.end_token_id,
        ),
        videos=_videos(videos or Fields({}, VIDEO_PREPROCESSOR), spec),
        hidden_size=tower.output_size,
        row_size=tower.row_size,
        sees_both_ways=spec.sees_items_whole,
        has_rope_sections=spec.rope_sections is not None,
    )


def _check_side(settings: PictureSettings, tower: TowerSpec) -> None:
    """Raises `ConfigError` unless squares of the picture processor have as many patches as the tower takes."""
    if not isinstance(settings, Squares | Middles) or tower.resampling is not Resampling.EXACT:
        return
    side = tower.num_positions * tower.patch_size
    if settings.size != side:
        raise ConfigError(
            f"{PREPROCESSOR}: squares of {settings.size} pixels a side, and the tower of config.json takes {side}"
        )


def _videos(given: Fields, spec: ModelSpec) -> Videos | None:
    """Returns the settings for videos; None if the model has no token for them."""
    tower = spec.tower
    assert tower is not None
    token_id = tower.video_token_id
    if token_id is None or token_id >= spec.vocab_size:
        return None
    positions = tower.video_positions_per_second
    fields = Fields({**_VIDEOS[positions is None], **given.values}, given.where)
    kind = str(_VIDEOS[positions is None]["video_processor_type"])
    if fields.text("video_processor_type") != kind:
        fields.refuse("video_processor_type", kind)
    _check_steps(fields)
    bounds = _native(fields, sizes_of(tower))
    is_capped = fields.flag_or("cap_pixels_per_frame", False)
    least = fields.integer_or("min_frames", 4, high=_MAX_FRAMES)
    has_number = fields.has("num_frames")
    return Videos(
        pixels=bounds.pixels,
        tokens=ItemTokens(
            anchor=token_id,
            placeholder=token_id,
            begin=tower.start_token_id,
            end=tower.end_token_id,
        ),
        is_timed=positions is None,
        positions_per_second=positions or 0,
        min_pixels=bounds.min_pixels,
        max_pixels=bounds.max_pixels,
        max_tokens=fields.integer("max_video_tokens") if is_capped else None,
        fps=fields.factor_or("fps", 2.0),
        num_frames=fields.integer("num_frames", high=_MAX_FRAMES) if has_number else None,
        min_frames=least,
        max_frames=fields.integer_or("max_frames", 768, low=least, high=_MAX_FRAMES),
    )


def _read_file(directory: Path) -> Fields | None:
    return _read_part(directory, "image_processor", PREPROCESSOR)


def _read_part(directory: Path, key: str, name: str) -> Fields | None:
    """Returns an object of processor_config.json, or else the file with this name."""
    whole = directory / PROCESSOR
    if whole.exists():
        part = read_fields(whole).object(key)
        if part is not None:
            return part
    path = directory / name
    return read_fields(path) if path.exists() else None


def _check_steps(fields: Fields) -> None:
    """Raises `ConfigError` for settings that leave out a step of the preparation."""
    for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        if not fields.flag_or(name, True):
            fields.refuse(name, "true")


def _with_marks(settings: Lines, directory: Path) -> Lines:
    """Returns the settings with the texts that end a line and a picture, if processor_config.json has others."""
    names = {"image_break_token": "line_end", "image_end_token": "end"}
    fields = _read_processor(directory)
    given = {name: fields.text(key) for key, name in names.items() if fields.has(key)}
    return msgspec.structs.replace(settings, **given)


def _read_processor(directory: Path) -> Fields:
    path = directory / PROCESSOR
    return read_fields(path) if path.exists() else Fields({}, PROCESSOR)


def _native(fields: Fields, sizes: TowerSizes) -> NativeSize:
    """Returns the settings; old files have `min_pixels` and `max_pixels`, newer ones a `size` with both."""
    size = fields.object("size") or Fields({}, fields.where)
    side = sizes.patch_size * sizes.merge_size
    least, most = (
        size.integer_or("shortest_edge", 56 * 56),
        size.integer_or("longest_edge", 1280 * 28 * 28),
    )
    least = fields.integer_or("min_pixels", least, high=MAX_PIXELS)
    most = fields.integer_or("max_pixels", most, low=max(least, side * side), high=MAX_PIXELS)
    pixels = _pixels(fields, sizes, resample=3)
    return NativeSize(pixels=pixels, min_pixels=least, max_pixels=most)


def _squares(fields: Fields, sizes: TowerSizes) -> Squares:
    size = _object(fields, "size")
    side = size.integer("height", high=_MAX_SIDE)
    if size.integer("width", high=_MAX_SIDE) != side:
        size.refuse("width", "the height")
    pans = fields.flag_or("do_pan_and_scan", False)
    return Squares(
        pixels=_pixels(fields, sizes, resample=2),
        size=side,
        num_tokens=_num_tokens(side, sizes, size),
        pan_and_scan=pans,
        min_crop_size=fields.integer_or("pan_and_scan_min_crop_size", 256, high=_MAX_SIDE),
        max_num_crops=fields.integer_or("pan_and_scan_max_num_crops", 4, low=2, high=64),
        min_ratio=fields.factor_or("pan_and_scan_min_ratio_to_activate", 1.2),
    )


def _tiles(fields: Fields, sizes: TowerSizes) -> Tiles:
    tile = _object(fields, "max_image_size")
    side = tile.integer("longest_edge", high=_MAX_SIDE)
    return Tiles(
        pixels=_pixels(fields, sizes, resample=1),
        longest_edge=_object(fields, "size").integer("longest_edge", high=_MAX_SIDE),
        tile_size=side,
        num_tokens=_num_tokens(side, sizes, tile),
        is_split=fields.flag_or("do_image_splitting", True),
    )


def _lines(fields: Fields, sizes: TowerSizes) -> Lines:
    longest = _object(fields, "size").integer("longest_edge", high=_MAX_SIDE)
    return Lines(pixels=_pixels(fields, sizes, resample=3), longest_edge=longest)


def _middles(fields: Fields, sizes: TowerSizes) -> Middles:
    if not fields.flag_or("do_center_crop", True):
        fields.refuse("do_center_crop", "true")
    crop = fields.values.get("crop_size", 224)  # a number in old files
    sides = crop if isinstance(crop, dict) else {"height": crop, "width": crop}
    box = Fields(sides, f"{fields.where}: crop_size")
    side = box.integer("height", high=_MAX_SIDE)
    if box.integer("width", high=_MAX_SIDE) != side:
        box.refuse("width", "the height")
    given = fields.values.get("size", 224)
    whole = Fields(
        given if isinstance(given, dict) else {"shortest_edge": given}, f"{fields.where}: size"
    )
    return Middles(
        pixels=_pixels(fields, sizes, resample=3),
        shortest_edge=whole.integer("shortest_edge", low=side, high=_MAX_SIDE),
        size=side,
        num_tokens=_num_tokens(side, sizes, fields),
    )


def _native_tiles(fields: Fields, sizes: TowerSizes) -> NativeTiles:
    for key, size in (
        ("encoder_patch_size", sizes.patch_size),
        ("downsample_factor", sizes.merge_size),
    ):
        if fields.integer_or(key, size) != size:
            fields.refuse(key, f"{size}, as in config.json")
    least = fields.integer_or("min_image_tokens", 64, high=MAX_PIXELS)
    most = fields.integer_or("max_image_tokens", 256, low=least, high=_MAX_TOKENS)
    tile_size = fields.integer_or("tile_size", 512, high=_MAX_SIDE)
    _num_tokens(tile_size, sizes, fields)
    max_tiles = fields.integer_or("max_tiles", 10, high=_MAX_TILES)
    is_split = max_tiles > 1 and fields.flag_or("do_image_splitting", True)
    return NativeTiles(
        pixels=_pixels(fields, sizes, resample=2),
        min_tokens=least,
        max_tokens=most,
        tile_size=tile_size,
        min_tiles=fields.integer_or("min_tiles", 2, low=2, high=max_tiles) if is_split else 1,
        max_tiles=max_tiles if is_split else 1,
        tolerance=fields.factor_or("max_pixels_tolerance", 2.0),
        has_whole=fields.flag_or("use_thumbnail", True),
    )


def _pixels(fields: Fields, sizes: TowerSizes, *, resample: int) -> Pixels:
    mean, std = _channels(fields, "image_mean"), _channels(fields, "image_std")
    if not all(std):
        fields.refuse("image_std", "three numbers above 0")
    return Pixels(
        patch_size=sizes.patch_size,
        merge_size=sizes.merge_size,
        temporal_size=sizes.temporal_size,
        scale=fields.factor_or("rescale_factor", 1 / 255),
        mean=mean,
        std=std,
        resample=fields.integer_or(
            "resample", resample, low=RESAMPLING.start, high=RESAMPLING.stop - 1
        ),
    )


def _channels(fields: Fields, key: str) -> tuple[float, ...]:
    values = fields.values.get(key)
    if not isinstance(values, list) or len(values) != 3 or not all(map(_is_level, values)):
        fields.refuse(key, "three numbers from 0 to 255")
    return tuple(map(float, values))


def _is_level(value: object) -> bool:
    return is_finite_number(value) and 0 <= value <= 255


def _num_tokens(side: int, sizes: TowerSizes, fields: Fields) -> int:
    patches, rest = divmod(side, sizes.patch_size)
    if rest or patches % sizes.merge_size:
        step = sizes.patch_size * sizes.merge_size
        raise ConfigError(f"{fields.where}: a side of {side} pixels is not a multiple of {step}")
    return (patches // sizes.merge_size) ** 2


def _object(fields: Fields, key: str) -> Fields:
    found = fields.object(key)
    if found is None:
        fields.refuse(key, "an object")
    return found


_READERS: Mapping[str, Callable[[Fields, TowerSizes], PictureSettings]] = {
    "Qwen2VLImageProcessor": _native,
    "Qwen2_5_VLImageProcessor": _native,
    "Qwen3VLImageProcessor": _native,
    "Gemma3ImageProcessor": _squares,
    "Idefics3ImageProcessor": _tiles,
    "SmolVLMImageProcessor": _tiles,
    "PixtralImageProcessor": _lines,
    "CLIPImageProcessor": _middles,
    "Lfm2VlImageProcessor": _native_tiles,
}
