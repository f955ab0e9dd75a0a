"""`resolve_params`: the parameters that the engine gets, from those of a request and the length of its prompt."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from weft.core.checks.validate import LOGIT_BIAS_CLAMP, Limits
from weft.core.errors import BadRequest
from weft.core.values.params import NUMBERS, WIDE
from weft.core.values.types import OutputKind, SamplingParams

_log = logging.getLogger(__name__)

# Dividing logits by less than this makes their differences meaningless in float32.
MIN_TEMPERATURE = 0.01
# Prompt logprobs are computed, sent and written at once: this many take 20 to 40 ms.
MAX_PROMPT_SCORES = 2**18
_FIELD_NAMES = SamplingParams.__struct_fields__
_NUMBER_NAMES = tuple(number.name for number in NUMBERS)


def resolve_params(
    params: SamplingParams, num_prompt_tokens: int, limits: Limits
) -> SamplingParams:
    """Returns validated `params` in the one form that the engine uses.

    `max_tokens` is filled from, and clamped to, the space that the prompt leaves in the context and the model's own
    limit on answers; an answer that reaches this limit ends with "length". Greedy requests lose filters that have no
    effect, ids are de-duplicated, -1 and True are replaced by their meaning.
    """
    room = limits.max_sequence_len - num_prompt_tokens
    if limits.max_new_tokens is not None:
        room = min(room, limits.max_new_tokens)
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    if params.min_tokens > max_tokens:
        raise BadRequest(
            "min_tokens",
            f"min_tokens must be at most the {max_tokens} tokens that can follow a prompt of "
            f"{num_prompt_tokens}, got {params.min_tokens}",
            params.min_tokens,
        )
    resolved = _resolve_sampling(params, limits)
    for name, resolve in _RESOLVED_IF_GIVEN.items():
        value = getattr(params, name)
        if value is not None:
            resolved[name] = resolve(value, limits)
    if params.logprob_token_ids:
        resolved["logprobs"] = len(params.logprob_token_ids)
    prompt_logprobs = resolved.get("prompt_logprobs")
    if prompt_logprobs is not None:
        _check_scores(num_prompt_tokens, prompt_logprobs + 1, params.n)
        # A cached block has no logits, so a prompt that is to be scored is computed in full.
        resolved["skip_reading_prefix_cache"] = True
    return msgspec.structs.replace(
        _plain(params),
        **resolved,
        max_tokens=max_tokens,
        output_kind=OutputKind(params.output_kind),
    )


def _plain(params: SamplingParams) -> SamplingParams:
    """Returns the parameters without fields of a subclass, which engine processes would not be able to read."""
    if type(params) is SamplingParams:
        return params
    return SamplingParams(**{name: getattr(params, name) for name in _FIELD_NAMES})


def _resolve_sampling(params: SamplingParams, limits: Limits) -> dict[str, Any]:
    numbers: dict[str, Any] = {name: float(getattr(params, name)) for name in _NUMBER_NAMES}
    if params.is_greedy:
        return numbers | WIDE | {"temperature": 0.0}
    if params.temperature < MIN_TEMPERATURE:
        _log.warning("temperature %g raised to %g", params.temperature, MIN_TEMPERATURE)
        numbers["temperature"] = MIN_TEMPERATURE
    is_filter = 0 < params.top_k < limits.vocab_size
    return numbers | {"top_k": params.top_k if is_filter else 0}


def _check_scores(num_prompt_tokens: int, num_each: int, num_answers: int) -> None:
    num_scores = num_prompt_tokens * num_each * num_answers
    if num_scores > MAX_PROMPT_SCORES:
        raise BadRequest(
            "prompt_logprobs",
            f"prompt_logprobs: a request may have at most {MAX_PROMPT_SCORES} prompt logprobs, got "
            f"{num_prompt_tokens} tokens with {num_each} each for {num_answers} answers",
            num_scores,
        )


def _resolve_logprobs(value: int, limits: Limits) -> int | None:
    if value is False:
        return None
    return limits.vocab_size if value == -1 else min(int(value), limits.vocab_size)


def _resolve_bias(logit_bias: dict[int, float], _limits: Limits) -> dict[int, float] | None:
    clamped = {
        int(key): max(-LOGIT_BIAS_CLAMP, min(LOGIT_BIAS_CLAMP, float(value)))
        for key, value in logit_bias.items()
    }
    return clamped or None


def _unless_off(value: int, _limits: Limits) -> int | None:
    return None if value == -1 else value


def _unique(values: Sequence[Any], _limits: Limits) -> list[Any] | None:
    return list(dict.fromkeys(values)) or None


_RESOLVED_IF_GIVEN: Mapping[str, Callable[[Any, Limits], Any]] = {
    "seed": _unless_off,
    "thinking_token_budget": _unless_off,
    "stop": lambda stop, _limits: [stop] if isinstance(stop, str) else list(stop) or None,
    "stop_token_ids": _unique,
    "allowed_token_ids": _unique,
    "logit_bias": _resolve_bias,
    "bad_words": _unique,
    "logprobs": _resolve_logprobs,
    "prompt_logprobs": _resolve_logprobs,
    "extra_args": lambda given, _limits: given or None,
}
