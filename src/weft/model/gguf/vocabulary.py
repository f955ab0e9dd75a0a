"""Converts the tokenizer in a GGUF file's metadata to the files of a checkpoint: tokenizer.json and its config.

For byte-level BPE ("gpt2") the file has the merges, and the name of a way to split texts before the merges; for
SentencePiece ("llama") the merges follow from the scores. Gemma 4's ("gemma4") is SentencePiece's with merges.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from weft.core.errors import ConfigError
from weft.model.fields import Fields, is_finite_number, shown
from weft.model.tokenizers.post_processor import surround
from weft.model.tokenizers.templates import TEMPLATE, TOOL_TEMPLATE
from weft.model.tokenizers.token_facts import TOKENIZER_CONFIG
from weft.model.tokenizers.tokenizer import TOKENIZER

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_PREFIX = "tokenizer.ggml."
_TEMPLATES = {
    "tokenizer.chat_template": TEMPLATE,
    "tokenizer.chat_template.tool_use": TOOL_TEMPLATE,
}
_MAX_TOKENS = 1 << 20
# Maximum number of characters examined to find merges by scores; large vocabularies need a tenth of it.
_MAX_SPLITS = 64 << 20
# Tokens that end a turn. Files often name only the token that ends the text, and some mark these as ordinary tokens.
_ENDS = frozenset(
    "<|eot_id|> <|eom_id|> <|im_end|> <|end|> <end_of_turn> <turn|> <|endoftext|> <|end_of_text|>".split()
)
# Harmony's ends of an answer; the end token in the file ends only one of several messages.
_HARMONY_ENDS, _HARMONY_END = frozenset(("<|return|>", "<|call|>")), "<|end|>"

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_WORDS = rf"{_BEFORE_WORD}\p{{L}}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class _Splitting:
    """Patterns that split a text, applied one after the other.

    `has_whole_words`: a word that is a token is not split further.
    """

    patterns: tuple[str, ...]
    is_composed: bool = False  # texts are normalised to Unicode's form NFC
    has_whole_words: bool = False
    adds_bos: bool = False  # default if the file does not say


_DBRX = _Splitting((f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}{{1,3}}|{_REST}",))
_LLAMA3 = replace(_DBRX, has_whole_words=True, adds_bos=True)
_CAPITALS = rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+|{_BEFORE_WORD}{_UPPER}+{_LOWER}*"
_TEKKEN = replace(
    _LLAMA3, patterns=(rf"{_CAPITALS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",)
)
# Contractions stay with their words.
_GPT_4O = _Splitting(
    (
        (
            rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|"
            rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
        ),
    )
)
_QWEN2 = _Splitting((f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}|{_REST}",), is_composed=True)
_QWEN35 = _Splitting(
    (
        (
            rf"{_CONTRACTIONS}|{_BEFORE_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}|"
            rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
        ),
    ),
    is_composed=True,
)
_SEED = _Splitting((rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",))
_DIGITS = _Splitting((r"\p{N}", _GPT2))
# Letters that have a case, of the alphabets that the model's own file lists.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c8f}\x{2d00}-\x{2d2f}"
    r"\x{a790}-\x{a7ff}\x{ab30}-\x{ab6f}\x{10570}-\x{105bf}\x{16e40}-\x{16eff}\x{1d400}-\x{1dfff}]]"
)
_ASIAN = r"[\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+"
_DEEPSEEK = _Splitting(
    (
        r"[\r\n]",
        rf"\s?{_CASED}+",
        r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
        r"\s+$",
        _ASIAN,
        r"\p{N}",
    )
)
_DEEPSEEK_CODER = replace(
    _DEEPSEEK, patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _ASIAN, r"\p{N}")
)
_DEEPSEEK_V3 = _Splitting(
    (
        r"\p{N}{1,3}",
        r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+",
        (
            r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
        ),
    )
)
SPLITTINGS: Mapping[str, _Splitting] = MappingProxyType(
    {
        "default": _Splitting(
            (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
        ),
        **dict.fromkeys(
            ("gpt-2", "phi-2", "olmo", "granite-docling", "exaone4"), _Splitting((_GPT2,))
        ),
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"), _LLAMA3),
        **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _DBRX),
        "tekken": _TEKKEN,
        "gpt-4o": _GPT_4O,
        "qwen2": _QWEN2,
        **dict.fromkeys(("deepseek-r1-qwen", "stablelm2"), replace(_QWEN2, is_composed=False)),
        "qwen35": _QWEN35,
        "seed-coder": _SEED,
        "deepseek-llm": _DEEPSEEK,
        "deepseek-coder": _DEEPSEEK_CODER,
        **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK_V3),
        **dict.fromkeys(("smollm", "starcoder", "refact"), _DIGITS),
        "command-r": replace(_DIGITS, is_composed=True),
    }
)
MODELS = ("gpt2", "llama", "gemma4")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Checked metadata of a tokenizer."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    fields: Fields

    def token_id(self, role: str) -> int | None:
        """Returns the id of the token with this role; None if the file has none or an invalid id, such as -1."""
        key = f"{_PREFIX}{role}_token_id"
        if not self.fields.has(key):
            return None
        token_id = self.fields.integer(key, low=-(2**63), high=2**64)
        return token_id if 0 <= token_id < len(self.tokens) else None

    @property
    def eos_token_ids(self) -> list[int]:
        """Ids of all tokens that end an answer, first the ids that the file names."""
        named = [self.token_id(role) for role in ("eos", "eot", "eom")]
        ends = _ENDS
        if set(self.tokens) >= _HARMONY_ENDS:
            ends = (_ENDS | _HARMONY_ENDS) - {_HARMONY_END}
        known = (i for i, token in enumerate(self.tokens) if token in ends)
        return list(
            dict.fromkeys(token_id for token_id in (*named, *known) if token_id is not None)
        )


def read_vocabulary(metadata: Mapping[str, object], where: str) -> Vocabulary:
    """Returns the vocabulary; raises `ConfigError` unless tokens are unique and each token has a kind."""
    fields = Fields(metadata, where)
    model = metadata.get(f"{_PREFIX}model")
    if model not in MODELS:
        fields.refuse(f"{_PREFIX}model", f"one of {', '.join(MODELS)}")
    tokens = fields.texts(f"{_PREFIX}tokens")
    if not 0 < len(tokens) <= _MAX_TOKENS:
        raise ConfigError(
            f"{where}: {_PREFIX}tokens has {len(tokens)} tokens; 1 to {_MAX_TOKENS} are possible"
        )
    kinds = metadata.get(f"{_PREFIX}token_type")
    if kinds is None:
        kinds = [_NORMAL] * len(tokens)
    if (
        not isinstance(kinds, list)
        or len(kinds) != len(tokens)
        or any(kind not in range(_NORMAL, _BYTE + 1) for kind in kinds)
    ):
        raise ConfigError(
            f"{where}: {_PREFIX}token_type must be a list of {len(tokens)} numbers from 1 to 6, one a token"
        )
    if len(set(tokens)) != len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise ConfigError(f"{where}: {_PREFIX}tokens has {shown(twice)} twice")
    kinds = [
        _CONTROL if token in _ENDS else kind for token, kind in zip(tokens, kinds, strict=True)
    ]
    return Vocabulary(tokens, kinds, fields)


def make_files(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Returns the tokenizer's files by name; they are not tested yet."""
    is_bpe = vocabulary.fields.text(f"{_PREFIX}model") == "gpt2"
    document = _byte_level(vocabulary) if is_bpe else _sentence_piece(vocabulary)
    config: dict[str, object] = {
        f"{name}_token": vocabulary.tokens[token_id]
        for name, role in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if (token_id := vocabulary.token_id(role)) is not None
    }
    files = {
        TOKENIZER: json.dumps({"version": "1.0", **document}).encode(),
        TOKENIZER_CONFIG: json.dumps(config).encode(),
    }
    for key, file in _TEMPLATES.items():
        if vocabulary.fields.has(key):
            files[file] = vocabulary.fields.text(key).encode()
    return files


def _byte_level(vocabulary: Vocabulary) -> dict[str, object]:
    fields, key = vocabulary.fields, f"{_PREFIX}pre"
    name = fields.text(key) if fields.has(key) else "default"
    if name not in SPLITTINGS:
        fields.refuse(key, f"one of {', '.join(SPLITTINGS)}")
    splitting, ids = SPLITTINGS[name], _ids(vocabulary)
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    splits = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in splitting.patterns
    ]
    model = {
        "type": "BPE",
        "vocab": ids,
        "merges": list(_merges(fields, ids)),
        "ignore_merges": splitting.has_whole_words,
    }
    return {
        "added_tokens": _added(vocabulary),
        "normalizer": {"type": "NFC"} if splitting.is_composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "post_processor": _post_processor(vocabulary, adds_bos=splitting.adds_bos),
        "decoder": byte_level,
        "model": model,
    }


def _sentence_piece(vocabulary: Vocabulary) -> dict[str, object]:
    """Returns the tokenizer.json of SentencePiece.

    A space is an ordinary character, one space is put before the text, and unknown text is encoded as bytes.
    """
    fields, ids = vocabulary.fields, _ids(vocabulary)
    has_prefix = fields.flag_or(f"{_PREFIX}add_space_prefix", True)
    has_merges = fields.text(f"{_PREFIX}model") == "gemma4"
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    start = [{"type": "Prepend", "prepend": "▁"}] if has_prefix else []
    end = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    unknown = vocabulary.token_id("unknown")
    model = {
        "type": "BPE",
        "vocab": ids,
        "merges": list(_merges(fields, ids)) if has_merges else _merges_by_score(vocabulary, ids),
        "unk_token": None if unknown is None else vocabulary.tokens[unknown],
        "fuse_unk": True,
        "byte_fallback": _BYTE in vocabulary.kinds,
    }
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *end]
    return {
        "added_tokens": _added(vocabulary),
        "normalizer": {"type": "Sequence", "normalizers": [*start, space]},
        "pre_tokenizer": None,
        "post_processor": _post_processor(vocabulary, adds_bos=True),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Returns ids by token, without the names that converters invent for unused rows."""
    return {
        token: i
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind != _UNUSED or token != f"[PAD{i}]"
    }


def _added(vocabulary: Vocabulary) -> list[dict[str, object]]:
    """Returns the added tokens, which are found in a text before the text is split."""
    return [
        {
            "id": i,
            "content": token,
            "special": kind != _USER,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER) and token
    ]


def _merges(fields: Fields, ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for line in fields.texts(f"{_PREFIX}merges"):
        first, space, second = line.partition(" ")
        if not space or first not in ids or second not in ids or first + second not in ids:
            raise ConfigError(
                f"{fields.where}: {_PREFIX}merges has {shown(line)}; it must be two tokens that make a third"
            )
        yield first, second


def _merges_by_score(vocabulary: Vocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Returns every pair of tokens whose join is a token, highest score first; of equal scores, lowest ids first."""
    scores = vocabulary.fields.values.get(f"{_PREFIX}scores")
    if not isinstance(scores, list) or len(scores) != len(vocabulary.tokens):
        raise ConfigError(
            f"{vocabulary.fields.where}: {_PREFIX}scores must be a list of {len(vocabulary.tokens)} numbers, "
            "one a token"
        )
    if not all(map(is_finite_number, scores)):
        raise ConfigError(f"{vocabulary.fields.where}: {_PREFIX}scores holds NaN or infinity")
    work = sum(len(token) ** 2 for token in ids)
    if work > _MAX_SPLITS:
        raise ConfigError(
            f"{vocabulary.fields.where}: {_PREFIX}tokens are too long to find their merges by scores"
        )
    made = [
        (-scores[i], ids[token[:at]], ids[token[at:]])
        for token, i in ids.items()
        if vocabulary.kinds[i] in (_NORMAL, _USER, _UNUSED)
        for at in range(1, len(token))
        if token[:at] in ids and token[at:] in ids
    ]
    return [(vocabulary.tokens[a], vocabulary.tokens[b]) for _, a, b in sorted(made)]


def _post_processor(vocabulary: Vocabulary, *, adds_bos: bool) -> dict[str, object] | None:
    """Returns the post-processor that adds the file's tokens before and after a text; None if there are none."""
    flags = {
        "bos": vocabulary.fields.flag_or(f"{_PREFIX}add_bos_token", adds_bos),
        "eos": vocabulary.fields.flag_or(f"{_PREFIX}add_eos_token", False),
    }
    ids = {name: vocabulary.token_id(name) for name, is_wanted in flags.items() if is_wanted}
    tokens = {name: (vocabulary.tokens[i], i) for name, i in ids.items() if i is not None}
    return surround(tokens.get("bos"), tokens.get("eos"))
