"""Tensors of media held to what a model's processor makes, and vLLM's names for them. No vLLM is needed."""

import pytest

from tests.vllm.test_mapping import LISTED, fields
from weft.core.errors import BadRequest
from weft.core.values.media import MediaTensors, Tensor
from weft.vllm.convert.tensors import Item, ItemForm, check_names, layout, to_hashes

LARGE = Item({"pixels": ("bfloat16", (600, 8)), "grid": ("int64", (3,))}, 150)
SMALL = Item({"pixels": ("bfloat16", (4, 8)), "grid": ("int64", (3,))}, 1)
ANY_SIZE = ItemForm.of(LARGE, SMALL)
ONE_SIZE = ItemForm.of(LARGE, LARGE)


def given(*names: str, **changes) -> MediaTensors:
    one = Tensor(dtype="uint8", shape=(1,), data=b"1")
    values = {
        "modality": "image",
        "tensors": dict.fromkeys(names, one),
        "placeholders": [(0, 1)],
        "hashes": ["a"],
    }
    return MediaTensors(**{**values, **changes})


def test_what_two_items_share_is_the_form():
    """And what one of them lacks, or has in another number of sizes, is free."""
    assert ItemForm({"pixels": ("bfloat16", (None, 8)), "grid": ("int64", (3,))}, None) == ANY_SIZE
    assert ONE_SIZE.num_tokens == 150
    assert (ONE_SIZE.dtype("grid"), ONE_SIZE.dtype("other")) == ("int64", None)
    other = Item({"pixels": ("bfloat16", (8,))}, 150)
    assert ItemForm.of(LARGE, other) == ItemForm({"pixels": None, "grid": None}, None)


def test_items_in_the_form_are_taken():
    """With more tensors, and with fewer."""
    ANY_SIZE.check(Item({"pixels": ("bfloat16", (64, 8)), "extra": ("uint8", (1,))}, 16))
    ONE_SIZE.check(LARGE)
    ItemForm({}, None).check(SMALL)


@pytest.mark.parametrize(
    ("form", "item", "words"),
    [
        (ANY_SIZE, Item({"pixels": ("bfloat16", (64, 9))}, 16), r"\[any, 8\], got \[64, 9\]"),
        (ANY_SIZE, Item({"pixels": ("bfloat16", (1, 64, 8))}, 16), r"got \[1, 64, 8\]"),
        (ANY_SIZE, Item({"grid": ("bfloat16", (3,))}, 16), "needs the dtype int64"),
        (ONE_SIZE, SMALL, r"\[600, 8\]"),
        (ONE_SIZE, Item(LARGE.tensors, 149), "has 150 tokens, got 149"),
    ],
)
def test_other_items_are_refused(form: ItemForm, item: Item, words: str):
    """By the name of the tensor."""
    with pytest.raises(BadRequest, match=words):
        form.check(item)


def test_inputs_are_the_encoders():
    """The first of them one that it has; none that goes around it."""
    check_names(given("pixels", "rows"), ANY_SIZE)
    check_names(given("patches"), ItemForm({}, None))
    with pytest.raises(BadRequest, match="takes pixels, grid, not patches"):
        check_names(given("patches"), ANY_SIZE)
    for name in ("image_embeds", "self"):
        with pytest.raises(BadRequest, match=name):
            check_names(given("pixels", name), ANY_SIZE)


def test_layouts_have_vllms_names():
    """And what each of its methods is given it takes."""
    batch = given("a", "b", "c", batched=frozenset({"a"}), flat={"b": "a"})
    layouts = [layout(name, batch) for name in "abc"]
    assert layouts == [("batched", None), ("flat_from_sizes", "a"), ("shared", None)]
    beside = {"batched": [], "flat_from_sizes": ["size_per_item"], "shared": ["batch_size"]}
    for kind, _ in layouts:
        taken = [field for owner, field in LISTED if owner == f"MultiModalFieldConfig.{kind}"]
        assert taken[: 1 + len(beside[kind])] == ["modality", *beside[kind]]
        assert "keep_on_cpu" in taken


def test_the_prompt_and_its_places_have_vllms_names():
    """By which `weft.vllm.engine` makes them, and asks for items of two sizes."""
    assert {"prompt_token_ids", "mm_kwargs", "mm_hashes", "mm_placeholders", "prompt",
            "cache_salt"} <= fields("MultiModalInput")  # fmt: skip
    assert fields("PlaceholderRange") == {"offset", "length", "is_embed"}
    assert {"width", "height"} <= fields("ImageDummyOptions")
    assert {"width", "height", "num_frames"} <= fields("VideoDummyOptions")
    assert "length" in fields("AudioDummyOptions")


def test_hashes_are_not_those_of_files():
    """Whatever a caller calls its items."""
    assert to_hashes(given(hashes=["a", "b"])) == ["tensors:a", "tensors:b"]
