"""Tokenizers without a tokenizer.json: GPT-2's vocab.json and merges.txt."""

import json

import pytest
from transformers import AutoTokenizer

from tests.model.bpe_files import GPT2_TOKENS, OPT_CONFIG, OPT_SPECIAL, OPT_TOKENS, write_bpe_files
from tests.text.vocabularies import SENTENCES
from weft.core.errors import ConfigError
from weft.model.tokenizers.tokenizer import read_tokenizer_files
from weft.text.tokenizer import Tokenizer

CASES = {
    "gpt2, as it first came": (GPT2_TOKENS, None, {"config.json": {"model_type": "gpt2"}}),
    "gpt2, by its class": (GPT2_TOKENS, {"tokenizer_class": "GPT2TokenizerFast"}, {}),
    "a space in front": (
        GPT2_TOKENS,
        {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True},
        {},
    ),
    "opt": (OPT_TOKENS, OPT_CONFIG, {"special_tokens_map.json": OPT_SPECIAL}),
    "a token added": (
        GPT2_TOKENS,
        {"tokenizer_class": "GPT2Tokenizer", "pad_token": "[PAD]"},
        {"added_tokens.json": {"[PAD]": 320}},
    ),
    "tokens listed": (
        GPT2_TOKENS,
        {
            "tokenizer_class": "GPT2Tokenizer",
            "added_tokens_decoder": {
                "0": {"content": "<|endoftext|>", "special": True},
                "320": {"content": "<think>", "special": False},
                "321": {"content": "[PAD]", "special": True, "lstrip": True},
            },
        },
        {},
    ),
}
TEXTS = [*SENTENCES, "", " leading", "the dog's", "a<|endoftext|>b</s>c", "x <think> y  [PAD]"]


def write(directory, tokens, config, others):
    """The files of a case."""
    write_bpe_files(directory, tokens, config)
    for name, value in {"config.json": {"model_type": "gpt2"}, **others}.items():
        (directory / name).write_text(json.dumps(value))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("tokens", "config", "others"), CASES.values(), ids=CASES)
def test_ids_and_texts_are_those_of_transformers(tokens, config, others, tmp_path):
    """With special tokens and without, and back; OPT's texts begin with </s>."""
    write(tmp_path, tokens, config, others)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_files(read_tokenizer_files(tmp_path))
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(
            text, add_special_tokens=False
        )
        for skip in (True, False):
            expected = theirs.decode(
                ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
            assert ours.decode(ids, skip_special_tokens=skip) == expected
    assert (ours.encode("a")[0] == ours.token_to_id("</s>")) == (tokens == OPT_TOKENS)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("vocab.json", "[]", "vocab.json: must hold one JSON object"),
        ("vocab.json", '{"a": "b"}', "vocab.json: not a valid tokenizer"),
        ("merges.txt", "#version\na b c", "merges.txt: line 2 is 'a b c'; it must be two tokens"),
        ("merges.txt", "qqq zzz", "vocab.json: not a valid tokenizer"),
        ("added_tokens.json", '{"[PAD]": 999}', r"'\[PAD\]' has id 999; it must have the next one"),
        ("added_tokens.json", '{"[PAD]": "x"}', r"\[PAD\] is 'x'; it must be a whole number"),
        ("tokenizer_config.json", '{"tokenizer_class": "RobertaTokenizer"}', "does not exist"),
        ("config.json", '{"model_type": "llama"}', "or GPT-2's vocab.json and merges.txt"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name, text, words, tmp_path):
    """A damaged file, and a tokenizer of another class that happens to have the same files."""
    write(tmp_path, GPT2_TOKENS, None, {})
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_tokenizer_files(tmp_path)
