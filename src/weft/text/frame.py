"""Special tokens that a tokenizer puts around a text or a pair of texts, so that texts can be truncated inside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import tokenizers


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids, each with the number of its text (0 or 1)."""

    ids: list[int]
    type_ids: list[int]


@dataclass(frozen=True, slots=True)
class _Part:
    """A token of the frame, or the place of a text (`text` 0 or 1)."""

    type_id: int
    token_id: int = 0
    text: int | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """The parts around one text, or two, in order."""

    parts: tuple[_Part, ...]

    @classmethod
    def of(cls, library: tokenizers.Tokenizer, *, is_pair: bool) -> Self:
        """Returns the frame that the tokenizer `library` puts around texts, found by encoding an example."""
        example = library.encode("a", "a" if is_pair else None)
        parts: list[_Part] = []
        rows = zip(
            example.ids, example.type_ids, example.sequence_ids, example.special_tokens_mask,
            strict=True,
        )  # fmt: skip
        for token_id, type_id, text, is_special in rows:
            if is_special or text is None:
                parts.append(_Part(type_id, token_id))
            elif not any(part.text == text for part in parts):
                parts.append(_Part(type_id, text=text))
        return cls(tuple(parts))

    @classmethod
    def single(cls) -> Self:
        """Returns the frame of one text without special tokens."""
        return cls((_Part(0, text=0),))

    @classmethod
    def pair(cls) -> Self:
        """Returns the frame of two texts, one after the other, without special tokens."""
        return cls((_Part(0, text=0), _Part(1, text=1)))

    def fill(self, texts: Sequence[Sequence[int]], max_tokens: int | None, side: str) -> Encoded:
        """Puts the texts into the frame, truncated at `side` so that there are at most `max_tokens`."""
        if max_tokens is not None:
            room = max_tokens - sum(part.text is None for part in self.parts)
            texts = [
                _cut(text, n, side) for text, n in zip(texts, _shares(texts, room), strict=True)
            ]
        ids: list[int] = []
        type_ids: list[int] = []
        for part in self.parts:
            filling = [part.token_id] if part.text is None else texts[part.text]
            ids += filling
            type_ids += [part.type_id] * len(filling)
        return Encoded(ids, type_ids)


def _shares(texts: Sequence[Sequence[int]], room: int) -> list[int]:
    """Returns the number of tokens to keep of each text: the longer text is truncated first."""
    lengths = [len(text) for text in texts]
    room = max(room, 0)
    if len(lengths) == 1 or sum(lengths) <= room:
        return [min(length, room) for length in lengths]
    shorter = min(lengths[0], lengths[1], room // 2)
    if lengths[0] <= lengths[1]:
        return [shorter, min(lengths[1], room - shorter)]
    return [min(lengths[0], room - shorter), shorter]


def _cut(text: Sequence[int], num_left: int, side: str) -> Sequence[int]:
    if num_left >= len(text):
        return text
    return text[len(text) - num_left :] if side == "left" else text[:num_left]
