"""Processors give the pixels and the tokens of transformers' own, of which torch and torchvision are no part here."""

import io
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from weft.core.errors import BadRequest
from weft.core.values.pictures import ItemTokens, Pixels, PreparedItem
from weft.media.pictures import decode_picture
from weft.media.processors.patches import to_patches
from weft.media.processors.picture_processor import PictureProcessor
from weft.model.picture_settings import TowerSizes, read_picture_settings

ANCHOR, PLACEHOLDER, BEGIN, END = 1001, 1002, 1003, 1004
TOKENS = ItemTokens(anchor=ANCHOR, placeholder=PLACEHOLDER, begin=BEGIN, end=END)
SIZES = ((1, 1), (64, 64), (57, 91), (301, 200), (640, 480), (28, 2800), (450, 90), (90, 700))


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A picture of random pixels, smooth enough that no resampling is the same as another."""
    random = np.random.default_rng(width * 10_007 + height)
    bands = {"RGB": 3, "RGBA": 4, "L": 1, "LA": 2, "CMYK": 4}[mode]
    values = random.integers(0, 256, (height, width, bands), np.uint8)
    return Image.fromarray(values.squeeze(-1) if bands == 1 else values, mode)


def png(picture: Image.Image, **options: object) -> bytes:
    """The file of a picture."""
    file = io.BytesIO()
    picture.save(file, options.pop("format", "PNG"), **options)
    return file.getvalue()


def as_text(text: str) -> list[int]:
    """Encodes a text as its characters: none of these ids is that of a special token."""
    return [ord(character) for character in text]


def open_processor(theirs: object, directory: Path, sizes: TowerSizes) -> PictureProcessor:
    """Our processor, with the settings that theirs has saved."""
    theirs.save_pretrained(directory)
    settings = read_picture_settings(directory, sizes)
    assert settings is not None
    return PictureProcessor(settings, TOKENS, as_text)


def squares(item: PreparedItem, pixels: Pixels) -> np.ndarray:
    """The pixels of square tiles, [tiles, channels, side, side], put together from patches."""
    patches, grids = to_patches(item.tiles, msgspec.structs.replace(pixels, merge_size=1))
    side, (_, rows, columns) = pixels.patch_size, grids[0]
    parts = patches.reshape(len(grids), rows, columns, 3, side, side).transpose(0, 3, 1, 4, 2, 5)
    return parts.reshape(len(grids), 3, rows * side, columns * side)


def all_modes() -> dict[str, bytes]:
    """Files of one picture in every mode that their formats have."""
    palette = noise(70, 50).quantize(16)
    clear = noise(70, 50).quantize(16)
    clear.info["transparency"] = 3
    turned = Image.Exif()
    turned[0x0112] = 6
    return {
        "alpha": png(noise(70, 50, "RGBA")),
        "grey with alpha": png(noise(70, 50, "LA")),
        "grey": png(noise(70, 50, "L")),
        "palette": png(palette),
        "palette with transparency": png(clear, transparency=3),
        "CMYK": png(noise(70, 50, "CMYK"), format="JPEG"),
        "turned": png(noise(70, 50), format="JPEG", exif=turned),
        "bits": png(noise(70, 50, "L").convert("1")),
        "16 bits": png(Image.fromarray(np.arange(3500, dtype=np.uint16).reshape(50, 70))),
        "animation": png(
            noise(70, 50).quantize(16), format="GIF", save_all=True, append_images=[palette]
        ),
        "webp": png(noise(70, 50), format="WEBP"),
        "bmp": png(noise(70, 50), format="BMP"),
    }


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("patch_size", "bounds"), [(14, (3136, 1003520)), (16, (4096, 50_000))])
def test_native_sizes_give_transformers_patches(
    size: tuple[int, int], patch_size: int, bounds: tuple[int, int], tmp_path: Path
) -> None:
    """Patches and grid of Qwen's pictures are equal to the bit."""
    theirs = Qwen2VLImageProcessorPil(
        patch_size=patch_size, min_pixels=bounds[0], max_pixels=bounds[1]
    )
    ours = open_processor(theirs, tmp_path, TowerSizes(patch_size, 2, 2))
    picture = noise(*size)
    expected = theirs([picture], return_tensors="np")
    item = ours.prepare(png(picture), "hash")
    patches, grids = to_patches(item.tiles, ours.settings.pixels)
    assert [list(grid) for grid in grids] == expected["image_grid_thw"].tolist()
    np.testing.assert_array_equal(patches, expected["pixel_values"])
    num_tokens = int(expected["image_grid_thw"].prod()) // 4
    assert item.token_ids == [PLACEHOLDER] * num_tokens
    assert item.runs == [(0, num_tokens)]


@pytest.mark.parametrize("name", all_modes())
def test_every_mode_gives_transformers_pixels(name: str, tmp_path: Path) -> None:
    """Alpha stands on white; palettes, grey, CMYK and 16 bits become RGB; EXIF turns; of an animation the first frame
    counts.
    """
    theirs = Qwen2VLImageProcessorPil()
    ours = open_processor(theirs, tmp_path, TowerSizes(14, 2, 2))
    data = all_modes()[name]
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    expected = theirs([picture], return_tensors="np")
    item = ours.prepare(data, "hash")
    patches, _ = to_patches(item.tiles, ours.settings.pixels)
    np.testing.assert_array_equal(patches, expected["pixel_values"])


@pytest.mark.parametrize("pans", [False, True])
@pytest.mark.parametrize("size", [*SIZES, (1300, 300), (260, 1400)])
def test_squares_give_transformers_pixels(
    size: tuple[int, int], pans: bool, tmp_path: Path
) -> None:
    """Gemma's squares are equal to the bit, those of pan and scan included, each in a paragraph of its own."""
    theirs = Gemma3ImageProcessorPil(
        do_pan_and_scan=pans,
        pan_and_scan_min_crop_size=256,
        pan_and_scan_max_num_crops=4,
        pan_and_scan_min_ratio_to_activate=1.2,
    )
    ours = open_processor(theirs, tmp_path, TowerSizes(14, 4))
    picture = noise(*size)
    expected = theirs([picture], return_tensors="np")
    item = ours.prepare(png(picture), "hash")
    np.testing.assert_array_equal(
        squares(item, ours.settings.pixels), np.array(expected["pixel_values"])
    )
    square = [*as_text("\n\n"), BEGIN, *[PLACEHOLDER] * 16, END, *as_text("\n\n")]
    texts = ["Here is the original image ", " and here are some crops to help you see better ", " "]
    num_crops = int(expected["num_crops"][0])
    words = [as_text(text) for text in (texts if num_crops else ["", "", ""])]
    crops = [words[1], square, *[part for _ in range(num_crops - 1) for part in (words[2], square)]]
    assert item.token_ids == list(chain(words[0], square, *(crops if num_crops else [])))
    assert sum(length for _, length in item.runs) == 16 * (1 + num_crops)


@pytest.mark.parametrize("kind", [Idefics3ImageProcessorPil, SmolVLMImageProcessorPil])
@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_tiles_give_transformers_pixels(
    size: tuple[int, int], splits: bool, kind: type, tmp_path: Path
) -> None:
    """Tiles in rows and columns, and the whole picture after them, are equal to the bit."""
    theirs = kind(
        do_image_splitting=splits, size={"longest_edge": 192}, max_image_size={"longest_edge": 64}
    )
    ours = open_processor(theirs, tmp_path, TowerSizes(16, 2))
    picture = noise(*size)
    expected = theirs([picture], return_tensors="np", return_row_col_info=True)
    item = ours.prepare(png(picture), "hash")
    np.testing.assert_array_equal(
        squares(item, ours.settings.pixels), np.array(expected["pixel_values"])[0]
    )
    num_rows, num_columns = expected["rows"][0][0], expected["cols"][0][0]
    square = [PLACEHOLDER] * 4
    names = [
        [
            *([BEGIN, *as_text(f"<row_{y + 1}_col_{x + 1}>"), *square]),
            *as_text("\n" * (x + 1 == num_columns)),
        ]
        for y in range(num_rows)
        for x in range(num_columns)
    ]
    whole = [*as_text("\n" * bool(num_rows)), BEGIN, *as_text("<global-img>"), *square, BEGIN]
    assert item.token_ids == list(chain(*names, whole))


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("size", [*SIZES, (2000, 20), (20, 2000)])
def test_lines_give_transformers_pixels(size: tuple[int, int], window: int, tmp_path: Path) -> None:
    """Pixtral's patches are equal to the bit, line by line, with a token after each line."""
    theirs = PixtralImageProcessorPil(
        size={"longest_edge": 256}, patch_size={"height": 16 * window, "width": 16 * window}
    )
    ours = open_processor(theirs, tmp_path, TowerSizes(16, window))
    picture = noise(*size)
    expected = theirs([picture], return_tensors="np")
    item = ours.prepare(png(picture), "hash")
    np.testing.assert_array_equal(
        squares(item, ours.settings.pixels), np.array(expected["pixel_values"])
    )
    height, width = (side // (16 * window) for side in expected["image_sizes"][0])
    lines = [*[PLACEHOLDER] * width, *as_text("[IMG_BREAK]")] * (height - 1)
    assert item.token_ids == [*lines, *[PLACEHOLDER] * width, *as_text("[IMG_END]")]


@pytest.mark.parametrize("shortest_edge", [64, 80])
@pytest.mark.parametrize("size", [*SIZES, (65, 64), (101, 67)])
def test_middles_give_transformers_pixels(
    size: tuple[int, int], shortest_edge: int, tmp_path: Path
) -> None:
    """CLIP's squares are equal to the bit, and each patch is a token."""
    theirs = CLIPImageProcessorPil(
        size={"shortest_edge": shortest_edge}, crop_size={"height": 64, "width": 64}
    )
    ours = open_processor(theirs, tmp_path, TowerSizes(16))
    picture = noise(*size)
    expected = theirs([picture], return_tensors="np")
    item = ours.prepare(png(picture), "hash")
    np.testing.assert_array_equal(
        squares(item, ours.settings.pixels), np.array(expected["pixel_values"])
    )
    assert item.token_ids == [PLACEHOLDER] * 16


def test_a_picture_of_one_pixel_by_five_thousand_is_refused_by_name(tmp_path: Path) -> None:
    """Qwen's processors refuse sides of more than 200 times the other; the error says so."""
    ours = open_processor(Qwen2VLImageProcessorPil(), tmp_path, TowerSizes(14, 2, 2))
    with pytest.raises(
        BadRequest, match="at most 200 times the other for this model, got 1 x 5000"
    ):
        ours.prepare(png(noise(1, 5000)), "hash")


def test_a_decoded_picture_is_turned_once() -> None:
    """The turn of EXIF data changes the sides, and a second one would change them back."""
    assert decode_picture(all_modes()["turned"]).size == (50, 70)
