"""Facts about tokens from several files of a checkpoint, merged as transformers 5 merges them.

Only tokenizer.json decides which special tokens surround a text. tokenizer_config.json may list added tokens that
tokenizer.json lacks; if it lists none, special_tokens_map.json takes precedence over it.
"""

from collections.abc import Iterator, Mapping

from tokenizers import AddedToken, Tokenizer

from weft.core.errors import ConfigError
from weft.core.panics import panics_as
from weft.model.fields import Fields, parse_object, shown
from weft.model.tokenizers.tokenizer_worker import MAX_TOKEN_CHARS

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
NAMED_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token"),
    "mask_token",
)
_LISTED = "added_tokens_decoder"
_OTHERS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_settings(files: Mapping[str, bytes], where: str = "") -> Fields:
    """Returns the merged settings of a tokenizer; `where` begins the file names in errors."""
    config = _read(files, TOKENIZER_CONFIG, where)
    if config.has(_LISTED):
        return config
    values = {**config.values, **_read(files, SPECIAL_TOKENS, where).values}
    return Fields(values, config.where)


def complete(tokenizer: Tokenizer, settings: Fields, vocab_size: int | None = None) -> None:
    """Adds the tokens to `tokenizer` that only `settings` list, and marks the tokens that `settings` call special.

    A token that would get another id than the listed one, or an id beyond the model's vocabulary, stays plain text.
    """
    added = tokenizer.get_added_tokens_decoder()
    # The id that the library will give to a new token.
    next_id = max(tokenizer.get_vocab_size(with_added_tokens=False), max(added, default=-1) + 1)
    changed: dict[str, AddedToken] = {}
    for listed_id, token in _listed_tokens(settings):
        token_id = tokenizer.token_to_id(token.content)
        if token_id is None and listed_id == next_id and next_id < (vocab_size or listed_id + 1):
            token_id, next_id = next_id, next_id + 1
        if token_id == listed_id and repr(token) != repr(added.get(token_id)):
            changed[token.content] = token
    known = {token.content: token for token in added.values()} | changed
    for content in named_tokens(settings):
        token = known.get(content, AddedToken(content, special=False, normalized=False))
        is_there = content in changed or tokenizer.token_to_id(content) is not None
        if is_there and not token.special:
            changed[content] = _made_special(token)
    with panics_as(ConfigError):
        tokenizer.add_tokens(list(changed.values()))


def token_text(value: object) -> object:
    """Returns the text of a token that is given as a text, or as an object with flags."""
    return value.get("content") if isinstance(value, dict) else value


def named_tokens(settings: Fields) -> Iterator[str]:
    """Yields the texts of tokens that have a role, such as bos_token."""
    values = [settings.values.get(key) for key in NAMED_TOKENS]
    for key in _OTHERS:
        others = settings.values.get(key)
        values += others if isinstance(others, list) else []
        values += list(others.values()) if isinstance(others, dict) else []
    yield from (text for value in values if isinstance(text := token_text(value), str) and text)


def _read(files: Mapping[str, bytes], name: str, where: str) -> Fields:
    path = f"{where}/{name}" if where else name
    data = files.get(name)
    return Fields({} if data is None else parse_object(data, path), path)


def _listed_tokens(settings: Fields) -> list[tuple[int, AddedToken]]:
    """Returns the listed tokens, sorted by id."""
    listed = settings.object(_LISTED) or Fields({}, settings.where)
    for text in listed.values:
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise ConfigError(f"{listed.where} has {shown(text)}; it must be the id of a token")
    return sorted(
        ((int(text), _added_token(listed, text)) for text in listed.values),
        key=lambda pair: pair[0],
    )


def _added_token(listed: Fields, text: str) -> AddedToken:
    entry = listed.object(text) or Fields({}, f"{listed.where}: {text}")
    content = entry.text("content")
    if len(content) > MAX_TOKEN_CHARS:
        raise ConfigError(
            f"{entry.where}: content has {len(content)} characters; {MAX_TOKEN_CHARS} are allowed"
        )
    flags = {name: entry.flag_or(name, False) for name in _FLAGS}
    if not entry.has("normalized"):
        flags["normalized"] = not flags["special"]
    return AddedToken(content, **flags)


def _made_special(token: AddedToken) -> AddedToken:
    flags = {name: getattr(token, name) for name in _FLAGS}
    return AddedToken(token.content, **flags | {"special": True})
