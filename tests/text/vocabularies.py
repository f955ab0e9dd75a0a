"""Small tokenizers of each kind, built in memory."""

import json
from functools import cache

import tokenizers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from weft.text.tokenizer import Tokenizer

SENTENCES = [
    "Hello world, the quick brown fox jumps over the lazy dog.",
    "Löwe, 99 Luftballons, naïve café — ok? 你好，世界! こんにちは 🙂👩‍👩‍👧 done",
]
SPECIALS = ["<|start|>", "<|end|>"]


def files_of(library: tokenizers.Tokenizer, **config: object) -> dict[str, bytes]:
    return {
        "tokenizer.json": library.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }


@cache
def byte_level_library() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=SPECIALS, show_progress=False
    )
    library.train_from_iterator(SENTENCES, trainer)
    library.add_tokens([AddedToken("<think>", special=False)])
    return library


@cache
def byte_level() -> Tokenizer:
    return Tokenizer.from_files(files_of(byte_level_library()))


def sentencepiece_library(decoder: decoders.Decoder) -> tokenizers.Tokenizer:
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", *"abcdefghijklmnopqrstuvwxyzHWL.,!", "▁H", "▁w", "el", "lo", "你", "▁▁"]
    merges = [("▁", "H"), ("▁", "w"), ("e", "l"), ("l", "o"), ("▁", "▁")]
    vocab = {name: token_id for token_id, name in enumerate(names)}
    library = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    library.decoder = decoder
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    return library


@cache
def llama_like_library() -> tokenizers.Tokenizer:
    return sentencepiece_library(
        decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    )


@cache
def llama_like() -> Tokenizer:
    return Tokenizer.from_files(files_of(llama_like_library(), bos_token="<s>", eos_token="</s>"))


def with_bos(library: tokenizers.Tokenizer, bos: str) -> Tokenizer:
    """A tokenizer whose file puts a token before each text."""
    framed = tokenizers.Tokenizer.from_str(library.to_str())
    framed.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, framed.token_to_id(bos))]
    )
    return Tokenizer.from_files(files_of(framed, bos_token=bos))


@cache
def metaspace_library() -> tokenizers.Tokenizer:
    return sentencepiece_library(decoders.Metaspace(prepend_scheme="always"))


@cache
def word_library() -> tokenizers.Tokenizer:
    names = ["[UNK]", "[CLS]", "[SEP]", "hello", "world", "play", "##ing", "##s", "再"]
    vocab = {name: token_id for token_id, name in enumerate(names)}
    library = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoders.WordPiece(cleanup=False)
    library.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    return library
