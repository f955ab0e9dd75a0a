"""Converts GPT-2's byte-level BPE files, vocab.json and merges.txt, to a tokenizer.json."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from weft.core.errors import ConfigError
from weft.model.fields import Fields, read_bytes, read_fields, shown
from weft.model.tokenizers.post_processor import Token, surround
from weft.model.tokenizers.token_facts import token_text

VOCAB, MERGES, ADDED = "vocab.json", "merges.txt", "added_tokens.json"
BPE_FILES = (VOCAB, MERGES, ADDED)
_CONFIG, _SPECIAL, _MODEL = "tokenizer_config.json", "special_tokens_map.json", "config.json"
_CLASS = "GPT2Tokenizer"
_MODEL_TYPES = ("gpt2", "opt")  # models with this tokenizer if the files name no class
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_ENDOFTEXT = "<|endoftext|>"  # default for the begin, end and unknown tokens
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def has_bpe_files(directory: Path) -> bool:
    """True if `convert_bpe_files` supports the directory's tokenizer; merges.txt alone does not prove this."""
    if not all((directory / name).exists() for name in (VOCAB, MERGES)):
        return False
    named = _read(directory, _CONFIG).values.get("tokenizer_class")
    if named is None:
        return _read(directory, _MODEL).values.get("model_type") in _MODEL_TYPES
    return str(named).removesuffix("Fast") == _CLASS


def convert_bpe_files(directory: Path) -> bytes:
    """Returns the text of the equivalent tokenizer.json, which is not tested yet."""
    config = _read(directory, _CONFIG)
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    add_prefix_space = config.flag_or("add_prefix_space", False)
    vocab = _read(directory, VOCAB)
    added = _added_tokens(directory, config, vocab)
    ids = dict(vocab.values) | {str(one["content"]): one["id"] for one in added}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": add_prefix_space},
        "post_processor": _post_processor(directory, config, ids),
        "decoder": {**byte_level, "add_prefix_space": add_prefix_space},
        "model": {
            "type": "BPE",
            "vocab": vocab.values,
            "merges": list(_merges(directory / MERGES)),
        },
    }
    return json.dumps(document).encode()


def _post_processor(
    directory: Path, config: Fields, ids: Mapping[str, object]
) -> dict[str, object] | None:
    """Returns the special tokens around a text, from flags of tokenizer_config.json that apply without a
    tokenizer.json.
    """
    said = _said(_read(directory, _SPECIAL), config)

    def token(role: str) -> Token | None:
        text = token_text(said.get(f"{role}_token"))
        if not config.flag_or(f"add_{role}_token", False) or text is None:
            return None
        token_id = ids.get(str(text))
        if not isinstance(token_id, int):
            raise ConfigError(
                f"{config.where}: {role}_token {shown(text)} is to be added to every text, but {directory / VOCAB} "
                "has no such token"
            )
        return str(text), token_id

    return surround(token("bos"), token("eos"), second_type=1)


def _read(directory: Path, name: str) -> Fields:
    """Returns the file's JSON object; an empty object if the file does not exist."""
    path = directory / name
    return read_fields(path) if path.exists() else Fields({}, str(path))


def _merges(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = read_bytes(path).decode().split("\n")
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path}: not UTF-8 text (byte {err.start})") from err
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        first, space, second = line.rstrip("\r").partition(" ")
        if not (first and space and second) or " " in second:
            raise ConfigError(f"{path}: line {number} is {shown(line)}; it must be two tokens")
        yield first, second


def _added_tokens(directory: Path, config: Fields, vocab: Fields) -> list[dict[str, object]]:
    """Returns the tokens outside of the vocabulary, and the special tokens of the vocabulary, by id."""
    ids, flags = dict(_read(directory, ADDED).values), dict[str, Mapping[str, object]]()
    listed = config.object("added_tokens_decoder") or Fields({}, config.where)
    for text in listed.values:
        entry = listed.object(text) or Fields({}, f"{listed.where}: {shown(text)}")
        content = entry.text("content")
        ids[content] = int(text) if text.isdecimal() and len(text) < 10 else text
        flags[content] = entry.values
    for content, said in _named_tokens(_read(directory, _SPECIAL), config):
        known = ids.get(content, vocab.values.get(content))
        if known is not None:
            ids[content], flags[content] = known, {**said, "special": True}
    checked = Fields(ids, f"{directory}: added tokens")
    added = sorted((checked.integer(content, low=0), content) for content in ids)
    beyond = [(number, content) for number, content in added if content not in vocab.values]
    # The library assigns these ids itself.
    for expected, (number, content) in enumerate(beyond, start=len(vocab.values)):
        if number != expected:
            raise ConfigError(
                f"{directory}: added token {shown(content)} has id {number}; it must have the next one, {expected}"
            )
    return [
        {
            "id": number,
            "content": content,
            **{flag: flags.get(content, {}).get(flag) is True for flag in _FLAGS},
        }
        for number, content in added
    ]


def _said(*files: Fields) -> dict[str, object]:
    """Returns the tokens with roles (bos, eos, unk, pad) in the files; later files override earlier ones."""
    said: dict[str, object] = dict.fromkeys(_NAMED[:3], _ENDOFTEXT)
    for fields in files:
        said |= {name: fields.values[name] for name in _NAMED if fields.has(name)}
    return said


def _named_tokens(*files: Fields) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yields the text and the flags of each token with a role."""
    for value in _said(*files).values():
        if isinstance(value, dict) and isinstance(value.get("content"), str):
            yield value["content"], value
        elif isinstance(value, str):
            yield value, {}
