"""Places prepared items in a prompt: each anchor becomes the tokens of its item."""

from collections.abc import Iterator, Mapping, Sequence

from weft.core.errors import BadRequest
from weft.core.values.media import TENSORS, Modality
from weft.core.values.pictures import PlacedItem, PreparedItem
from weft.text.tokenizer import Tokenizer

_MAX_NEWLINES = 32


def place_items(
    token_ids: list[int],
    items: Sequence[PreparedItem],
    anchors: Mapping[Modality, int],
    tokenizer: Tokenizer | None,
) -> tuple[list[int], list[PlacedItem]]:
    """Returns the prompt's tokens with those of the items, and where the items are.

    Items of a modality are in the order of their anchors. Raises `BadRequest` unless there is one anchor for each item.
    """
    if items and items[0].span is not None:
        return token_ids, [_placed(item, token_ids) for item in items]
    left = {
        anchor: _items_of(modality, anchor, token_ids, items)
        for modality, anchor in anchors.items()
    }
    if not items:
        return token_ids, []
    whole: list[int] = []
    placed: list[PlacedItem] = []
    done = 0
    for place in sorted(place for anchor in left for place in _places(anchor, token_ids)):
        item = next(left[token_ids[place]])
        _join(whole, token_ids[done:place], tokenizer)
        done = place + 1
        if _is_framed(item, whole, token_ids[done : done + 1]):
            whole.pop()
            done += 1
        placed.append(_append(whole, item, tokenizer))
    _join(whole, token_ids[done:], tokenizer)
    return whole, placed


def _placed(item: PreparedItem, token_ids: list[int]) -> PlacedItem:
    """Returns an item whose tokens are in the prompt; raises `BadRequest` unless those of its rows are in one run."""
    assert item.span is not None
    start, length, token_id = item.span
    inside = token_ids[start : start + length]
    first = inside.index(token_id) if token_id in inside else 0
    run = inside[first : first + item.num_rows]
    if inside.count(token_id) != item.num_rows or run != [token_id] * item.num_rows:
        raise BadRequest(
            TENSORS,
            f"{TENSORS}: the placeholder at token {start} must have {item.num_rows} tokens {token_id} in a row, one "
            "for each row of the picture",
        )
    return PlacedItem(
        start=start,
        num_tokens=length,
        modality=item.modality,
        hash=item.hash,
        runs=[(first, item.num_rows)],
        tiles=[],
        patches=item.patches,
        grids=item.grids,
    )


def _is_framed(item: PreparedItem, before: list[int], after: list[int]) -> bool:
    """True if the tokens around the anchor are those that the item's own tokens replace."""
    return item.frame is not None and [*before[-1:], *after] == list(item.frame)


def _items_of(
    modality: Modality, anchor: int, token_ids: list[int], items: Sequence[PreparedItem]
) -> Iterator[PreparedItem]:
    """Returns the items of a modality, as many as there are anchors."""
    found = [item for item in items if item.modality == modality]
    num_anchors = token_ids.count(anchor)
    if num_anchors != len(found):
        raise BadRequest(
            "prompt",
            f"the prompt has {num_anchors} placeholder tokens {anchor}, one for each {modality}, but {len(found)} "
            "of these are given",
        )
    return iter(found)


def _places(anchor: int, token_ids: list[int]) -> Iterator[int]:
    """Yields the indexes of an anchor."""
    place = -1
    for _ in range(token_ids.count(anchor)):
        place = token_ids.index(anchor, place + 1)
        yield place


def _append(whole: list[int], item: PreparedItem, tokenizer: Tokenizer | None) -> PlacedItem:
    """Appends the tokens of an item to the prompt."""
    first, num_tokens = item.runs[0][0], len(item.token_ids)
    num_before = len(whole)
    _join(whole, item.token_ids, tokenizer)
    # Joined newlines may have become fewer tokens.
    shift = len(whole) - num_before - num_tokens
    last, length = item.runs[-1]
    return PlacedItem(
        start=num_before + first + shift,
        num_tokens=last + length - first,
        modality=item.modality,
        hash=item.hash,
        runs=[(begin - first, length) for begin, length in item.runs],
        tiles=item.tiles,
        columns=item.columns,
    )


def _join(left: list[int], right: list[int], tokenizer: Tokenizer | None) -> None:
    """Appends tokens; newlines on both sides of the seam become the tokens of one text, as in a whole prompt."""
    num_left = _num_newlines(left[::-1], tokenizer)
    num_right = _num_newlines(right, tokenizer) if num_left else 0
    if not num_right or tokenizer is None:
        left += right
        return
    text = tokenizer.decode(left[-num_left:] + right[:num_right])
    left[-num_left:] = tokenizer.encode(text, add_special_tokens=False)
    left += right[num_right:]


def _num_newlines(token_ids: list[int], tokenizer: Tokenizer | None) -> int:
    """Returns the number of tokens at the beginning that are nothing but newlines."""
    if tokenizer is None:
        return 0
    for number, token_id in enumerate(token_ids[:_MAX_NEWLINES]):
        if tokenizer.token_to_bytes(token_id).strip(b"\n") or not tokenizer.token_to_bytes(
            token_id
        ):
            return number
    return min(len(token_ids), _MAX_NEWLINES)
