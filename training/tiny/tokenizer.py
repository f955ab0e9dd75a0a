"""Byte-level BPE of the tiny model, learnt from the corpus: digits stand alone and every byte is in the alphabet."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.tiny.corpus import documents
from training.tiny.document import END_OF_TEXT, IM_END, IM_START

SPECIAL = (END_OF_TEXT, IM_START, IM_END)
MARKS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
MAX_ENTRIES = 4096
# One newline is one piece: the prompt's own ending then never merges with what the model writes after it.
PIECES = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\n|[^\S\n]+(?!\S)|[^\S\n]+"


def train_tokenizer(*, seed: int, num_documents: int = 40_000) -> Tokenizer:
    """Learn the merges from the first documents of the corpus."""
    texts = (
        _without_marks(document.text)
        for document in itertools.islice(documents(seed), num_documents)
    )
    return learn(texts, SPECIAL, MARKS, MAX_ENTRIES)


def learn(
    texts: Iterable[str], special: tuple[str, ...], marks: tuple[str, ...], max_entries: int
) -> Tokenizer:
    """Learn the merges from texts; `special` tokens and `marks` are whole entries after those of the merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max_entries - len(special) - len(marks),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=8,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in marks])
    return tokenizer


def _without_marks(text: str) -> str:
    for mark in SPECIAL + MARKS:
        text = text.replace(mark, "\n")
    return text


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    special: tuple[str, ...] = SPECIAL,
    marks: tuple[str, ...] = MARKS,
) -> None:
    """Write tokenizer.json and the tokenizer_config.json that Hugging Face tools read."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in special,
        }
        for token in special + marks
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": IM_END,
        "model_max_length": 2048,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
