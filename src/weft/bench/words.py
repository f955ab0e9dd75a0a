"""Makes prompts of a given number of tokens: as token ids, as text made with a tokenizer, or as words without a
tokenizer.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from weft.bench.record import Content
from weft.text.tokenizer import Tokenizer

# Common short words, most of which are one token in most tokenizers.
_WORDS = (
    "time year way day man world life hand part child eye place work week case point home water room "
    "mother area money story fact month lot right study book job word side kind head house friend "
    "father power hour game line end law car city name team minute idea body back face level office "
    "door health person art war history party result change morning reason research girl guy moment "
    "air teacher force table music river field stone green light paper summer winter north south "
    "engine window garden letter bridge market silver yellow circle"
).split()
_MAX_TRIES = 10


class Maker(Protocol):
    """Makes prompts, and counts their tokens if possible."""

    def make(self, num_tokens: int, rng: np.random.Generator) -> Content:
        """Returns a random prompt of about this many tokens."""

    def count(self, text: str) -> int | None:
        """Returns the number of tokens of a text; None without a tokenizer."""


class IdMaker:
    """Makes prompts of exactly the given number of token ids, for gRPC and for engines in this process."""

    def __init__(self, vocab_size: int, tokenizer: Tokenizer | None) -> None:
        special = frozenset() if tokenizer is None else tokenizer.special_ids
        self._ids = np.array([i for i in range(vocab_size) if i not in special], dtype=np.int64)
        self._tokenizer = tokenizer

    def make(self, num_tokens: int, rng: np.random.Generator) -> list[int]:
        chosen: list[int] = rng.choice(self._ids, num_tokens).tolist()
        return chosen

    def count(self, text: str) -> int | None:
        return None if self._tokenizer is None else len(self._tokenizer.encode(text))


class TextMaker:
    """Makes text that the tokenizer splits into the given number of tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids = IdMaker(tokenizer.vocab_size, tokenizer)

    def make(self, num_tokens: int, rng: np.random.Generator) -> str:
        """Decodes random ids to a text. Because the text may have other ids when it is encoded, it is cut or extended
        until it has the requested length.
        """
        ids = self._ids.make(num_tokens, rng)
        for _ in range(_MAX_TRIES):
            text = self._tokenizer.decode(ids)
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == num_tokens:
                return text
            ids = [*ids[:num_tokens], *self._ids.make(max(num_tokens - len(ids), 0), rng)]
        return self._tokenizer.decode(ids)

    def count(self, text: str) -> int | None:
        return len(self._tokenizer.encode(text, add_special_tokens=False))


class WordMaker:
    """Makes prompts of words, with the measured number of tokens per word.

    The length is approximate; results have the server's token count.
    """

    def __init__(self, tokens_per_word: float) -> None:
        self._tokens_per_word = tokens_per_word

    def make(self, num_tokens: int, rng: np.random.Generator) -> str:
        return words(max(round(num_tokens / self._tokens_per_word), min(num_tokens, 1)), rng)

    def count(self, text: str) -> int | None:
        del text
        return None


def words(num_words: int, rng: np.random.Generator) -> str:
    """Returns random words of a small vocabulary."""
    return " ".join(rng.choice(_WORDS, num_words).tolist())


def join(first: Content, second: Content) -> Content:
    """Returns the concatenation of two prompts of the same maker."""
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    assert isinstance(first, str)
    assert isinstance(second, str)
    return f"{first} {second}" if first and second else first or second


def lengths(
    length: int, range_ratio: float, num: int, rng: np.random.Generator, *, least: int
) -> Sequence[int]:
    """Returns random whole numbers, distributed uniformly from `length` * (1 - ratio) to `length` * (1 + ratio), each
    at least `least`.
    """
    low = max(int(np.floor(length * (1 - range_ratio))), least)
    high = max(int(np.ceil(length * (1 + range_ratio))), low)
    drawn: list[int] = rng.integers(low, high, size=num, endpoint=True).tolist()
    return drawn
