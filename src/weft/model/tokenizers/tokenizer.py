"""Tokenizer files of a checkpoint: reads them, checks them against the model, finds special ids and the template."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from weft.core.errors import ConfigError
from weft.core.panics import panics_as
from weft.model.fields import Fields, one_line, read_bytes, shown
from weft.model.tokenizers.bpe_files import VOCAB, convert_bpe_files, has_bpe_files
from weft.model.tokenizers.templates import (
    TEMPLATE,
    TOOL_TEMPLATE,
    TOOL_TEMPLATE_PATH,
    read_chat_template,
)
from weft.model.tokenizers.token_facts import (
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    complete,
    read_settings,
    token_text,
)
from weft.model.tokenizers.tokenizer_trial import try_out

TOKENIZER = "tokenizer.json"
_OTHER_FORMATS = {"tokenizer.model": "SentencePiece's", "tekken.json": "Mistral's own"}
FILE_NAMES = (
    TOKENIZER,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
    TEMPLATE,
    TOOL_TEMPLATE,
    "config.json",
    "generation_config.json",
)


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """Ids of the special tokens in the files, the chat template, and the tokenizer built from them."""

    eos_token_id: int | None
    bos_token_id: int | None
    pad_token_id: int | None
    chat_template: str | None
    parsed_tokenizer: Tokenizer | None


class UnreadFiles(Mapping[str, bytes]):
    """The existing files of `FILE_NAMES`, read at the first access: most engines never need their tokenizer.

    If vocab.json and merges.txt exist instead of a tokenizer.json, it is made from these two files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __getitem__(self, name: str) -> bytes:
        if name not in self:
            raise KeyError(name)
        path = self._path(name)
        if name == TOKENIZER and not path.exists():
            return convert_bpe_files(self._directory)
        return read_bytes(path)

    def __contains__(self, name: object) -> bool:
        if name not in FILE_NAMES:
            return False
        is_there = self._path(str(name)).exists()
        return is_there or (name == TOKENIZER and has_bpe_files(self._directory))

    def _path(self, name: str) -> Path:
        return self._directory / (TOOL_TEMPLATE_PATH if name == TOOL_TEMPLATE else name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in FILE_NAMES if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def read_tokenizer_files(directory: Path, *, is_own: bool = False) -> dict[str, bytes]:
    """Returns the contents of the tokenizer's files, after a test of the tokenizer, unless it is part of Weft's
    package.
    """
    files = dict(UnreadFiles(directory))
    if TOKENIZER not in files:
        others = [name for name in _OTHER_FORMATS if (directory / name).exists()]
        found = f"{others[0]} is {_OTHER_FORMATS[others[0]]}; " if others else ""
        raise ConfigError(
            f"{directory / TOKENIZER}: the file does not exist; {found}a fast tokenizer in that format is "
            "needed (transformers' AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY) writes it), "
            "or GPT-2's vocab.json and merges.txt"
        )
    if not is_own:
        made_of = TOKENIZER if (directory / TOKENIZER).exists() else VOCAB
        try_out(files[TOKENIZER], str(directory / made_of))
    return files


def read_tokenizer(files: Mapping[str, bytes], where: str, vocab_size: int) -> TokenizerFacts:
    """Returns the tokenizer and its facts; raises `ConfigError` unless it loads, fits `vocab_size` and its template
    parses.
    """
    tokenizer = _load(files[TOKENIZER], f"{where}/{TOKENIZER}")
    settings = read_settings(files, where)
    template = read_chat_template(files, where)
    ends = [token_text(settings.values.get(key)) for key in ("bos_token", "eos_token")]
    _check_size(
        tokenizer,
        f"{where}/{TOKENIZER}",
        vocab_size,
        is_needed=lambda token: token in ends or (template is not None and token in template),
    )
    complete(tokenizer, settings, vocab_size)
    return TokenizerFacts(
        eos_token_id=_special_id(tokenizer, settings, "eos_token"),
        bos_token_id=_special_id(tokenizer, settings, "bos_token"),
        pad_token_id=_special_id(tokenizer, settings, "pad_token"),
        chat_template=template,
        parsed_tokenizer=tokenizer,
    )


def _load(data: bytes, where: str) -> Tokenizer:
    try:
        with panics_as(ValueError):
            return Tokenizer.from_buffer(data)
    except Exception as err:  # the library has no narrower class for a bad file
        raise ConfigError(f"{where}: not a valid tokenizer ({one_line(err)})") from err


def _check_size(
    tokenizer: Tokenizer, where: str, vocab_size: int, *, is_needed: Callable[[str], bool]
) -> None:
    """Raises `ConfigError` unless the token ids are below `vocab_size`.

    Added tokens above it, such as `<pad>`, are allowed unless prompts need them.
    """
    num_tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    if num_tokens == 0:
        raise ConfigError(f"{where}: the vocabulary is empty")
    # The common case: all ids are below the number of tokens. Reading all names would take twice as long.
    if num_tokens <= vocab_size and all(map(tokenizer.id_to_token, range(num_tokens))):
        return
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    beyond = {
        t: i for t, i in vocab.items() if i >= vocab_size and (t not in added or is_needed(t))
    }
    if beyond:
        token = min(beyond, key=lambda t: beyond[t])
        raise ConfigError(
            f"{where}: token {shown(token)} has id {beyond[token]}; the model's vocab_size "
            f"({vocab_size}) allows ids up to {vocab_size - 1}"
        )


def _special_id(tokenizer: Tokenizer, config: Fields, key: str) -> int | None:
    value = token_text(config.values.get(key))
    return tokenizer.token_to_id(value) if isinstance(value, str) else None
