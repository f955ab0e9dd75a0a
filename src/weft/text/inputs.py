"""From a prompt and sampling parameters to a checked `Request`: tokenise, truncate, validate, resolve."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.config import EngineConfig
from weft.core.errors import BadRequest, ContextLengthExceeded, Unsupported
from weft.core.types import PromptType, Request, RequestOptions, SamplingParams
from weft.core.validate import (
    Limits,
    resolve_params,
    validate_cache_salt,
    validate_params,
    validate_prompt,
    validate_truncation,
)
from weft.text.reasoning import read_reasoning
from weft.text.tokenizer import Tokenizer

_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})
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


class SamplingInputs:
    """Makes the requests of `generate` for an engine with this config; safe to share between threads."""

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer | None, *, limits: Limits
    ) -> None:
        self._limits = limits
        self._eos_token_ids = config.model_config.eos_token_ids
        self._tokenizer = tokenizer
        self._pooler = config.pooler_config
        self._rules_reasoning = config.structured_outputs_in_reasoning

    def check(self, params: SamplingParams) -> None:
        """Refuse parameters before the prompt is looked at."""
        if self._pooler is not None:
            raise Unsupported("generate is not supported by this model: it was opened for pooling")
        validate_params(params, self._limits)

    def read(
        self, prompt: PromptType, params: SamplingParams, options: RequestOptions, arrived_at: float
    ) -> Request:
        """The request that checked parameters and this prompt make.

        A truncated prompt loses its start, unless the tokenizer or `truncation_side` says otherwise;
        so does one that is given as token ids.
        """
        kwargs = options.tokenization_kwargs or {}
        how = read_tokenization(kwargs, params.truncate_prompt_tokens, self._limits)
        given = _read_prompt(prompt, _PROMPT_KEYS)
        validate_cache_salt(given.cache_salt)
        if params.stop_strings and self._tokenizer is None:
            raise BadRequest("stop", "stop strings need a tokenizer, and this model has none")
        side = how.side or ("left" if self._tokenizer is None else self._tokenizer.truncation_side)
        token_ids = _truncated(self._token_ids(given, how, side), how, side, self._limits)
        validate_prompt(token_ids, self._limits)
        resolved = resolve_params(params, len(token_ids), self._limits)
        if self._rules_reasoning:
            resolved = msgspec.structs.replace(resolved, grammar_from_first_token=True)
        return Request(
            request_id=options.request_id,
            engine_id=new_engine_id(options.request_id),
            prompt_token_ids=token_ids,
            params=resolved,
            eos_token_ids=self._eos_token_ids,
            # Drawn here, once, so that a request that is computed again draws the same tokens.
            seed=secrets.randbits(63) if resolved.seed is None else resolved.seed,
            arrival_time=arrived_at,
            prompt=given.text if options.prompt_text is None else options.prompt_text,
            priority=options.priority,
            cache_salt=given.cache_salt,
            data_parallel_rank=options.data_parallel_rank,
            trace_headers=options.trace_headers,
            lora_request=options.lora_request,
            bad_token_ids=self._bad_token_ids(resolved.bad_words or ()),
            reasoning=read_reasoning(
                resolved,
                options.reasoning_ended,
                options.reasoning_parser_kwargs,
                token_ids,
                self._tokenizer,
            ),
        )

    def _bad_token_ids(self, bad_words: Sequence[str]) -> list[list[int]]:
        """The tokens of each word as it stands at the start of a text, and where it differs, after a space.

        As vLLM has it, so that answers are the same: the second spelling counts only if it begins with
        another token and has as many.
        """
        if not bad_words:
            return []
        if self._tokenizer is None:
            raise BadRequest("bad_words", "bad_words need a tokenizer, and this model has none")
        found: list[list[int]] = []
        for word in map(str.lstrip, bad_words):
            first, after_space = (
                self._tokenizer.encode(text, add_special_tokens=False)
                for text in (word, f" {word}")
            )
            found.append(first)
            if first[:1] != after_space[:1] and len(first) == len(after_space):
                found.append(after_space)
        return [list(ids) for ids in dict.fromkeys(map(tuple, found)) if ids]

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


def new_engine_id(request_id: str) -> str:
    """What the engine knows a request by: no two share it, though callers may use an id again."""
    return f"{request_id}-{secrets.token_hex(4)}"


def size_of(prompt: object) -> tuple[int, int]:
    """Characters and token ids that there are to work through."""
    fields = prompt if isinstance(prompt, dict) else {"prompt": prompt}
    ids = fields.get("prompt_token_ids")
    if ids is not None:
        return 0, len(ids) if isinstance(ids, list | tuple) else 0
    texts = (fields.get("prompt"), fields.get("prompt_pair"))
    num_ids = len(texts[0]) if isinstance(texts[0], list | tuple) else 0
    return sum(len(text) for text in texts if isinstance(text, str)), num_ids


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
    most_chars = min(_most_chars(tokenizer, limits), limits.max_text_chars)
    if num_chars > most_chars:
        raise ContextLengthExceeded(
            "prompt",
            f"this model's maximum context length is {limits.max_model_len} tokens, and the prompt has "
            f"{num_chars} characters, of which at most {most_chars} are taken",
            num_chars,
        )


def trimmed(text: str, side: str, tokenizer: Tokenizer, limits: Limits) -> str:
    """The part of a text that is to be cut to the context in which its kept tokens lie."""
    # What lies so far from the kept end has no part in its tokens, and would cost time.
    most_chars = _most_chars(tokenizer, limits)
    part = text[-most_chars:] if side == "left" else text[:most_chars]
    check_length(len(part), tokenizer, limits)
    return part


def _most_chars(tokenizer: Tokenizer, limits: Limits) -> int:
    """More than these never fit the context."""
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
