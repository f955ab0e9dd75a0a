"""A byte-level BPE as GPT-2 and OPT came with: vocab.json, merges.txt and what names their special tokens."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXT = (
    "the quick brown fox jumps over the lazy dog; the dog's friends can't jump over 12345 foxes. "
    "Löwen jagen über Straßen, 你好 世界, and what is the weather like in the north?"
)
OPT_SPECIAL = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")
# As facebook/opt-125m has it.
OPT_CONFIG = {
    **OPT_SPECIAL,
    "pad_token": {"__type": "AddedToken", "content": "<pad>", "lstrip": False, "normalized": True},
    "add_bos_token": True,
    "add_prefix_space": False,
    "errors": "replace",
    "tokenizer_class": "GPT2Tokenizer",
}
GPT2_TOKENS, OPT_TOKENS = ["<|endoftext|>"], ["<s>", "<pad>", "</s>", "<unk>"]


def write_bpe_files(directory: Path, tokens: list[str], config: dict | None = None) -> int:
    """Trained on a few words; the result is the size of the vocabulary, with `tokens` in it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=tokens, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"]), ""]
    (directory / "vocab.json").write_text(json.dumps(model["vocab"]))
    (directory / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return len(model["vocab"])
