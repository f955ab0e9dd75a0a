"""Checks of requests, shared by all APIs, so that every API accepts the same requests.

`validate_params` needs no prompt, `validate_prompt` no parameters, `resolve_params` (in its own module) both. All
raise a `BadRequest` with the field's name, the given value and the allowed values.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from weft.core.checks.scalars import check_integer, check_label, check_number, shown
from weft.core.checks.structured import validate_structured_outputs
from weft.core.config.engine import EngineConfig
from weft.core.errors import BadRequest, ContextLengthExceeded, Key
from weft.core.values.declare import INT32_MAX
from weft.core.values.kv_transfer import KvRole, check_extra_args
from weft.core.values.params import BOOLEANS, INTEGERS, NUMBERS
from weft.core.values.types import OutputKind, RepetitionDetectionParams, SamplingParams
from weft.core.values.unicode import encode_text

# Each of the n answers holds a scheduler slot and its own KV, so n is a multiplier on one caller's load.
MAX_N = 128
# Every piece of text is searched for each stop string, and up to this much text may be held back while streaming.
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1024
# The bias is applied at every step of the sequence, entry by entry.
MAX_LOGIT_BIAS = 1024
LOGIT_BIAS_CLAMP = 100.0
# Every step checks each bad word, in two spellings.
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_LOGPROB_TOKEN_IDS = 255
# Ordinary text has three to ten. Tokenizing takes 200 bytes per character: only short texts may have more.
MAX_CHARS_PER_TOKEN = 16
MAX_SHORT_TEXT_CHARS = 2**18
MAX_PATTERN_SIZE = 1024  # for every token, up to this many earlier positions are compared


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one engine. `vocab_size` is the width of the logits; `max_logprobs` -1 means the whole vocabulary."""

    vocab_size: int
    max_model_len: int
    max_pool_tokens: int
    max_logprobs: int = 20
    max_n: int = MAX_N
    max_stop_strings: int = MAX_STOP_STRINGS
    max_stop_chars: int = MAX_STOP_CHARS
    max_logit_bias: int = MAX_LOGIT_BIAS
    kv_role: KvRole | None = None  # None: no KV transfer
    has_foreign_transfers: bool = False  # another process checks the transfer parameters
    max_new_tokens: int | None = None  # per answer; None: limited by the context length only
    prompt_embeds_size: int | None = None  # per row; None: embeddings are refused
    # Maximum number of prompt and output tokens of a sequence: the context length, or the whole KV pool.
    max_sequence_len: int = field(init=False)
    # Maximum number of characters of a text that is tokenized, even if truncation would shorten it.
    max_text_chars: int = field(init=False)

    def __post_init__(self) -> None:
        set_once = partial(object.__setattr__, self)
        set_once("max_sequence_len", min(self.max_model_len, self.max_pool_tokens))
        most_chars = max(MAX_SHORT_TEXT_CHARS, MAX_CHARS_PER_TOKEN * self.max_model_len)
        set_once("max_text_chars", most_chars)

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """Returns the limits of an engine with this config."""
        return cls(
            vocab_size=config.model_config.vocab_size,
            max_model_len=config.model_config.max_model_len,
            max_pool_tokens=config.cache_config.max_total_tokens,
            max_logprobs=config.model_config.max_logprobs,
            kv_role=config.kv_transfer_config.role if config.kv_transfer_config else None,
            max_new_tokens=config.model_config.max_new_tokens,
            prompt_embeds_size=config.prompt_embeds_size,
        )


def validate_params(params: SamplingParams, limits: Limits) -> None:
    """Raises `BadRequest` for parameters that are invalid whatever the prompt is."""
    if not isinstance(params, SamplingParams):
        raise BadRequest("sampling_params", f"must be SamplingParams, got {shown(params)}")
    _check_types(params)
    _check_ranges(params, limits)
    for name, check in _IF_GIVEN.items():
        value = getattr(params, name)
        if value is not None:
            check(name, value, params, limits)


def validate_prompt(token_ids: Sequence[int], limits: Limits, *, num_new: int = 1) -> None:
    """Raises `BadRequest` for a prompt that is empty, too long, or has ids outside the vocabulary.

    `num_new` is the number of tokens that must fit behind the prompt: 1, or 0 if the request generates no tokens.
    """
    check_prompt_length(len(token_ids), limits, num_new=num_new)
    _check_token_ids("prompt_token_ids", token_ids, limits)


def check_prompt_length(num_tokens: int, limits: Limits, *, num_new: int = 1) -> None:
    """Raises `BadRequest` if a prompt has too few or too many tokens; called before millions of tokens are copied."""
    room = "; prompt plus at least 1 output token must fit" if num_new else ""
    if num_tokens == 0:
        raise BadRequest("prompt", "the prompt is empty; at least one token is needed")
    if num_tokens + num_new > limits.max_model_len:
        raise ContextLengthExceeded(
            "prompt",
            f"this model's maximum context length is {limits.max_model_len} tokens, and the prompt "
            f"has {num_tokens}{room}",
            num_tokens,
        )
    if num_tokens + num_new > limits.max_pool_tokens:
        raise ContextLengthExceeded(
            "prompt",
            f"the prompt has {num_tokens} tokens, and the whole KV cache holds "
            f"{limits.max_pool_tokens}{room}",
            num_tokens,
        )


def validate_request_id(request_id: object) -> None:
    """Raises `BadRequest` unless the caller's request id is short and printable: logs and headers contain it."""
    check_label("request_id", request_id, str.isprintable, "printable")


def validate_cache_salt(cache_salt: object) -> None:
    """Raises `BadRequest` for an invalid cache salt, which separates cached prefixes of callers; None means no salt."""
    if cache_salt is not None:
        check_label(
            "cache_salt", cache_salt, lambda s: s.isascii() and s.isprintable(), "printable ASCII"
        )


def validate_priority(priority: object) -> None:
    """Raises `BadRequest` for an invalid priority; requests with a smaller priority run sooner."""
    check_integer("priority", priority, -(2**31), INT32_MAX)


# -- parameters -------------------------------------------------------------------------------


def _check_types(params: SamplingParams) -> None:
    for name in BOOLEANS:
        value = getattr(params, name)
        if not isinstance(value, bool):
            raise BadRequest(name, f"{name} must be true or false, got {shown(value)}")
    if params.output_kind not in tuple(OutputKind):
        raise BadRequest(
            "output_kind",
            f"output_kind must be one of {[str(kind) for kind in OutputKind]}, "
            f"got {shown(params.output_kind)}",
        )


def _check_ranges(params: SamplingParams, limits: Limits) -> None:
    check_integer("n", params.n, 1, limits.max_n)
    for number in NUMBERS:
        low, high = number.param.low, number.param.high
        value = getattr(params, number.name)
        check_number(number.name, value, low, high, above=number.param.above)
    for integer in INTEGERS:
        value = getattr(params, integer.name)
        if value is not None or not integer.is_optional:
            check_integer(integer.name, value, integer.param.low, integer.param.high)


def validate_truncation(num_tokens: int, limits: Limits) -> None:
    """Raises `BadRequest` for an invalid number of prompt tokens to keep; -1 keeps as many as fit the context."""
    check_integer("truncate_prompt_tokens", num_tokens, -1, limits.max_model_len)
    if num_tokens == 0:
        raise BadRequest(
            "truncate_prompt_tokens", "truncate_prompt_tokens must be -1 or at least 1, got 0", 0
        )


# -- parameters that are None when not given; arguments: name, value, all parameters, limits -------


def _check_max_tokens(name: str, most: int, params: SamplingParams, _limits: Limits) -> None:
    if (least := params.min_tokens) > most:
        raise BadRequest(
            "min_tokens",
            (Key("min_tokens"), " must be at most ", Key(name), f" ({most}), got {least}"),
            least,
        )


def _check_stops(name: str, stop: Any, params: SamplingParams, limits: Limits) -> None:
    if not isinstance(stop, str | list | tuple):
        raise BadRequest(name, f"stop must be a string or a list of strings, got {shown(stop)}")
    strings = params.stop_strings
    if len(strings) > limits.max_stop_strings:
        raise BadRequest(
            name, f"stop takes at most {limits.max_stop_strings} strings, got {len(strings)}"
        )
    for string in strings:
        if not isinstance(string, str):
            raise BadRequest(name, f"stop must hold strings, got {shown(string)}")
        if not 1 <= len(string) <= limits.max_stop_chars:
            raise BadRequest(
                name,
                f"each stop string must have 1 to {limits.max_stop_chars} characters, "
                f"got one of {len(string)}",
            )
        encode_text(name, string)
    if strings and not params.detokenize:
        raise BadRequest(name, "stop strings are searched in text; set detokenize to true")


def _check_scored_ids(name: str, token_ids: Any, params: SamplingParams, limits: Limits) -> None:
    _check_id_list(name, token_ids, params, limits)
    if not 1 <= len(set(token_ids)) == len(token_ids) <= MAX_LOGPROB_TOKEN_IDS:
        raise BadRequest(
            name, f"{name} takes 1 to {MAX_LOGPROB_TOKEN_IDS} different ids, got {len(token_ids)}"
        )
    if params.logprobs is not None and params.logprobs != len(token_ids):
        raise BadRequest(
            "logprobs",
            f"logprobs must be {len(token_ids)}, the number of {name}, or absent, "
            f"got {shown(params.logprobs)}",
        )


def _check_logprobs(name: str, value: Any, params: SamplingParams, limits: Limits) -> None:
    is_of_output = name == "logprobs"
    if isinstance(value, bool) or (is_of_output and params.logprob_token_ids is not None):
        return
    check_integer(name, value, -1, INT32_MAX)
    wanted = limits.vocab_size if value == -1 else value
    allowed = limits.vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
    if wanted > allowed:
        raise BadRequest(
            name,
            f"Requested {'sample' if is_of_output else 'prompt'} logprobs of {wanted}, "
            f"which is greater than max allowed: {allowed}",
            value,
        )


def _check_id_list(name: str, token_ids: Any, _params: SamplingParams, limits: Limits) -> None:
    if not isinstance(token_ids, list | tuple):
        raise BadRequest(name, f"{name} must be a list of token ids, got {shown(token_ids)}")
    if len(token_ids) > limits.vocab_size:
        raise BadRequest(
            name, f"{name} takes at most {limits.vocab_size} ids, got {len(token_ids)}"
        )
    _check_token_ids(name, token_ids, limits)


def _check_allowed(name: str, token_ids: Any, params: SamplingParams, limits: Limits) -> None:
    _check_id_list(name, token_ids, params, limits)
    if not token_ids:
        raise BadRequest(name, f"{name} is not None and empty!")


def _check_logit_bias(name: str, bias: Any, _params: SamplingParams, limits: Limits) -> None:
    if not isinstance(bias, dict):
        raise BadRequest(name, f"{name} must map token ids to numbers, got {shown(bias)}")
    if len(bias) > limits.max_logit_bias:
        raise BadRequest(
            name, f"{name} takes at most {limits.max_logit_bias} entries, got {len(bias)}"
        )
    _check_token_ids(name, [_bias_id(key) for key in bias], limits)
    for value in bias.values():
        check_number(name, value, -sys.float_info.max, sys.float_info.max)


def _bias_id(key: object) -> object:
    """Returns the token id in a decimal string (JSON has only string keys); other keys are returned unchanged."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 19:
        return int(key)
    return key


def _check_bad_words(name: str, words: Any, _params: SamplingParams, _limits: Limits) -> None:
    if not isinstance(words, list | tuple):
        raise BadRequest(name, f"{name} must be a list of strings, got {shown(words)}")
    if len(words) > MAX_BAD_WORDS:
        raise BadRequest(name, f"{name} takes at most {MAX_BAD_WORDS} strings, got {len(words)}")
    for word in words:
        if not isinstance(word, str):
            raise BadRequest(name, f"{name} must hold strings, got {shown(word)}")
        if not (word.strip() and len(word) <= MAX_BAD_WORD_CHARS):
            raise BadRequest(
                name,
                f"each of {name} must have 1 to {MAX_BAD_WORD_CHARS} characters that are not all "
                f"spaces, got {shown(word)}",
            )
        encode_text(name, word)


def _check_bad_ids(name: str, words: Any, _params: SamplingParams, limits: Limits) -> None:
    if not isinstance(words, list | tuple) or not all(isinstance(w, list | tuple) for w in words):
        raise BadRequest(name, f"{name} must be a list of lists of token ids, got {shown(words)}")
    if len(words) > MAX_BAD_WORDS:
        raise BadRequest(name, f"{name} takes at most {MAX_BAD_WORDS} lists, got {len(words)}")
    for word in words:
        if not 1 <= len(word) <= MAX_BAD_WORD_CHARS:
            message = f"each of {name} must have 1 to {MAX_BAD_WORD_CHARS} ids, got {len(word)}"
            raise BadRequest(name, message)
        _check_token_ids(name, word, limits)


def _check_repetition(name: str, given: Any, _params: SamplingParams, _limits: Limits) -> None:
    if not isinstance(given, RepetitionDetectionParams):
        raise BadRequest(name, f"{name} must be RepetitionDetectionParams, got {shown(given)}")
    check_integer("max_pattern_size", given.max_pattern_size, 0, MAX_PATTERN_SIZE)
    check_integer("min_pattern_size", given.min_pattern_size, 0, MAX_PATTERN_SIZE)
    if given.min_pattern_size > given.max_pattern_size:
        raise BadRequest(
            "min_pattern_size",
            f"min_pattern_size must be at most max_pattern_size ({given.max_pattern_size}), "
            f"got {given.min_pattern_size}",
        )
    lowest = 2 if given.max_pattern_size else 0
    check_integer("min_count", given.min_count, lowest, INT32_MAX)


_IF_GIVEN: Mapping[str, Callable[[str, Any, SamplingParams, Limits], None]] = {
    "max_tokens": _check_max_tokens,
    "truncate_prompt_tokens": lambda _, given, _params, limits: validate_truncation(given, limits),
    "stop": _check_stops,
    "logprob_token_ids": _check_scored_ids,
    "logprobs": _check_logprobs,
    "prompt_logprobs": _check_logprobs,
    "stop_token_ids": _check_id_list,
    "allowed_token_ids": _check_allowed,
    "logit_bias": _check_logit_bias,
    "bad_words": _check_bad_words,
    "bad_words_token_ids": _check_bad_ids,
    "repetition_detection": _check_repetition,
    "extra_args": lambda _, given, params, limits: check_extra_args(
        given, limits.kv_role, params.n, is_foreign=limits.has_foreign_transfers
    ),
    "structured_outputs": lambda _name, given, _params, _limits: validate_structured_outputs(given),
}


def _check_token_ids(name: str, token_ids: Sequence[Any], limits: Limits) -> None:
    """Raises `BadRequest` unless all token ids are ints (bools, floats and numpy scalars are not) of the vocabulary."""
    if not token_ids:
        return
    if set(map(type, token_ids)) != {int}:
        wrong = next(token_id for token_id in token_ids if type(token_id) is not int)
        raise BadRequest(name, (Key(name), f" must hold integers, got {shown(wrong)}"))
    # A negative id would wrap around and edit another token's row in silence.
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < limits.vocab_size:
            allowed = f"0 to {limits.vocab_size - 1}, got {shown(token_id)}"
            raise BadRequest(name, (Key(name), f" must be in the vocabulary, {allowed}"), token_id)
