"""Masks of tokens as samplers take them: a bit for each token, the lowest of the first word for token 0."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
_BITS = 32


def num_words(vocab_size: int) -> int:
    """Words of a mask of so many tokens."""
    return -(-vocab_size // _BITS)


def mask_of(flags: NDArray[np.bool_]) -> Words:
    """The mask, from a flag for each token."""
    return resized_mask(np.packbits(flags, bitorder="little"), len(flags))


def flags_of(mask: Words, vocab_size: int) -> NDArray[np.bool_]:
    """A flag for each token, from the mask."""
    bits = mask.astype("<u4", copy=False).view(np.uint8)
    return np.unpackbits(bits, count=vocab_size, bitorder="little").view(bool)


def resized_mask(bits: NDArray[np.uint8], vocab_size: int) -> Words:
    """The mask of so many tokens, from bytes of bits that may be of more or fewer; no bit beyond them is set."""
    mask = np.zeros(4 * num_words(vocab_size), np.uint8)
    size = min(len(bits), len(mask))
    mask[:size] = bits[:size]
    words = mask.view("<u4").astype(np.uint32, copy=False)
    if rest := vocab_size % _BITS:
        words[-1] &= np.uint32((1 << rest) - 1)
    return words


def set_bits(mask: Words, token_ids: Iterable[int]) -> None:
    """Let these come."""
    for token_id in token_ids:
        mask[token_id // _BITS] |= np.uint32(1 << token_id % _BITS)


def clear_bits(mask: Words, token_ids: Iterable[int]) -> None:
    """Let none of these come; one that the mask does not have cannot anyway."""
    for token_id in token_ids:
        if token_id < len(mask) * _BITS:
            mask[token_id // _BITS] &= np.uint32(~(1 << token_id % _BITS) & 0xFFFFFFFF)
