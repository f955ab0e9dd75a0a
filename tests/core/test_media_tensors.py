"""Media as tensors: what does not fit together, or into the prompt, is refused by name."""

import struct

import msgspec
import pytest

from weft.core.checks.media_tensors import ITEM_BYTES, check_placeholders, check_tensors, num_bytes
from weft.core.errors import BadRequest
from weft.core.values.media import (
    Media,
    MediaConfig,
    MediaItem,
    MediaTensors,
    Owner,
    Tensor,
    check_anchors,
    check_media,
    owned,
)

ANCHOR = 9
IDS = [1, ANCHOR, ANCHOR, 2, ANCHOR, 3]


def tensor(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(dtype=dtype, shape=shape, data=bytes(num_bytes("x", dtype, shape)))


def sizes(*rows: int) -> Tensor:
    return Tensor(dtype="int64", shape=(len(rows),), data=struct.pack(f"<{len(rows)}q", *rows))


GIVEN = MediaTensors(
    modality="image",
    tensors={
        "pixels": tensor(2, 3),
        "patches": tensor(5, 4),
        "rows": sizes(4, 1),
        "scale": tensor(),
    },
    placeholders=[(1, 2), (4, 1)],
    hashes=["a", "b"],
    embed_token_id=ANCHOR,
    batched=frozenset({"pixels", "rows", "absent"}),
    flat={"patches": "rows"},
    on_cpu=frozenset({"rows"}),
)


def changed(**fields) -> MediaTensors:
    return msgspec.structs.replace(GIVEN, **fields)


def with_tensor(name: str, value: Tensor) -> MediaTensors:
    return changed(tensors={**GIVEN.tensors, name: value})


@pytest.mark.parametrize(("dtype", "size"), ITEM_BYTES.items())
def test_every_dtype_has_a_size(dtype: str, size: int):
    """Of its numbers; a tensor without sizes is one of them."""
    assert num_bytes("x", dtype, (3, 2)) == 6 * size
    assert num_bytes("x", dtype, ()) == size


def test_what_fits_is_taken():
    """In all three layouts."""
    check_tensors([GIVEN])
    check_placeholders([GIVEN], IDS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([GIVEN, GIVEN], "at most one entry per modality"),
        ([changed(placeholders=[])], "at least one placeholder"),
        ([changed(hashes=["a"])], "one hash is needed for each of 2"),
        ([changed(hashes=["a", ""])], "1 to 256 characters"),
        ([changed(hashes=["a", "b" * 257])], "got 257"),
        ([with_tensor("scale", Tensor(dtype="float32", shape=(2,), data=bytes(4)))], "take 8 bytes, got 4"),
        ([with_tensor("pixels", tensor(3, 3))], r"the first size must be 2 for 2 items, got the shape \[3, 3\]"),
        ([with_tensor("pixels", tensor())], r"got the shape \[\]"),
        ([with_tensor("patches", tensor(6, 4))], "the first size must be 5 for 2 items"),
        ([with_tensor("rows", sizes(6, -1))], "must not be negative"),
        ([with_tensor("rows", sizes(2, 2, 1))], "one size for each of 2"),
        ([with_tensor("rows", tensor(2))], "must be a tensor of"),
        ([changed(flat={"patches": "nowhere"})], "'nowhere' must be a tensor"),
    ],
)  # fmt: skip
def test_a_layout_that_does_not_fit_is_refused(given: list[MediaTensors], words: str):
    """By the name of what is wrong."""
    with pytest.raises(BadRequest, match=words) as caught:
        check_tensors(given)
    assert caught.value.parameter == "mm_inputs"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"placeholders": [(1, 2), (5, 2)]}, "outside the prompt, which has 6"),
        ({"placeholders": [(1, 2), (4, 0)]}, "outside the prompt"),
        ({"placeholders": [(4, 1), (1, 4)]}, "overlaps another"),
        ({"embed_token_id": 7}, "must contain the token 7"),
    ],
)
def test_places_that_are_none_are_refused(fields: dict, words: str):
    """Whichever order they come in."""
    with pytest.raises(BadRequest, match=words):
        check_placeholders([changed(**fields)], IDS)
    check_placeholders([changed(placeholders=[(4, 1), (1, 2)])], IDS)


def test_anchors_stand_for_what_is_there():
    """Those of tensors are taken; another one would be read as a word."""
    config = MediaConfig(max_items={"image": 2}, anchor_ids={"image": ANCHOR})
    check_anchors(IDS, Media(tensors=[GIVEN]), config)
    with pytest.raises(BadRequest, match="1 placeholder tokens 9"):
        check_anchors([*IDS, ANCHOR], Media(tensors=[GIVEN]), config)


def test_they_are_counted_as_items_are():
    """By modality; and do not go with such."""
    check_media(Media(tensors=[GIVEN]), MediaConfig(max_items={"image": 2}))
    with pytest.raises(BadRequest, match="at most 1"):
        check_media(Media(tensors=[GIVEN]), MediaConfig(max_items={"image": 1}))
    both = Media(tensors=[GIVEN], items=[MediaItem(modality="image", data=b"x")])
    with pytest.raises(BadRequest, match="cannot be combined with"):
        check_media(both, MediaConfig(max_items={"image": 9}))


def test_names_of_one_owner_are_given_by_no_other():
    """Neither as a uuid nor as the hash of tensors; a caller without an owner cannot write such a name either."""
    item = MediaItem(modality="image", uuid="one")
    given = Media(items=[item], tensors=[changed(hashes=["one"])])
    owners = [(None, None), (Owner(tenant="a"), None), (Owner(tenant="b"), None), (None, "a")]
    names = []
    for owner, salt in owners:
        mine = owned(given, owner, salt)
        assert mine.items[0].uuid == mine.tensors[0].hashes[0]
        names.append(mine.items[0].uuid)
    assert len(set(names)) == 4
    assert names[0] == "one"
    forged = Media(items=[MediaItem(modality="image", uuid=names[1])])
    assert owned(forged, None, None).items[0].uuid != names[1]
