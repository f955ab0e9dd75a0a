"""Pictures of LFM2-VL: the pixels and the tokens of transformers' own processor."""

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.doubles.pictures import png
from tests.media.processors.lfm2_in_transformers import CASES, SIZES, noise
from weft.core.errors import BadRequest, ConfigError
from weft.core.values.pictures import ItemTokens, NativeTiles, Pixels
from weft.media.processors.patches import to_patches
from weft.media.processors.picture_processor import PictureProcessor
from weft.model.picture_settings import TowerSizes, read_picture_settings

TOKENS = ItemTokens(anchor=ord("*"), placeholder=ord("*"))
SETTINGS = NativeTiles(
    pixels=Pixels(patch_size=16, merge_size=2, resample=2),
    min_tokens=4,
    max_tokens=16,
    tile_size=64,
    min_tiles=2,
    max_tiles=10,
)
# One level of 255, with the deviation of 0.5 that pixels are divided by.
BOUND = 2.0001 / 255


def as_text(text: str) -> list[int]:
    """Encodes a text as its characters."""
    return [ord(character) for character in text]


def processor_of(directory: Path) -> PictureProcessor:
    """The processor for the settings that transformers' processor has saved."""
    settings = read_picture_settings(directory, TowerSizes(16, 2))
    assert settings is not None
    return PictureProcessor(settings, TOKENS, as_text)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of transformers' processor."""
    directory = tmp_path_factory.mktemp("lfm2")
    module = "tests.media.processors.lfm2_in_transformers"
    subprocess.run([sys.executable, "-m", module, str(directory)], check=True, capture_output=True)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_tiles_and_tokens_are_those_of_transformers(theirs: Path, case: str, size: tuple[int, int]):
    """Sizes, grids and texts are equal, and pixels to one level: Pillow and torch round the same sums differently."""
    file = theirs / case / f"{size[0]}x{size[1]}"
    expected = msgspec.json.decode(file.with_suffix(".json").read_bytes())
    ours = processor_of(theirs / case)
    item = ours.prepare(png(noise(*size)), "hash")
    assert "".join(map(chr, item.token_ids)) == expected["text"]
    pixels = msgspec.structs.replace(ours.settings.pixels, merge_size=1)
    patches, grids = to_patches(item.tiles, pixels)
    assert [list(grid[1:]) for grid in grids] == expected["shapes"]
    turned = patches.reshape(-1, 3, 16, 16).transpose(0, 2, 3, 1).reshape(len(patches), -1)
    given = np.fromfile(file.with_suffix(".pixels"), np.float32).reshape(len(grids), -1, 768)
    wanted = [one[: rows * columns] for one, (_, rows, columns) in zip(given, grids, strict=True)]
    assert np.abs(turned - np.concatenate(wanted)).max() <= BOUND


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((64, 64), (0, 0)),
        ((640, 480), (2, 3)),
        ((900, 90), (1, 10)),
        ((90, 700), (8, 1)),
        ((200, 190), (3, 3)),
    ],
)
def test_large_pictures_are_divided(size: tuple[int, int], grid: tuple[int, int]):
    """The grid has about the ratio of the picture's sides; the whole picture follows its tiles."""
    item = PictureProcessor(SETTINGS, TOKENS, as_text).prepare(png(noise(*size)), "hash")
    rows, columns = grid
    assert len(item.tiles) == rows * columns + 1
    text = "".join(map(chr, item.token_ids))
    assert text.count("<|img_row_") == rows * columns
    assert text.count("<|img_thumbnail|>") == (rows > 0)
    assert (
        item.num_rows == 4 * rows * columns + item.tiles[-1].height * item.tiles[-1].width // 1024
    )
    undivided = PictureProcessor(SETTINGS, TOKENS, as_text).changed("do_image_splitting", False)
    assert len(undivided.prepare(png(noise(*size)), "hash").tiles) == 1


def test_a_picture_that_is_too_long_is_refused():
    """Its short side would keep a window, and its long side thousands of them."""
    with pytest.raises(BadRequest, match="20000 x 1 pixels is too long"):
        PictureProcessor(SETTINGS, TOKENS, as_text).prepare(png(noise(20_000, 1)), "hash")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder_patch_size": 14}, "encoder_patch_size"),
        ({"downsample_factor": 3}, "downsample_factor"),
        ({"tile_size": 65}, "a side of 65 pixels"),
        ({"min_tiles": 1}, "min_tiles"),
        ({"max_tiles": 65}, "max_tiles"),
        ({"min_image_tokens": 20, "max_image_tokens": 10}, "max_image_tokens"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(changes: dict, words: str, tmp_path: Path):
    """The error names the key of the file."""
    values = {
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "image_processor_type": "Lfm2VlImageProcessorFast",
    }
    Path(tmp_path, "preprocessor_config.json").write_bytes(
        msgspec.json.encode({**values, **changes})
    )
    with pytest.raises(ConfigError, match=words):
        read_picture_settings(tmp_path, TowerSizes(16, 2))


def test_texts_may_be_left_out(tmp_path: Path):
    """`use_image_special_tokens` is in processor_config.json."""
    values = {
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "image_processor_type": "Lfm2VlImageProcessor",
    }
    whole = {"image_processor": values, "use_image_special_tokens": False}
    Path(tmp_path, "processor_config.json").write_bytes(msgspec.json.encode(whole))
    item = processor_of(tmp_path).prepare(png(noise(1200, 900)), "hash")
    assert set(item.token_ids) == {TOKENS.placeholder}
    assert len(item.tiles) > 1
