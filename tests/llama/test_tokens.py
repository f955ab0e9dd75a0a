"""Texts and their token ids, by llama.cpp and here, of the same file."""

import unicodedata

import pytest

from tests.llama.peer import tokenize
from tests.model.gguf.test_vocabulary import (
    TEXTS,
    byte_level,
    read,
    sentence_piece,
    write_sentence_piece,
    write_vocabulary,
)
from weft.model.gguf.vocabulary import SPLITTINGS

__all__ = ["sentence_piece"]  # the fixture

pytestmark = pytest.mark.llama
NASTY = [
    *TEXTS,
    *("\0", "a\0b", "\x7f\x1b[0m", "\r\n\r\n", "\n\n  \n\t\n x", "\t\t", "a\u2028b", "\ufeffa", "\u200b"),
    *("１２３", "x²", "Ⅷ½", "1,000.5e-3", "a1b22c333d4444", "don't DON'T don’t", "'S 'll've", "_a__b"),
    *("שלום عليكم", "🇩🇪👍🏽❤️", "ß ẞ ǅ İ ı", "\U0010fffd", "日本語12テスト", "a" * 300, " " * 70, "....!!!!?"),
    *("<|begin|>", "<|begin|><|end|>", "<|begin|> a", "▁", "a▁b", "<0x41>", "<s>", "</s> x"),
]  # fmt: skip
# Of its models' own vocabularies none has numbers of several digits, which llama.cpp would find.
VOCABULARIES = {"deepseek-llm": "deepseek-coder"}


def same_ids(path, texts, read_by_theirs=None):
    """All of them, with what goes around a text."""
    ours = read(path).parsed_tokenizer
    theirs = tokenize(path, read_by_theirs or texts)
    got = {text: ours.encode(text).ids for text in texts}
    assert got == dict(zip(texts, theirs, strict=True))


@pytest.mark.parametrize("pre", SPLITTINGS)
def test_texts_are_split_as_in_llama_cpp(tmp_path, pre):
    """Every name of a splitting: digits, contractions, spaces, other scripts, special tokens."""
    path = write_vocabulary(tmp_path / "m.gguf", byte_level(VOCABULARIES.get(pre, "gpt-2")), pre)
    texts = NASTY
    if pre in (
        "tekken",
        "gpt-4o",
    ):  # it counts marks as no part of words, and the models' own patterns do
        texts = [without_marks(text) for text in texts]
    if SPLITTINGS[pre].is_composed:  # which it leaves to its callers
        same_ids(path, texts, [unicodedata.normalize("NFC", text) for text in texts])
    else:
        same_ids(path, texts)


def without_marks(text):
    """Accents that are characters of their own, and vowels of some scripts."""
    return "".join(char for char in text if not unicodedata.category(char).startswith("M"))


def test_sentence_piece_gives_the_ids_of_llama_cpp(tmp_path, sentence_piece):
    """Merges by scores, a space before the text, and bytes for what is no token."""
    same_ids(write_sentence_piece(tmp_path / "m.gguf", sentence_piece), NASTY)
