"""Tensors of pictures are read as the processor of Qwen's models makes them, or refused in a sentence."""

import msgspec
import numpy as np
import pytest

from weft.core.errors import BadRequest
from weft.core.values.media import MediaTensors, Tensor
from weft.core.values.pictures import ItemsConfig, ItemTokens, NativeSize, Pixels, Squares
from weft.media.picture_tensors import read_tensors
from weft.text.items import place_items

PAD = 7
PIXELS = Pixels(patch_size=4, merge_size=2, temporal_size=2)
CONFIG = ItemsConfig(
    settings=NativeSize(pixels=PIXELS, min_pixels=64, max_pixels=4096),
    tokens=ItemTokens(anchor=PAD, placeholder=PAD),
    hidden_size=8,
    row_size=8,
)
PATCHES = np.random.default_rng(0).standard_normal((24 + 8, 96)).astype(np.float32)


def tensor(values: np.ndarray, dtype: str) -> Tensor:
    """An array as a tensor."""
    return Tensor(dtype=dtype, shape=values.shape, data=values.tobytes())


GRIDS = tensor(np.array([[1, 4, 6], [1, 2, 4]]), "int64")


def given(**changes) -> MediaTensors:
    """Two pictures; `changes` are tensors by name, of which None is left out, and fields."""
    tensors = {"pixel_values": tensor(PATCHES, "float32"), "image_grid_thw": GRIDS}
    tensors |= {name: values for name, values in changes.items() if isinstance(values, Tensor)}
    fields = {name: value for name, value in changes.items() if not isinstance(value, Tensor)}
    return MediaTensors(
        **{
            "modality": "image",
            "tensors": tensors,
            "placeholders": [(1, 6), (8, 4)],
            "hashes": ["a", "b"],
            **fields,
        }
    )


def test_patches_and_grids_become_items():
    """Each picture has its own patches, its rows in the prompt, and a hash that content and salt decide."""
    items = read_tensors([given()], CONFIG, None)
    assert [one.grids for one in items] == [[(1, 4, 6)], [(1, 2, 4)]]
    assert b"".join(one.patches for one in items) == PATCHES.tobytes()
    ids = [1, *[PAD] * 6, 2, 3, PAD, PAD, 4]
    _, placed = place_items(ids, items, {"image": PAD}, None)
    assert [(one.start, one.num_tokens, one.runs) for one in placed] == [
        (1, 6, [(0, 6)]),
        (8, 4, [(1, 2)]),
    ]
    salted = read_tensors([given()], CONFIG, "salt")
    other = read_tensors([given(pixel_values=tensor(PATCHES + 1, "float32"))], CONFIG, None)
    assert len({one.hash for one in (*items, *salted, *other)}) == 6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_are_widened(dtype):
    """Exactly: these numbers have few bits."""
    values = np.round(PATCHES * 4) / 4
    short = values.astype(np.float16)
    if dtype == "bfloat16":
        short = (values.view(np.uint32) >> 16).astype(np.uint16)
    items = read_tensors([given(pixel_values=tensor(short, dtype))], CONFIG, None)
    np.testing.assert_array_equal(
        np.frombuffer(b"".join(one.patches for one in items), np.float32), values.ravel()
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pixel_values": tensor(PATCHES[:, 1:], "float32")}, r"shape \[patches, 96\]"),
        ({"pixel_values": tensor(PATCHES[1:], "float32")}, "31 patches, and the grids of"),
        ({"pixel_values": tensor(np.zeros((32, 96), np.int64), "int64")}, "float32, float16 or"),
        ({"pixel_values": tensor(PATCHES * np.nan, "float32")}, "finite numbers alone"),
        ({"image_grid_thw": tensor(np.array([[1, 4, 6]]), "int64")}, r"the shape \[2, 3\]"),
        ({"image_grid_thw": tensor(np.array([[1, 8, 3], [1, 2, 4]]), "int64")}, "multiples of 2"),
        ({"image_grid_thw": tensor(np.array([[2, 2, 6], [1, 2, 4]]), "int64")}, "has 1 frame"),
        ({"image_embeds": tensor(PATCHES, "float32")}, "'image_embeds' is none of pixel_values"),
        ({"embed_token_id": 9}, "im_token_id must be 7"),
        ({"modality": "video"}, "takes videos as files, not as tensors"),
    ],
)
def test_other_tensors_are_refused_in_a_sentence(changes, says):
    """The sentence names the tensor, and what is allowed."""
    with pytest.raises(BadRequest, match=f"^mm_inputs: .*{says}"):
        read_tensors([given(**changes)], CONFIG, None)


def test_a_placeholder_has_a_token_for_each_row():
    """As many as the grid says, one after the other."""
    items = read_tensors([given()], CONFIG, None)
    ids = [1, *[PAD] * 5, 9, 2, 3, PAD, PAD, 4]
    with pytest.raises(BadRequest, match="at token 1 must have 6 tokens 7 in a row"):
        place_items(ids, items, {"image": PAD}, None)


def test_models_with_other_processors_take_files():
    """Gemma's squares have no grids."""
    settings = Squares(pixels=PIXELS, size=16, num_tokens=4)
    with pytest.raises(BadRequest, match="this model takes images as files, not as tensors"):
        read_tensors([given()], msgspec.structs.replace(CONFIG, settings=settings), None)
