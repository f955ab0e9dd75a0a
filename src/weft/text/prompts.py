"""Converts a prompt of any form to token ids; only this module knows all kinds of prompt parts.

`read_prompt` converts a caller's prompt, such as a dict in vLLM's form, to a `Prompt` of parts. `size_of` measures the
work, and `check_length` checks the limits. The prefix cache hashes the resulting tokens, and the usage counts them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from weft.core.checks.validate import Limits, validate_truncation
from weft.core.errors import BadRequest, ContextLengthExceeded
from weft.core.values.prompts import (
    EmbeddedTokens,
    EmbedsPart,
    Part,
    Prompt,
    PromptType,
    TextPart,
    TokensPart,
)
from weft.core.values.unicode import check_text
from weft.text.media_data import DATA, KWARGS, UUIDS, read_media
from weft.text.prompt_embeds import check_part, check_together, read_array
from weft.text.tokenizer import Tokenizer

_SIDES = ("left", "right")
_USUAL_KWARGS = {"add_special_tokens"}
_KEYS = frozenset(
    {"prompt", "prompt_token_ids", "prompt_embeds", "cache_salt", DATA, UUIDS, KWARGS}
)
# Maximum factor by which a normalizer shortens text before it is split into tokens.
_SHRINKAGE = 4
# Stands for the prompt's own tokens while the special tokens around them are counted.
_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Kind:
    """Handling of parts of one kind: the characters and ids to process, and their tokens."""

    size: Callable[[Any], tuple[int, int]]
    encode: Callable[[Any, Any], list[int]]  # arguments: a part, and the tokenizer for texts


def _encode_text(part: TextPart, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(part.text, add_special_tokens=False)


KINDS: Mapping[type[Part], Kind] = {
    TextPart: Kind(lambda part: (len(part.text), 0), _encode_text),
    TokensPart: Kind(lambda part: (0, len(part.token_ids)), lambda part, _: part.token_ids),
    # Hashing 32 bytes takes as long as checking a token id.
    EmbedsPart: Kind(lambda part: (0, len(part.rows) // 32), lambda part, _: [0] * part.num_tokens),
}
# Kinds of inputs that no model here supports, by their keys in vLLM's prompts.
REFUSED: Mapping[str, str] = {
    "encoder_prompt": "no model has an encoder beside its decoder",
    "decoder_prompt": "no model has an encoder beside its decoder",
}


@dataclass(frozen=True, slots=True)
class Tokenization:
    """Options of tokenization and truncation; `truncate_prompt_tokens` None truncates nothing, `side` is the
    truncated side.
    """

    add_special_tokens: bool
    truncate_prompt_tokens: int | None
    side: str | None


# -- reading ----------------------------------------------------------------------------------


def read_prompt(given: PromptType) -> Prompt:
    """Converts a caller's prompt to parts; raises `BadRequest` for an invalid prompt."""
    match given:
        case Prompt():
            return _checked(given)
        case str():
            return Prompt(parts=(TextPart(given),))
        case list() | tuple():
            return Prompt(parts=(TokensPart(list(given)),))
        case dict():
            return _read_dict(given)
    raise BadRequest(
        "prompt",
        "the prompt must be text, a list of token ids, or a dict with prompt, prompt_token_ids or "
        f"prompt_embeds, got a value of type {type(given).__name__}",
    )


def _read_dict(given: Mapping[Any, Any]) -> Prompt:
    """Reads a dict; the text beside token ids or embeddings is only a label."""
    for key, reason in REFUSED.items():
        if given.get(key) is not None:
            raise BadRequest("prompt", f"{key} is not supported: {reason}")
    unknown = [str(key) for key in given if key not in _KEYS and key != "prompt_pair"]
    if unknown:
        raise BadRequest(
            "prompt", f"unknown prompt keys {unknown[:5]}; allowed are {sorted(_KEYS)}"
        )
    text, token_ids = _text_of(given, "prompt"), given.get("prompt_token_ids")
    embeds = given.get("prompt_embeds")
    pair = _text_of(given, "prompt_pair")
    if embeds is not None and token_ids is not None:
        raise BadRequest("prompt_embeds", "prompt_embeds and prompt_token_ids exclude each other")
    if pair is not None and (text is None or token_ids is not None or embeds is not None):
        raise BadRequest("prompt_pair", "prompt_pair goes with a prompt that is text")
    if text is not None and (token_ids is not None or embeds is not None):
        check_text("prompt", text)  # this text is not tokenized, so it is checked here
    if embeds is not None:
        part: Part = read_array(embeds)
    elif token_ids is not None:
        part = TokensPart(_ids_of(token_ids))
    elif text is not None:
        part = TextPart(text)
    else:
        raise BadRequest(
            "prompt", "the prompt has neither prompt nor prompt_token_ids nor prompt_embeds"
        )
    return Prompt(
        parts=(part,),
        second=None if pair is None else TextPart(pair),
        label=text,
        cache_salt=given.get("cache_salt"),
        media=read_media(given),
    )


def _checked(given: Prompt) -> Prompt:
    for part in given.parts:
        if type(part) not in KINDS:
            raise BadRequest("prompt", f"a prompt has no parts of type {type(part).__name__}")
        if isinstance(part, TextPart):
            _text_of({"text": part.text}, "text")
        elif isinstance(part, TokensPart):
            _ids_of(part.token_ids)
    if given.label is not None:
        check_text("prompt", given.label)
    return given


def _text_of(given: Mapping[Any, Any], key: str) -> str | None:
    text = given.get(key)
    if text is None or isinstance(text, str):
        return text
    raise BadRequest(key, f"{key} must be text, got a value of type {type(text).__name__}")


def _ids_of(token_ids: object) -> list[int]:
    if not isinstance(token_ids, list | tuple):
        raise BadRequest(
            "prompt_token_ids",
            "prompt_token_ids must be a list of integers, "
            f"got a value of type {type(token_ids).__name__}",
        )
    return list(token_ids)


def label_of(prompt: Prompt) -> str | None:
    """The text of a prompt that outputs repeat; None without one."""
    match prompt.parts:
        case (TextPart(text=text),) if prompt.label is None:
            return text
    return prompt.label


def size_of(prompt: Prompt) -> tuple[int, int]:
    """Number of characters and of token ids to process."""
    parts = prompt.parts if prompt.second is None else (*prompt.parts, prompt.second)
    num_chars = num_ids = 0
    for part in parts:
        chars, ids = KINDS[type(part)].size(part)
        num_chars, num_ids = num_chars + chars, num_ids + ids
    return num_chars, num_ids


def read_tokenization(
    kwargs: Mapping[str, Any], num_by_params: int | None, limits: Limits
) -> Tokenization:
    """Reads the caller's tokenization options, from `tokenization_kwargs` and from the parameters."""
    if not kwargs:
        return Tokenization(True, num_by_params, None)
    if kwargs.keys() == _USUAL_KWARGS and type(kwargs["add_special_tokens"]) is bool:
        return Tokenization(kwargs["add_special_tokens"], num_by_params, None)
    rest = dict(kwargs)
    add_special_tokens = rest.pop("add_special_tokens", True)
    side = rest.pop("truncation_side", None)
    num_left = rest.pop("truncate_prompt_tokens", None)
    if rest:
        raise BadRequest(
            "tokenization_kwargs",
            f"unknown tokenization_kwargs {sorted(map(str, rest))[:5]}; allowed are "
            "add_special_tokens, truncate_prompt_tokens and truncation_side",
        )
    if not isinstance(add_special_tokens, bool):
        raise BadRequest("add_special_tokens", "add_special_tokens must be true or false")
    if side is not None and side not in _SIDES:
        raise BadRequest("truncation_side", 'truncation_side must be "left" or "right"')
    if num_left is not None:
        validate_truncation(num_left, limits)
    if None not in (num_left, num_by_params) and num_left != num_by_params:
        raise BadRequest(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens is {num_left} in tokenization_kwargs and {num_by_params} "
            "in sampling_params; give it once",
        )
    if num_left is None:
        num_left = num_by_params
    return Tokenization(add_special_tokens, num_left, side)


# -- tokens -----------------------------------------------------------------------------------


def encode_prompt(
    prompt: Prompt, how: Tokenization, tokenizer: Tokenizer | None, limits: Limits
) -> tuple[list[int], list[EmbeddedTokens]]:
    """The tokens of all parts of a prompt, truncated as requested, and those parts that are embeddings."""
    if prompt.second is not None:
        raise BadRequest(
            "prompt_pair", "prompt_pair is for encode, which scores two texts together"
        )
    side = how.side or ("left" if tokenizer is None else tokenizer.truncation_side)
    embeds: list[EmbeddedTokens] = []
    match prompt.parts:
        case (TextPart(text=text),) if tokenizer is not None:
            if how.truncate_prompt_tokens is None:
                check_length(len(text), tokenizer, limits)
            else:
                text = fitting(text, how, side, tokenizer, limits)
            token_ids = tokenizer.encode(text, add_special_tokens=how.add_special_tokens)
        case (TokensPart(token_ids=token_ids),):
            pass
        case parts if tokenizer is None and any(isinstance(part, TextPart) for part in parts):
            raise no_tokenizer()
        case parts:
            token_ids, embeds = _joined(prompt, how, tokenizer, limits)
    if how.truncate_prompt_tokens is None:
        return token_ids, embeds
    if embeds:
        raise BadRequest(
            "truncate_prompt_tokens", "truncate_prompt_tokens does not go with prompt_embeds"
        )
    return truncated(token_ids, how.truncate_prompt_tokens, side, limits.max_model_len - 1), embeds


def _joined(
    prompt: Prompt, how: Tokenization, tokenizer: Tokenizer | None, limits: Limits
) -> tuple[list[int], list[EmbeddedTokens]]:
    """Tokens of parts of several kinds, or of embeddings alone; the tokenizer is needed only for texts."""
    token_ids: list[int] = []
    embeds: list[EmbeddedTokens] = []
    if tokenizer is not None:
        check_length(size_of(prompt)[0], tokenizer, limits)
    for part in prompt.parts:
        if isinstance(part, EmbedsPart):
            check_part(part, limits)
            embeds.append(
                EmbeddedTokens(start=len(token_ids), num_tokens=part.num_tokens, rows=part.rows)
            )
        token_ids += KINDS[type(part)].encode(part, tokenizer)
    check_together(embeds)
    has_text = any(isinstance(part, TextPart) for part in prompt.parts)
    if tokenizer is None or not (how.add_special_tokens and has_text):
        return token_ids, embeds
    num_before = tokenizer.with_special_tokens([_NO_TOKEN]).index(_NO_TOKEN)
    moved = [replace(one, start=one.start + num_before) for one in embeds]
    return tokenizer.with_special_tokens(token_ids), moved


def truncated(token_ids: list[int], num_left: int | None, side: str, most: int) -> list[int]:
    """The ids after truncation: None truncates nothing, -1 keeps as many as allowed."""
    if num_left is None:
        return token_ids
    if num_left == -1:
        num_left = most
    return token_ids[-num_left:] if side == "left" else token_ids[:num_left]


def fitting(text: str, how: Tokenization, side: str, tokenizer: Tokenizer, limits: Limits) -> str:
    """The text, or the part of it that contains all tokens left after truncation."""
    if how.truncate_prompt_tokens is not None:
        # Text so far from the side that is kept cannot affect the kept tokens, and would only cost time.
        most_chars = _most_chars(tokenizer, limits)
        text = text[-most_chars:] if side == "left" else text[:most_chars]
    check_length(len(text), tokenizer, limits)
    return text


def check_length(num_chars: int, tokenizer: Tokenizer, limits: Limits) -> None:
    """Refuses a text that cannot fit, before it is tokenized."""
    most_chars = min(_most_chars(tokenizer, limits), limits.max_text_chars)
    if num_chars > most_chars:
        raise ContextLengthExceeded(
            "prompt",
            f"this model's maximum context length is {limits.max_model_len} tokens, and the prompt has "
            f"{num_chars} characters, of which at most {most_chars} are taken",
            num_chars,
        )


def no_tokenizer() -> BadRequest:
    """The error for text without a tokenizer."""
    return BadRequest("prompt", "this model has no tokenizer; give the prompt as prompt_token_ids")


def _most_chars(tokenizer: Tokenizer, limits: Limits) -> int:
    """Returns the maximum number of characters of a text that can fit the context."""
    return limits.max_model_len * tokenizer.max_token_chars * _SHRINKAGE
