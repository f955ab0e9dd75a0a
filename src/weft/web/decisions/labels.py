"""Labels of options: short texts that are one token each where the model's answer begins."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from string import ascii_uppercase

from weft.text.tokenizer import Tokenizer

_MAX_LABELS = 255
YES_NO = ("yes", "no")
# In the order of use: A to Z, then AA, AB and so on. Few of the latter are single tokens.
_CANDIDATES = (*ascii_uppercase, *map("".join, product(ascii_uppercase, repeat=2)))
NUM_CANDIDATES = len(_CANDIDATES)


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The labels that are one token behind the common end of all prompts, each with its token id.

    `yes_no` has the token ids of these words; None unless each of them is one token, different from the other.
    """

    labels: tuple[tuple[str, int], ...]
    yes_no: tuple[int, ...] | None


@lru_cache(maxsize=16)
def alphabet_of(tokenizer: Tokenizer, tail: str) -> Alphabet:
    """Returns the labels behind `tail`, the end of all prompts; takes some milliseconds the first time."""
    by_id: dict[int, str] = {}
    for label, token_id in zip(_CANDIDATES, _tokens_of(tokenizer, tail, _CANDIDATES), strict=False):
        if token_id is not None:
            by_id.setdefault(token_id, label)
        if len(by_id) == _MAX_LABELS:
            break
    labels = tuple((label, token_id) for token_id, label in by_id.items())
    words = tuple(one for one in _tokens_of(tokenizer, tail, YES_NO) if one is not None)
    return Alphabet(labels, words if len(set(words)) == len(YES_NO) else None)


def _tokens_of(tokenizer: Tokenizer, tail: str, texts: Sequence[str]) -> Iterator[int | None]:
    """Yields the token that each text adds behind `tail`; None if it adds several, or changes those before it."""
    before = tokenizer.encode(tail, add_special_tokens=False)
    for text in texts:
        ids = tokenizer.encode(tail + text, add_special_tokens=False)
        yield ids[-1] if ids[:-1] == before else None
