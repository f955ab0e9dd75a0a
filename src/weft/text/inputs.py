"""From what a caller gave to a checked `Request`: tokenise, truncate, validate, resolve."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from weft.core.config import EngineConfig
from weft.core.errors import BadRequest, ContextLengthExceeded
from weft.core.types import PromptType, Request, SamplingParams, StreamingInput, TokensPrompt
from weft.core.validate import (
    Limits,
    resolve_params,
    validate_cache_salt,
    validate_params,
    validate_priority,
    validate_prompt,
    validate_request_id,
    validate_truncation,
)
from weft.text.tokenizer import Tokenizer

_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})
# The tokenizer takes about 1 µs a character, without the GIL.
LONG_TEXT = 10_000  # characters
_POOLING_KEYS = _PROMPT_KEYS | {"prompt_pair"}
_SIDES = ("left", "right")
# A normaliser may shorten text before it is cut into tokens, but not by more than this.
_SHRINKAGE = 4


@dataclass(frozen=True, slots=True)
class Given:
    """One of `text` and `token_ids` is what to run; beside `token_ids`, `text` is only a label."""

    text: str | None = None
    token_ids: list[int] | None = None
    cache_salt: str | None = None
    pair: str | None = None


@dataclass(frozen=True, slots=True)
class Tokenization:
    """How to tokenise and cut; `truncate_prompt_tokens` None is no cut, `side` where it is made."""

    add_special_tokens: bool
    truncate_prompt_tokens: int | None
    side: str | None


class Processor:
    """The `InputProcessor` of an engine with this config; safe to share between threads.

    `limits` are the config's own, unless somebody knows better.
    """

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer | None, *, limits: Limits | None = None
    ) -> None:
        self._limits = limits or Limits.of(config)
        self._eos_token_ids = config.model_config.eos_token_ids
        self._tokenizer = tokenizer
        self._rules_thoughts = config.structured_outputs_in_reasoning

    def process(
        self,
        prompt: PromptType,
        params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
    ) -> Request:
        """Tokenise, truncate and validate. Parameters are checked before the prompt is looked at.

        A truncated prompt loses its start, unless the tokenizer or `truncation_side` says otherwise;
        so does one that is given as token ids.
        """
        validate_request_id(request_id)
        validate_priority(priority)
        validate_params(params, self._limits)
        kwargs = tokenization_kwargs or {}
        how = read_tokenization(kwargs, params.truncate_prompt_tokens, self._limits)
        given = _read_prompt(prompt, _PROMPT_KEYS)
        validate_cache_salt(given.cache_salt)
        if params.stop_strings and self._tokenizer is None:
            raise BadRequest("stop", "stop strings need a tokenizer, and this model has none")
        side = how.side or ("left" if self._tokenizer is None else self._tokenizer.truncation_side)
        token_ids = _truncated(self._token_ids(given, how, side), how, side, self._limits)
        validate_prompt(token_ids, self._limits)
        resolved = resolve_params(params, len(token_ids), self._limits)
        if self._rules_thoughts:
            resolved = msgspec.structs.replace(resolved, grammar_from_first_token=True)
        return Request(
            request_id=request_id,
            engine_id=f"{request_id}-{secrets.token_hex(4)}",
            prompt_token_ids=token_ids,
            params=resolved,
            eos_token_ids=self._eos_token_ids,
            # Drawn here, once, so that a request that is computed again draws the same tokens.
            seed=secrets.randbits(63) if resolved.seed is None else resolved.seed,
            arrival_time=time.monotonic(),
            prompt=given.text if prompt_text is None else prompt_text,
            priority=priority,
            cache_salt=given.cache_salt,
            bad_token_ids=self._bad_token_ids(resolved.bad_words or ()),
        )

    async def process_soon(
        self, prompt: PromptType, params: SamplingParams, request_id: str, **options: Any
    ) -> Request:
        """`process`, for an event loop's thread: a long text does not hold it."""
        return await soon(prompt, partial(self.process, prompt, params, request_id, **options))

    async def process_piece(
        self, piece: StreamingInput, before: list[int], request_id: str, **options: Any
    ) -> Request:
        """The request that a piece of streaming input makes behind the tokens before it."""
        params = piece.sampling_params
        assert params is not None, "the session has filled it in"
        if not before:
            return await self.process_soon(piece.prompt, params, request_id, **options)
        kwargs = {**(options["tokenization_kwargs"] or {}), "add_special_tokens": False}
        options = {**options, "tokenization_kwargs": kwargs}
        request = await self.process_soon(piece.prompt, params, request_id, **options)
        whole: TokensPrompt = {"prompt_token_ids": [*before, *request.prompt_token_ids]}
        if request.prompt is not None:
            whole["prompt"] = request.prompt
        if request.cache_salt is not None:
            whole["cache_salt"] = request.cache_salt
        return self.process(whole, params, request_id, priority=request.priority)

    def _bad_token_ids(self, bad_words: Sequence[str]) -> list[list[int]]:
        """The tokens of each word, as it stands at the start of a text and after a space."""
        if not bad_words:
            return []
        if self._tokenizer is None:
            raise BadRequest("bad_words", "bad_words need a tokenizer, and this model has none")
        spellings = [text for word in bad_words for text in (word.lstrip(), f" {word.lstrip()}")]
        encoded = [self._tokenizer.encode(text, add_special_tokens=False) for text in spellings]
        return [list(ids) for ids in dict.fromkeys(map(tuple, encoded)) if ids]

    def _token_ids(self, given: Given, how: Tokenization, side: str) -> list[int]:
        if given.token_ids is not None:
            return given.token_ids
        text = given.text or ""
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise BadRequest(
                "prompt", "this model has no tokenizer; give the prompt as prompt_token_ids"
            )
        if how.truncate_prompt_tokens is not None:
            text = trimmed(text, side, tokenizer, self._limits)
        else:
            check_length(len(text), tokenizer, self._limits)
        return tokenizer.encode(text, add_special_tokens=how.add_special_tokens)


async def soon(prompt: PromptType, process: Callable[[], Request]) -> Request:
    """The request that `process` makes of the prompt: of a long text on a thread, else at once."""
    if len(text_of(prompt)) <= LONG_TEXT:
        return process()
    return await asyncio.to_thread(process)


def text_of(prompt: object) -> str:
    """The text that a prompt consists of, to judge its length by; "" for token ids."""
    if isinstance(prompt, dict):
        texts = (prompt.get("prompt"), prompt.get("prompt_pair"))
        return "".join(text for text in texts if isinstance(text, str))
    return prompt if isinstance(prompt, str) else ""


def read_tokenization(
    kwargs: Mapping[str, Any], num_kept_by_params: int | None, limits: Limits
) -> Tokenization:
    """What the caller says of tokenising, in `tokenization_kwargs` and in the parameters."""
    rest = dict(kwargs)
    add_special_tokens = rest.pop("add_special_tokens", True)
    side = rest.pop("truncation_side", None)
    num_kept = rest.pop("truncate_prompt_tokens", None)
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
    validate_truncation(num_kept, limits)
    if None not in (num_kept, num_kept_by_params):
        _check_same(num_kept, num_kept_by_params)
    if num_kept is None:
        num_kept = num_kept_by_params
    return Tokenization(add_special_tokens, num_kept, side)


def check_length(num_chars: int, tokenizer: Tokenizer, limits: Limits) -> None:
    """Refuse a text that cannot fit before time is spent on cutting it into tokens."""
    if num_chars > _most_chars(tokenizer, limits):
        raise ContextLengthExceeded(
            "prompt",
            f"this model's maximum context length is {limits.max_model_len} tokens, and "
            f"the prompt has {num_chars} characters, which cannot fit",
            num_chars,
        )


def trimmed(text: str, side: str, tokenizer: Tokenizer, limits: Limits) -> str:
    """The part of a text that is to be cut to the context in which its kept tokens lie."""
    # What lies so far from the kept end has no part in its tokens, and would cost time.
    most_chars = _most_chars(tokenizer, limits)
    return text[-most_chars:] if side == "left" else text[:most_chars]


def _most_chars(tokenizer: Tokenizer, limits: Limits) -> int:
    return limits.max_model_len * tokenizer.max_token_chars * _SHRINKAGE


def read_given(prompt: object) -> Given:
    """A prompt of `encode`, which may be two texts."""
    return _read_prompt(prompt, _POOLING_KEYS)


def _read_prompt(prompt: object, allowed: frozenset[str]) -> Given:
    match prompt:
        case str():
            return Given(text=prompt)
        case list() | tuple():
            return Given(token_ids=_as_ids(prompt))
        case dict():
            return _read_prompt_dict(prompt, allowed)
    raise BadRequest(
        "prompt",
        "the prompt must be text, a list of token ids, or a dict with prompt or prompt_token_ids, "
        f"got a value of type {type(prompt).__name__}",
    )


def _read_prompt_dict(prompt: dict[Any, Any], allowed: frozenset[str]) -> Given:
    unknown = [str(key) for key in prompt if key not in allowed]
    if unknown:
        raise BadRequest(
            "prompt", f"unknown prompt keys {unknown[:5]}; allowed are {sorted(allowed)}"
        )
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is not None and not isinstance(text, str):
        raise BadRequest(
            "prompt", f"prompt must be text, got a value of type {type(text).__name__}"
        )
    if text is None and token_ids is None:
        raise BadRequest("prompt", "the prompt has neither prompt nor prompt_token_ids")
    return Given(
        text=text,
        token_ids=None if token_ids is None else _as_ids(token_ids),
        cache_salt=prompt.get("cache_salt"),
        pair=_read_pair(prompt),
    )


def _read_pair(prompt: dict[Any, Any]) -> str | None:
    pair = prompt.get("prompt_pair")
    if pair is None:
        return None
    if not isinstance(pair, str):
        raise BadRequest(
            "prompt_pair", f"prompt_pair must be text, got a value of type {type(pair).__name__}"
        )
    if not isinstance(prompt.get("prompt"), str) or prompt.get("prompt_token_ids") is not None:
        raise BadRequest("prompt_pair", "prompt_pair goes with a prompt that is text")
    return pair


def _as_ids(token_ids: object) -> list[int]:
    if not isinstance(token_ids, list | tuple):
        raise BadRequest(
            "prompt_token_ids",
            "prompt_token_ids must be a list of integers, "
            f"got a value of type {type(token_ids).__name__}",
        )
    return list(token_ids)


def _truncated(token_ids: list[int], how: Tokenization, side: str, limits: Limits) -> list[int]:
    num_kept = how.truncate_prompt_tokens
    if num_kept is None:
        return token_ids
    if num_kept == -1:
        num_kept = limits.max_model_len - 1
    return token_ids[-num_kept:] if side == "left" else token_ids[:num_kept]


def _check_same(from_kwargs: int, from_params: int | None) -> None:
    if from_kwargs != from_params:
        raise BadRequest(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens is {from_kwargs} in tokenization_kwargs and {from_params} in "
            "sampling_params; give it once",
        )
