"""A prompt as a list of parts, the same form for all kinds of prompts that callers give.

Only `weft.text.prompts` looks inside: it reads callers' prompts into these parts and tokenizes them.
"""

import struct
from collections.abc import Sequence
from typing import Any, TypedDict

import msgspec

from weft.core.values.media import Media


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """A part of a prompt as text, which the model's tokenizer encodes."""

    text: str


class TokensPart(msgspec.Struct, frozen=True, tag="token_ids"):
    """A part of a prompt as token ids."""

    token_ids: list[int]


class EmbedsPart(msgspec.Struct, frozen=True, tag="embeds"):
    """A part of a prompt as embeddings instead of tokens, like rows of the embedding table: float32 [num_tokens, hidden
    size].
    """

    rows: bytes
    num_tokens: int


Part = TextPart | TokensPart | EmbedsPart


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a prompt, in order.

    If any part is text, special tokens are added around the whole prompt. `second` is the second of two texts that are
    scored together, for `encode` only. `label` is the prompt's text in outputs, and has no other effect. `cache_salt`
    separates the prompt's blocks in the prefix cache from blocks with other salts. `media` are placed at the anchor
    tokens of their modality among the parts' tokens.
    """

    parts: tuple[Part, ...]
    second: TextPart | None = None
    label: str | None = None
    cache_salt: str | None = None
    media: Media | None = None


class TokensPrompt(TypedDict, total=False):
    """A tokenized prompt.

    The key of each modality has one media item or a list of items, as bytes of files or as Pillow images; each item
    stands at an anchor token of the prompt.
    """

    prompt_token_ids: list[int]
    prompt: str
    cache_salt: str
    multi_modal_data: dict[str, Any]
    multi_modal_uuids: dict[str, Any]
    mm_processor_kwargs: dict[str, Any]


class TextPrompt(TypedDict, total=False):
    """A prompt as text, which the engine's tokenizer encodes.

    `prompt_pair` is the second of two texts that are scored together, for `encode` only.
    """

    prompt: str
    prompt_pair: str
    cache_salt: str
    multi_modal_data: dict[str, Any]
    multi_modal_uuids: dict[str, Any]
    mm_processor_kwargs: dict[str, Any]


class EmbedsPrompt(TypedDict, total=False):
    """A prompt as embeddings, an array of float32 or float16 [tokens, hidden size]; `prompt` is its text in outputs.

    The embeddings stand for rows of the model's embedding table: the model processes them like such rows, for example
    scales them. The engine needs `enable_prompt_embeds`.
    """

    prompt_embeds: Any
    prompt: str
    cache_salt: str


class EmbeddedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a prompt, from position `start` on, given as embeddings:

    `rows` are float32 [num_tokens, hidden size].
    """

    start: int
    num_tokens: int
    rows: bytes


class OpenReasoning(msgspec.Struct, frozen=True, kw_only=True):
    """Reasoning that is open where the answer begins: the text that ends the reasoning, and this text's tokens."""

    end: str
    end_token_ids: list[int]


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Returns token ids as little-endian uint32; raises `struct.error` for ids outside of uint32."""
    # struct, not array: 901 -> 386 µs for 100,000 ids.
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


PromptType = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt | Prompt
