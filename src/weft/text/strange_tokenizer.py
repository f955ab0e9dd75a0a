"""A tokenizer from files that nobody has looked at: a remote server's, or those of a directory."""

from collections.abc import Mapping

from weft.model.tokenizer_trial import try_out
from weft.text.tokenizer import TOKENIZER_FILE, Tokenizer


def open_tokenizer(files: Mapping[str, bytes], where: str) -> Tokenizer:
    """The tokenizer of `files`, once it was tried out; `ConfigError` if it cannot be used."""
    if TOKENIZER_FILE in files:
        try_out(files[TOKENIZER_FILE], f"{where}/{TOKENIZER_FILE}")
    return Tokenizer.from_files(files)
