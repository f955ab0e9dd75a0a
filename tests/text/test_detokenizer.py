"""Text token by token is the text of the whole."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.vocabularies import (
    byte_level,
    byte_level_library,
    files_of,
    llama_like,
    llama_like_library,
    metaspace_library,
    word_library,
)
from weft.text.tokenizer import Tokenizer

TEXTS = ["hello world", "🙂👩‍👩‍👧!", "你好，世界", "Löwe  naïve", "e\u0301", "lo<think>w"]
METASPACE = Tokenizer.from_files(files_of(metaspace_library()))
WORDS = Tokenizer.from_files(files_of(word_library()))


def streamed(tokenizer, ids, **options):
    detokenizer = tokenizer.detokenizer(**options)
    return "".join([*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()])


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("tokenizer", [byte_level(), llama_like(), METASPACE])
def test_streamed_text_is_the_whole_text(tokenizer, text):
    """Emoji, CJK, byte fallback and the space at the start come out as in one go."""
    ids = tokenizer.encode(text)
    assert streamed(tokenizer, ids) == tokenizer.decode(ids)
    assert byte_level().decode(byte_level().encode(text)) == text


@given(st.lists(st.integers(0, byte_level().vocab_size + 3), max_size=40), st.booleans())
def test_any_byte_level_ids_stream_as_the_library_decodes_them(ids, skips):
    """Also where the bytes are no UTF-8 at all."""
    whole = byte_level_library().decode(ids, skip_special_tokens=skips)
    assert streamed(byte_level(), ids, skip_special_tokens=skips) == whole


@given(st.lists(st.integers(0, llama_like().vocab_size - 1), max_size=40), st.booleans())
def test_any_sentencepiece_ids_stream_as_they_decode(ids, skips):
    """Invalid byte runs are replaced as they come, because waiting for their end would stop the stream."""
    whole = llama_like().decode(ids, skip_special_tokens=skips)
    assert streamed(llama_like(), ids, skip_special_tokens=skips) == whole


NO_BYTES = [i for i in range(llama_like().vocab_size) if not 3 <= i < 259]


@pytest.mark.parametrize(
    ("tokenizer", "library"),
    [(llama_like(), llama_like_library()), (METASPACE, metaspace_library())],
)
@given(ids=st.lists(st.sampled_from(NO_BYTES), max_size=30), skips=st.booleans())
def test_sentencepiece_ids_stream_as_the_library_decodes_them(tokenizer, library, ids, skips):
    """The space at the start of a text goes, wherever the first visible token stands."""
    whole = library.decode(ids, skip_special_tokens=skips)
    assert streamed(tokenizer, ids, skip_special_tokens=skips) == whole


@given(st.text(max_size=20))
def test_any_text_survives_byte_fallback(text):
    """Characters outside the vocabulary travel as bytes and arrive whole."""
    ids = llama_like().encode(text)
    assert streamed(llama_like(), ids) == llama_like_library().decode(ids)


@given(st.lists(st.integers(0, WORDS.vocab_size + 1), max_size=30), st.booleans())
def test_a_decoder_that_looks_at_neighbours_streams_as_it_decodes(ids, skips):
    """WordPiece puts spaces between words and none before continuations."""
    whole = word_library().decode(ids, skip_special_tokens=skips)
    assert streamed(WORDS, ids, skip_special_tokens=skips) == whole


def test_spaces_between_special_tokens_can_be_left_out():
    """Only a decoder that adds spaces has any; it then adds none between two special tokens."""
    ids = [1, 2, 3, 1]
    assert WORDS.decode(ids, skip_special_tokens=False) == "[CLS] [SEP] hello [CLS]"
    without = WORDS.decode(ids, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert without == "[CLS][SEP] hello [CLS]"


def test_an_open_character_shows_only_when_complete():
    """No U+FFFD flickers in a stream."""
    ids = byte_level().encode("🦉")
    detokenizer = byte_level().detokenizer()
    texts = [detokenizer.push(token_id) for token_id in ids]
    assert texts == [""] * (len(ids) - 1) + ["🦉"]


@pytest.mark.parametrize(
    ("tokenizer", "text"), [(byte_level(), "\ufffd"), (llama_like(), "\ufffd" * 3)]
)
def test_an_unfinished_character_is_replaced_at_the_end(tokenizer, text):
    """As decoding the whole does: one mark a character, or one a byte where bytes are tokens."""
    ids = tokenizer.encode("🦉", add_special_tokens=False)[:-1]
    detokenizer = tokenizer.detokenizer(prompt_token_ids=tokenizer.encode("a"))
    assert "".join(detokenizer.push(token_id) for token_id in ids).strip() == ""
    assert detokenizer.flush() == text
    assert detokenizer.flush() == ""


def test_a_continuation_keeps_the_space_that_a_text_of_its_own_loses():
    """An answer follows its prompt, so " world" after "Hello" stays " world"."""
    world = llama_like().token_to_id("▁w")
    prompt = llama_like().encode("Hello")
    assert streamed(llama_like(), [world], prompt_token_ids=prompt) == " w"
    assert streamed(llama_like(), [world], prompt_token_ids=prompt * 20) == " w"
    assert streamed(llama_like(), [world], prompt_token_ids=prompt + [1] * 20) == " w"
    assert streamed(llama_like(), [world], prompt_token_ids=[1]) == "w"


def test_a_prompt_may_end_inside_a_character():
    """The answer's first bytes then complete it."""
    ids = byte_level().encode("🦉")
    assert streamed(byte_level(), ids[2:], prompt_token_ids=ids[:2]) == "🦉"


def test_detokenising_takes_linear_time():
    """Sixteen times the tokens cost far less than the 256 times of a quadratic way."""

    def seconds(num_tokens):
        ids = byte_level().encode("hello 🙂 ")[:4] * num_tokens
        started = time.thread_time()
        streamed(byte_level(), ids)
        return time.thread_time() - started

    short = min(seconds(500) for _ in range(5))
    assert min(seconds(8000) for _ in range(3)) < 64 * short
