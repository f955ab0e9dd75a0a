"""A prompt as parts: what there is to run, in order, in whichever form callers gave it.

`weft.text.prompts` reads what callers give into these and makes tokens of them; nothing else looks inside.
"""

import struct
from collections.abc import Sequence

import msgspec


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """Text, which the model's tokenizer encodes."""

    text: str


class TokensPart(msgspec.Struct, frozen=True, tag="token_ids"):
    """What is tokenised already."""

    token_ids: list[int]


Part = TextPart | TokensPart


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that follow each other.

    Special tokens go around the whole where any part is text. `second` is the other of two texts that
    are scored together, for `encode` only. `label` is what outputs show as the prompt's text, and has no
    other effect. `cache_salt` keeps its blocks in the prefix cache apart from others'.
    """

    parts: tuple[Part, ...]
    second: TextPart | None = None
    label: str | None = None
    cache_salt: str | None = None


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32; raises `struct.error` for what is none."""
    # struct, not array: 901 -> 386 µs for 100,000 ids.
    return struct.pack(f"<{len(token_ids)}I", *token_ids)
