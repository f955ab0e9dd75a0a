"""Tokenizer files in, ids and text out."""

import json
import threading
import time

import pytest
import tokenizers
from tokenizers import pre_tokenizers, processors

from tests.text.vocabularies import (
    SENTENCES,
    byte_level,
    byte_level_library,
    files_of,
    llama_like,
    llama_like_library,
    metaspace_library,
    word_library,
)
from weft.core.errors import BadRequest, ConfigError
from weft.text.tokenizer import MAX_TEXT_CHARS, Tokenizer


@pytest.mark.parametrize("text", [*SENTENCES, "", " leading", "\x00\u0301" * 50, "<|start|>hi"])
def test_byte_level_text_survives_encoding_and_decoding(text):
    """Encoding agrees with the library, and decoding gives the text back."""
    ids = byte_level().encode(text)
    assert ids == byte_level_library().encode(text).ids
    assert byte_level().decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("library", [llama_like_library, metaspace_library, word_library])
def test_decoding_agrees_with_the_library(library):
    """What other engines print for these ids is what we print."""
    ids = library().encode("hello world play 你 Löwe").ids
    ours = Tokenizer.from_files(files_of(library())).decode(ids, skip_special_tokens=False)
    assert ours == library().decode(ids, skip_special_tokens=False)


def test_special_tokens_are_left_out_unless_asked_for():
    """Only tokens marked special are left out; other added tokens are text."""
    ids = byte_level().encode("<|start|>a<think>b<|end|>")
    assert byte_level().decode(ids) == "a<think>b"
    assert byte_level().decode(ids, skip_special_tokens=False) == "<|start|>a<think>b<|end|>"


def test_ids_beyond_the_tokenizer_decode_to_nothing():
    """The logits are often wider than the tokenizer; such an id is no reason to fail."""
    tokenizer = byte_level()
    ids = [tokenizer.vocab_size, *tokenizer.encode("ok"), tokenizer.vocab_size + 5000]
    assert tokenizer.decode(ids) == "ok"
    assert tokenizer.token_to_text(tokenizer.vocab_size) == ""


@pytest.mark.parametrize("flag", [True, False, None])
def test_the_tokenizer_file_decides_what_surrounds_a_text(flag):
    """Flags of tokenizer_config.json are of tokenizers without such a file."""
    library = tokenizers.Tokenizer.from_str(llama_like_library().to_str())
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": flag, "add_eos_token": flag}
    tokenizer = Tokenizer.from_files(files_of(library, **config))
    without = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello") == [1, *without]
    bare = Tokenizer.from_files(files_of(llama_like_library(), **config))
    assert bare.encode("hello") == without
    assert (bare.bos_token_id, bare.eos_token_id) == (1, 2)


def test_saved_truncation_and_padding_are_ignored():
    """Settings left in the file by a training script must not shorten or pad prompts."""
    library = tokenizers.Tokenizer.from_str(byte_level_library().to_str())
    library.enable_truncation(2)
    library.enable_padding(length=64)
    tokenizer = Tokenizer.from_files(files_of(library))
    assert tokenizer.decode(tokenizer.encode("quite a long text")) == "quite a long text"


def test_the_token_that_completes_a_character_shows_all_of_it():
    """A log-probability entry is readable: "" while a character is open, the character at its end."""
    tokenizer = llama_like()
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "🙂".encode()]
    texts = [tokenizer.token_to_text(ids[i], ids[:i]) for i in range(4)]
    assert texts == ["", "", "", "🙂"]
    assert tokenizer.token_to_bytes(ids[0]) == b"\xf0"


def test_a_tokens_text_keeps_its_space_and_shows_specials():
    """Entries stand alone, so neither the start-of-text rule nor skipping applies to them."""
    assert llama_like().token_to_text(llama_like().token_to_id("▁w")) == " w"
    assert llama_like().token_to_text(2) == "</s>"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "tokenizer.json is missing"),
        ({"tokenizer.json": b"{"}, "is not a usable tokenizer"),
        ({"tokenizer.json": b"\xff\xfe"}, "is not a usable tokenizer"),
        ({"tokenizer.json": b"[" * 100_000}, "is not a usable tokenizer"),
        ({"tokenizer.json": b"[]"}, "is not a usable tokenizer"),
        ({"tokenizer.json": b"{}"}, "is not a usable tokenizer"),
    ],
)
def test_a_broken_tokenizer_file_is_one_line_for_the_user(files, words):
    """The error names the file, says what is wrong, and fits a line."""
    with pytest.raises(ConfigError, match=words) as caught:
        Tokenizer.from_files(files)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"bos_token": 7}, "bos_token must be a string"),
        ({"added_tokens_decoder": {"-1": {"content": "a"}}}, "'-1'; it must be the id of a token"),
        ({"added_tokens_decoder": {"1": {"content": 2}}}, "1: content is 2; it must be text"),
        ({"added_tokens_decoder": {"1": {"content": "a" * 5000}}}, "5000 characters; 4096 are"),
        ({"added_tokens_decoder": {"1": {"content": "a", "special": 1}}}, "special is 1"),
    ],
)
def test_a_broken_tokenizer_config_names_the_key(config, words):
    """A setting that cannot be followed is refused, not dropped."""
    with pytest.raises(ConfigError, match=words):
        Tokenizer.from_files(files_of(byte_level_library(), **config))


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"{", "not valid JSON"), (b"[" * 100_000, "nested too"), (b"[]", "object, not a list")],
)
def test_a_tokenizer_config_must_be_a_json_object(data, words):
    """Also when it is nested without end."""
    files = {**files_of(byte_level_library()), "tokenizer_config.json": data}
    with pytest.raises(ConfigError, match=f"tokenizer_config.json.* {words}"):
        Tokenizer.from_files(files)


def test_a_lone_surrogate_is_a_bad_request():
    """JSON can carry half of a surrogate pair; it has no bytes, so it cannot be encoded."""
    with pytest.raises(BadRequest, match=r"lone surrogate U\+D83D at character 2") as caught:
        byte_level().encode(json.loads('"ab\\ud83d"'))
    assert caught.value.parameter == "prompt"


def test_endless_text_is_refused_before_it_is_encoded():
    """Encoding holds a thread for as long as the text is."""
    with pytest.raises(BadRequest, match="at most"):
        byte_level().encode("a" * (MAX_TEXT_CHARS + 1))


def panicking_library() -> tokenizers.Tokenizer:
    """One whose regular expression tries too many ways to read a run of letters."""
    library = byte_level_library().from_str(byte_level_library().to_str())
    cut = pre_tokenizers.Split(tokenizers.Regex(r"(?:a|a)*[bc]d"), behavior="isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return library


def test_a_text_that_the_library_gives_up_on_is_a_bad_request():
    """It panics, which is no `Exception` to Python; the next text is encoded as ever."""
    tokenizer = Tokenizer.from_files(files_of(panicking_library()))
    with pytest.raises(BadRequest, match="the tokenizer gave up on this text: Onig") as caught:
        tokenizer.encode("a" * 60 + "b d")
    assert caught.value.parameter == "prompt"
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"


def share_of_others(work) -> float:
    """Of what is computed while `work` runs on a thread, the part that another thread gets to compute.

    The most of several: on a busy machine the system may let the other wait, a lock does so each time.
    """
    return max(_share_of_others(work) for _ in range(3))


def _share_of_others(work) -> float:
    running = threading.Thread(target=work)
    before = time.thread_time(), time.process_time()
    running.start()
    while running.is_alive():
        pass
    return (time.thread_time() - before[0]) / (time.process_time() - before[1])


def test_others_run_while_a_long_text_is_encoded():
    """The library's plain `encode` holds the interpreter's lock for all of it."""
    tokenizer = byte_level()
    assert share_of_others(lambda: tokenizer.encode("some text " * 50_000)) > 0.2


def test_others_run_while_many_ids_are_decoded():
    """So does its plain `decode`; here for a decoder that is left to it."""
    tokenizer = Tokenizer.from_files(files_of(word_library()))
    ids = tokenizer.encode("hello world " * 200_000)
    assert share_of_others(lambda: tokenizer.decode(ids)) > 0.2


async def test_an_event_loop_turns_while_a_long_text_is_encoded():
    """A short one is encoded at once; the thread for a long one is another than for a medium one."""
    tokenizer = byte_level()
    here = threading.current_thread().name
    names = [
        await tokenizer.soon(n, lambda: threading.current_thread().name) for n in (9, 10**5, 10**6)
    ]
    assert names[0] == here
    assert names[1].startswith("weft-tokenizer_")
    assert names[2].startswith("weft-tokenizer-long_")
