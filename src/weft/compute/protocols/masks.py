"""Token masks for samplers: one bit per token; token 0 is the lowest bit of the first word."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
_BITS = 32


def num_words(vocab_size: int) -> int:
    """Returns the number of words in a mask of `vocab_size` tokens."""
    return -(-vocab_size // _BITS)


def mask_of(flags: NDArray[np.bool_]) -> Words:
    """Returns the mask for one flag per token."""
    return resized_mask(np.packbits(flags, bitorder="little"), len(flags))


def flags_of(mask: Words, vocab_size: int) -> NDArray[np.bool_]:
    """Returns one flag per token for a mask."""
    bits = mask.astype("<u4", copy=False).view(np.uint8)
    return np.unpackbits(bits, count=vocab_size, bitorder="little").view(bool)


def resized_mask(bits: NDArray[np.uint8], vocab_size: int) -> Words:
    """Returns the mask of `vocab_size` tokens from bytes with more or fewer bits; bits beyond the tokens are
    cleared.
    """
    mask = np.zeros(4 * num_words(vocab_size), np.uint8)
    size = min(len(bits), len(mask))
    mask[:size] = bits[:size]
    words = mask.view("<u4").astype(np.uint32, copy=False)
    if rest := vocab_size % _BITS:
        words[-1] &= np.uint32((1 << rest) - 1)
    return words


def set_bits(mask: Words, token_ids: Iterable[int]) -> None:
    """Allows these tokens in the mask."""
    for token_id in token_ids:
        mask[token_id // _BITS] |= np.uint32(1 << token_id % _BITS)


def clear_bits(mask: Words, token_ids: Iterable[int]) -> None:
    """Forbids these tokens in the mask; tokens beyond the mask are always forbidden."""
    for token_id in token_ids:
        if token_id < len(mask) * _BITS:
            mask[token_id // _BITS] &= np.uint32(~(1 << token_id % _BITS) & 0xFFFFFFFF)
