"""`--speculative-config`: from what the user wrote to how tokens are drafted."""

from typing import Any

import msgspec

from weft.core.config import SpeculativeConfig
from weft.core.errors import ConfigError
from weft.engine.given import check_between, read_json

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
    given = read_json(FLAG, value, _Given)
    if given.method != "ngram":
        raise ConfigError(f'{FLAG}: method must be "ngram", not {given.method[:40]!a}')
    bounds = [given.prompt_lookup_max, given.prompt_lookup_min]
    most, least = (
        next((one for one in order if one is not None), DEFAULT_LOOKUP_TOKENS)
        for order in (bounds, bounds[::-1])
    )
    num_tokens = given.num_speculative_tokens
    check_between(f"{FLAG}: num_speculative_tokens", num_tokens, 1, MAX_DRAFT_TOKENS)
    check_between(f"{FLAG}: prompt_lookup_max", most, 1, MAX_LOOKUP_TOKENS)
    check_between(f"{FLAG}: prompt_lookup_min", least, 1, most)
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=num_tokens,
        prompt_lookup_max=most,
        prompt_lookup_min=least,
    )
