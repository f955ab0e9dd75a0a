"""Pieces of a media item's tokens: token ids, and texts that the tokenizer encodes."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeAlias

Piece: TypeAlias = int | str
# Encodes a text without adding special tokens around it.
Encode: TypeAlias = Callable[[str], list[int]]


def to_token_ids(pieces: Iterable[Piece], encode: Encode) -> list[int]:
    """Returns the token ids of all pieces; adjacent texts are encoded as one text."""
    token_ids: list[int] = []
    for is_text, group in groupby(pieces, lambda piece: isinstance(piece, str)):
        if is_text:
            token_ids += encode("".join(map(str, group)))
        else:
            token_ids += [piece for piece in group if isinstance(piece, int)]
    return token_ids


def runs_of(token_ids: list[int], token_id: int) -> list[tuple[int, int]]:
    """Returns the runs of a token in a list: the start and the length of each run."""
    runs: list[tuple[int, int]] = []
    place = 0
    for found, group in groupby(token_ids):
        length = sum(1 for _ in group)
        if found == token_id:
            runs.append((place, length))
        place += length
    return runs
