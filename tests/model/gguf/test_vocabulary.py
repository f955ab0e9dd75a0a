"""Tokenizers of GGUF files against those that they were made of."""

import json
import random
from datetime import datetime
from functools import cache

import gguf
import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.model.checkpoints import CONFIG, write_checkpoint
from tests.model.gguf.files import KINDS, close, gguf_tensors
from weft.core.errors import ConfigError
from weft.model.gguf.vocabulary import make_files, read_vocabulary
from weft.model.open import open_model
from weft.text.templates.template import make_environment

CORPUS = [
    "The quick brown fox can't jump over 12,345.67 lazy dogs; they're we'll I'd IT'S 2024-11-05.\n\n",
    (
        "Ça été naïve: Привет, мир! こんにちは世界 你好 안녕 हिन्दी ไทย 👩‍👩‍👧 ½ ﬁ e\u0301 \t\r\n"
        "   indented  code_1 = [x for x in y]"
    ),
    "foo(bar) => {baz: 'qux'}; #include <stdio.h> 1000000 3.14159 a+b=c ~/path/to/file |pipe| $5 ^_^",
] * 20
TEXTS = [
    *CORPUS[:3],
    *(
        "",
        " ",
        "   ",
        "\n",
        " \n \n",
        "a",
        " a",
        "x  y",
        "can't",
        "CAN'T",
        "1",
        "12",
        "1234567",
        "٣٤٥",
    ),
    *(
        "<|end|>",
        "a<|end|>b",
        "  <|end|>  ",
        "<|end",
        "=>==>",
        "//\n/CamelCaseABCdef",
        "|||",
        "\u00a0\u2003",
        "e\u0301",
        "ﷺ🏳️‍🌈",
    ),
    "".join(random.Random(0).choices([chr(c) for c in range(32, 0x3000)], k=500)),
]
SPLIT = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
SPLIT["gpt-4o"] = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = {
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        r"[一-龥\x{3040}-ゟ゠-ヿ]+",
        (
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ),
}
SPLIT["stablelm2"] = SPLIT["qwen2"]
SPLIT["qwen35"] = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT["seed-coder"] = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
SPLIT["dbrx"] = SPLIT["glm4"] = SPLIT[
    "llama-bpe"
]  # but words that are tokens are merged like any other


@cache
def byte_level(name):
    """A tokenizer as models with that name for their splitting publish it, trained on a little text."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=name in ("llama-bpe", "tekken")))
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name not in SPLIT)
    if name in SPLIT:
        byte = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT[name]), "isolated"), byte])
    if name in DEEPSEEK:
        splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in DEEPSEEK[name]]
        byte = pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    if name in ("smollm", "command-r"):
        byte = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte])
    tokenizer.pre_tokenizer = byte
    if name in ("qwen2", "qwen35", "command-r"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=700, initial_alphabet=sorted(alphabet))
    )
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    return tokenizer


def write_vocabulary(path, tokenizer, pre, *, special="control", merges=None, **flags):
    """A whole model with that tokenizer; only its vocabulary matters. `special` is the kind of its special tokens."""
    vocab = json.loads(tokenizer.to_str())
    size = tokenizer.get_vocab_size()
    writer = start(path, size + 2)
    by_id = [tokenizer.id_to_token(i) for i in range(size)] + [f"[PAD{size}]", f"[PAD{size + 1}]"]
    kinds = {one["content"]: special for one in vocab["added_tokens"]}
    kinds |= dict.fromkeys(by_id[-2:], "unused")
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(by_id)
    writer.add_token_types([KINDS[kinds.get(t, "normal")] for t in by_id])
    merges = vocab["model"]["merges"] if merges is None else merges
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(by_id.index("<|begin|>"))
    writer.add_eos_token_id(by_id.index("<|end|>"))
    for name, value in flags.items():
        getattr(writer, name)(value)
    return close(writer, path)


def start(path, vocab_size):
    config = {**CONFIG, "vocab_size": vocab_size}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(16)
    writer.add_block_count(2)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    checkpoint = write_checkpoint(path.parent / "checkpoint", config)
    for name, values in gguf_tensors(checkpoint, config, "llama").items():
        writer.add_tensor(name, values)
    return writer


def same_texts(ours, theirs, texts=TEXTS):
    for text in texts:
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == ids, text
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(
            ids, skip_special_tokens=False
        )


def read(path):
    return open_model(str(path))


@pytest.mark.parametrize(
    "name",
    [
        *("gpt-2", "llama-bpe", "dbrx", "glm4", "qwen2", "smollm", "tekken", "gpt-4o"),
        *("qwen35", "stablelm2", "seed-coder", "command-r"),
        *DEEPSEEK,
    ],
)
def test_byte_level_tokenizers_are_those_they_were_made_of(tmp_path, name):
    """Every way to take texts apart: digits, contractions, spaces, other scripts, special tokens."""
    theirs = byte_level(name)
    checkpoint = read(write_vocabulary(tmp_path / "m.gguf", theirs, name))
    same_texts(checkpoint.parsed_tokenizer, theirs)
    assert checkpoint.parsed_tokenizer.get_vocab() == theirs.get_vocab()  # without [PAD…]
    assert checkpoint.card.eos_token_ids == (theirs.token_to_id("<|end|>"),)
    assert checkpoint.card.bos_token_id == theirs.token_to_id("<|begin|>")


@pytest.mark.parametrize(("pre", "is_whole"), [("llama-bpe", 1), ("tekken", 1), ("dbrx", 0)])
def test_a_word_that_no_merges_lead_to_may_be_whole(tmp_path, pre, is_whole):
    """Some models look a word up before they merge its letters."""
    path = write_vocabulary(tmp_path / "m.gguf", byte_level("gpt-2"), pre, merges=[])
    tokens = read(path).parsed_tokenizer.encode(" quick", add_special_tokens=False).tokens
    assert tokens == (["Ġquick"] if is_whole else list("Ġquick"))


def test_what_ends_a_turn_by_its_name_does_so_whatever_its_kind(tmp_path):
    """Early files of Gemma and others call it a usual token; so do some that which begins a text."""
    theirs = byte_level("gpt-2")
    checkpoint = read(write_vocabulary(tmp_path / "m.gguf", theirs, "gpt-2", special="normal"))
    ours, end = checkpoint.parsed_tokenizer, theirs.token_to_id("<|end|>")
    assert ours.encode("a<|end|>").ids[-1] == end
    assert ours.decode([end]) == ""
    assert ours.encode("<|begin|>").ids == [theirs.token_to_id("<|begin|>")]


@pytest.mark.parametrize(
    ("pre", "flags", "begin", "end"),
    [
        ("llama-bpe", {}, 1, 0),
        ("llama-bpe", {"add_add_bos_token": False}, 0, 0),
        ("qwen2", {}, 0, 0),
        ("qwen2", {"add_add_bos_token": True, "add_add_eos_token": True}, 1, 1),
        (None, {}, 0, 0),
    ],
)
def test_texts_begin_and_end_as_the_file_says(tmp_path, pre, flags, begin, end):
    """Where it says nothing, as its kind of tokenizer does."""
    theirs = byte_level("gpt-2")
    ours = read(write_vocabulary(tmp_path / "m.gguf", theirs, pre, **flags)).parsed_tokenizer
    ids = ours.encode("aaa").ids
    first, last = theirs.token_to_id("<|begin|>"), theirs.token_to_id("<|end|>")
    assert (ids[0] == first, ids[-1] == last) == (bool(begin), bool(end))


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory):
    """As Llama 2 has it: no spaces but a letter for them, digits apart, and bytes for what is not known."""
    prefix = tmp_path_factory.mktemp("sp") / "model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS[:2]),
        model_prefix=str(prefix),
        model_type="bpe",
        vocab_size=500,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        control_symbols=["<|end|>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


def write_sentence_piece(path, theirs, drop=()):
    """As llama.cpp's converter does."""
    size = theirs.get_piece_size()
    kinds = [
        "unknown"
        if theirs.is_unknown(i)
        else "control"
        if theirs.is_control(i)
        else "byte"
        if theirs.is_byte(i)
        else "normal"
        for i in range(size)
    ]
    writer = start(path, size)
    fields = {
        "add_tokenizer_model": "llama",
        "add_token_list": [theirs.id_to_piece(i) for i in range(size)],
        "add_token_scores": [theirs.get_score(i) for i in range(size)],
        "add_token_types": [KINDS[kind] for kind in kinds],
        "add_bos_token_id": theirs.bos_id(),
        "add_eos_token_id": theirs.eos_id(),
        "add_unk_token_id": theirs.unk_id(),
        "add_chat_template": [
            {"name": "default", "template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
            {"name": "tool_use", "template": "{{ tools | tojson }}"},
        ],
    }
    for name, value in fields.items():
        if name not in drop:
            getattr(writer, name)(value)
    return close(writer, path)


def test_sentence_piece_is_that_it_was_made_of(tmp_path, sentence_piece):
    """Merges follow from the scores; what is not known is bytes, and decodes again."""
    checkpoint = read(write_sentence_piece(tmp_path / "m.gguf", sentence_piece))
    ours = checkpoint.parsed_tokenizer
    for text in filter(None, TEXTS):
        if "<|end|>" not in text:
            ids = ours.encode(text).ids
            assert ids == [sentence_piece.bos_id(), *sentence_piece.encode(text)], text
            assert ours.decode(ids) == text
    end = sentence_piece.piece_to_id("<|end|>")
    assert end in ours.encode("née<|end|>").ids
    assert checkpoint.card.eos_token_ids == (sentence_piece.eos_id(), end)
    template = make_environment(datetime.now).from_string(checkpoint.chat_template)
    assert template.render(messages=[{"content": "hi"}]) == "hi"
    assert template.render(messages=[], tools=["f"]) == '["f"]'


@pytest.mark.parametrize(
    ("drop", "words"),
    [
        ("add_token_scores", "tokenizer.ggml.scores must be a list of"),
        (
            "add_tokenizer_model",
            "tokenizer.ggml.model is missing; it must be one of gpt2, llama, gemma4",
        ),
        ("add_token_list", "tokenizer.ggml.tokens has 0 tokens"),
    ],
)
def test_what_is_missing_is_named(tmp_path, sentence_piece, drop, words):
    """One sentence."""
    path = write_sentence_piece(tmp_path / "m.gguf", sentence_piece, (drop,))
    with pytest.raises(ConfigError, match=words):
        read(path)


def test_without_a_name_texts_are_split_as_llama_cpp_does(tmp_path):
    """By signs, words, and digits in threes."""
    path = write_vocabulary(tmp_path / "m.gguf", byte_level("gpt-2"), None)
    pieces = read(path).parsed_tokenizer.pre_tokenizer.pre_tokenize_str("a $b+ 12345")
    assert [piece for piece, _ in pieces] == ["a", "Ġ", "$", "b", "+", "Ġ", "123", "45"]


def test_texts_of_deepseek_v2_are_split_by_lines_words_signs_and_digits(tmp_path):
    """Words are of letters with a case; but signs are those up to ~, with a to z, so that others stand alone."""
    path = write_vocabulary(tmp_path / "m.gguf", byte_level("gpt-2"), "deepseek-llm")
    tokenizer = read(path).parsed_tokenizer
    text = "Das ist\n ein Wörtchen: x1 = 234, Ωω漢字、かな\u0561 \U0001d400\U0001d401  "
    pieces = [text[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == [
        *("Das", " ist", "\n", " ein", " W", "ö", "rtchen", ":", " x", "1", " =", " ", "2", "3"),
        *("4", ",", " Ωω", "漢字", "、", "かな", "\u0561 \U0001d400\U0001d401", "  "),
    ]


@pytest.mark.parametrize("token_id", [-1, 2**32 - 1, 3])
def test_an_id_of_no_token_names_none(token_id):
    """Converters write -1, also as a number without sign, where a tokenizer has no such token."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.ggml.bos_token_id": token_id,
        "tokenizer.ggml.padding_token_id": token_id,
        "tokenizer.ggml.add_bos_token": True,
    }
    vocabulary = read_vocabulary(metadata, "m")
    assert vocabulary.token_id("bos") is vocabulary.token_id("padding") is None
    files = make_files(vocabulary)
    assert json.loads(files["tokenizer_config.json"]) == {}
    assert json.loads(files["tokenizer.json"])["post_processor"] is None


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (["a", "<|end|>", "<|return|>", "<|call|>"], [2, 3]),
        (["a", "<|end|>", "<|return|>", "b"], [2, 1]),
    ],
)
def test_the_end_of_a_message_of_harmony_ends_no_answer(tokens, ends):
    """What follows an analysis is the answer, or a call."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.eos_token_id": 2,
    }
    assert read_vocabulary(metadata, "m").eos_token_ids == ends


def test_a_splitting_that_is_not_known_is_refused_by_name(tmp_path):
    """With those that are."""
    path = write_vocabulary(tmp_path / "m.gguf", byte_level("gpt-2"), "bloom")
    with pytest.raises(
        ConfigError, match=r"ggml\.pre is 'bloom'; it must be one of default, gpt-2"
    ):
        read(path)
