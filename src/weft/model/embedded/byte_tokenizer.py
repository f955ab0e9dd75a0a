"""A byte-level tokenizer made in memory:

256 bytes, three special tokens, and filler tokens up to any vocabulary size.
"""

import json
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MIN_VOCAB = 256 + len(SPECIALS)
ENDOFTEXT_ID, IM_START_ID, IM_END_ID = range(256, MIN_VOCAB)

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_files(vocab_size: int, eos_token: str) -> dict[str, bytes]:
    """Returns tokenizer.json and tokenizer_config.json. The token id of each byte equals the byte."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eos_token,
        "pad_token": SPECIALS[0],
        "bos_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML,
    }
    return {
        "tokenizer.json": _tokenizer_json(vocab_size),
        "tokenizer_config.json": json.dumps(config, indent=1).encode(),
    }


@cache
def _tokenizer_json(vocab_size: int) -> bytes:
    vocab = {char: byte for byte, char in _byte_characters().items()}
    vocab.update({f"Ġw{token_id}": token_id for token_id in range(MIN_VOCAB, vocab_size)})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = [
        {
            "id": token_id,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token_id, content in enumerate(SPECIALS, start=256)
    ]
    document: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab | {s: i for i, s in enumerate(SPECIALS, start=256)},
            "merges": [],
        },
    }
    return json.dumps(document).encode()


@cache
def _byte_characters() -> Mapping[int, str]:
    """Returns the printable character that byte-level tokenizers use for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {byte: chr(byte) for byte in printable}
    stand_ins.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return MappingProxyType(stand_ins)
