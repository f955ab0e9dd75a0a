"""Places prepared items in a prompt: each anchor becomes the tokens of its item."""

from collections.abc import Sequence

from weft.core.errors import BadRequest
from weft.core.values.pictures import PictureTokens, PlacedItem, PreparedItem
from weft.text.tokenizer import Tokenizer

_MAX_NEWLINES = 32


def place_items(
    token_ids: list[int],
    items: Sequence[PreparedItem],
    tokens: PictureTokens,
    tokenizer: Tokenizer | None,
) -> tuple[list[int], list[PlacedItem]]:
    """Returns the prompt's tokens with those of the items, and where the items are. `BadRequest` unless there is one
    anchor for each item.
    """
    num_anchors = token_ids.count(tokens.anchor)
    if num_anchors != len(items):
        raise BadRequest(
            "prompt",
            f"the prompt has {num_anchors} placeholder tokens {tokens.anchor}, one for each image, but {len(items)} "
            "of these are given",
        )
    whole: list[int] = []
    placed: list[PlacedItem] = []
    done = 0
    for item in items:
        anchor = token_ids.index(tokens.anchor, done)
        _join(whole, token_ids[done:anchor], tokenizer)
        done = anchor + 1
        first, num_tokens = item.runs[0][0], len(item.token_ids)
        num_before = len(whole)
        _join(whole, item.token_ids, tokenizer)
        # Joined newlines may have become fewer tokens.
        shift = len(whole) - num_before - num_tokens
        start = num_before + first + shift
        last, length = item.runs[-1]
        placed.append(
            PlacedItem(
                start=start,
                num_tokens=last + length - first,
                modality=item.modality,
                hash=item.hash,
                runs=[(begin - first, length) for begin, length in item.runs],
                tiles=item.tiles,
            )
        )
    _join(whole, token_ids[done:], tokenizer)
    return whole, placed


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
