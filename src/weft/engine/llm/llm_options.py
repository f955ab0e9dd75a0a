"""Options of `LLM` and `AsyncLLM`: those of Weft, and vLLM's by their own names."""

import logging
from collections.abc import Mapping
from typing import Any

from weft.compat.vllm import Setting, find_flag, translate
from weft.core.config.defaults import UNLIMITED_QUEUE
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import BadRequest
from weft.engine.start.fit import Fitted, find_and_fit

log = logging.getLogger("weft.engine")

# Options of vLLM for the log of a server, which an `LLM` does not have.
_OF_SERVERS = ("disable_log_stats",)


def fit_options(model: str, options: Mapping[str, Any]) -> Fitted:
    """Fits the model to the given options, which are Weft's or vLLM's."""
    settings = EngineOptions(model=model, **{**UNLIMITED_QUEUE, **_own_options(options)})
    return find_and_fit(settings, is_shared=True).with_tokenizer()


def _own_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Translates vLLM's options into Weft's; raises an error for an option that Weft cannot follow."""
    own: dict[str, Any] = {}
    for name, value in given.items():
        flag = find_flag(name)
        if flag is not None and value is None:
            continue
        setting = (
            Setting(name, value) if flag is None else translate(flag, value, f"{name}={value!r}")
        )
        if setting is None or name in _OF_SERVERS:
            continue
        if setting.name not in EngineOptions.__struct_fields__:
            allowed = ", ".join(EngineOptions.__struct_fields__)
            raise BadRequest(name, f"LLM has no option {name!r}; it has: {allowed}")
        if setting.note is not None:
            log.info("%s", setting.note)
        own[setting.name] = setting.value
    return own
