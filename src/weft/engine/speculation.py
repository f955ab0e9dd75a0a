"""`--speculative-config`: from what the user wrote to how tokens are drafted."""

from typing import Any

import msgspec

from weft.core.config import SpeculativeConfig
from weft.core.errors import ConfigError

FLAG = "--speculative-config"
MAX_DRAFT_TOKENS = 32
MAX_LOOKUP_TOKENS = 64
# What vLLM takes when neither bound is given.
DEFAULT_LOOKUP_TOKENS = 5


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As the user wrote it."""

    num_speculative_tokens: int
    method: str = "ngram"
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None


def read_speculation(value: str | dict[str, Any] | None) -> SpeculativeConfig | None:
    """None drafts nothing. `ConfigError` names the flag and what is wrong."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            given = msgspec.json.decode(value, type=_Given)
        else:
            given = msgspec.convert(value, _Given)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{FLAG} is not understood: {error}") from error
    if given.method != "ngram":
        raise ConfigError(f'{FLAG}: method must be "ngram", not {given.method[:40]!a}')
    bounds = [given.prompt_lookup_max, given.prompt_lookup_min]
    most, least = (
        next((one for one in order if one is not None), DEFAULT_LOOKUP_TOKENS)
        for order in (bounds, bounds[::-1])
    )
    _check("num_speculative_tokens", given.num_speculative_tokens, 1, MAX_DRAFT_TOKENS)
    _check("prompt_lookup_max", most, 1, MAX_LOOKUP_TOKENS)
    _check("prompt_lookup_min", least, 1, most)
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=given.num_speculative_tokens,
        prompt_lookup_max=most,
        prompt_lookup_min=least,
    )


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{FLAG}: {name} must be between {low} and {high}, not {value}")
