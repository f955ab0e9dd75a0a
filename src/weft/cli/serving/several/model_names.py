"""NAME=MODEL on the command line, and whether a server has several models."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from weft.cli.arguments.flags import pick
from weft.cli.options import ServeOptions
from weft.core.config.engine_options import EngineOptions
from weft.core.config.ranks import RankOptions
from weft.core.errors import ConfigError
from weft.core.values.declare import spelled
from weft.web.model_pool.pool_options import PoolOptions

# Not the beginning of a path, and without the "?" of embedded:random?layers=2.
_NAME = re.compile(r"[A-Za-z0-9][\w.:/@-]*")
_ALONE = ("models", "model_dir")
_MAX_S = 1e8
# Settings of servers whose engines are elsewhere, or whose engines other processes connect to.
EXCLUDED = (
    *("remote", "kv_transfer_config", "kv_events_config", "served_model_name"),
    "resume_secret_file",
    *(field.name for field in fields(RankOptions)),
)


def split_name(text: str) -> tuple[str | None, str]:
    """The name that a text NAME=MODEL gives, None for MODEL alone; and the model."""
    name, sign, model = text.partition("=")
    if not sign or not _NAME.fullmatch(name) or Path(text).exists():
        return None, text
    if not model:
        raise ConfigError(f"{text!r} must be NAME=MODEL")
    return name, model


def wants_pool(texts: Sequence[str], options: ServeOptions) -> bool:
    """True if the server has several models, or its models come from a directory or a table."""
    return len(texts) > 1 or any(getattr(options, name) is not None for name in _ALONE)


def named(text: str | None, options: ServeOptions) -> tuple[str | None, ServeOptions]:
    """The only model of a server, with the name that NAME=MODEL gives it. Refuses flags for several models."""
    for field in fields(PoolOptions):
        if getattr(options, field.name) != field.default:
            raise ConfigError(f"{spelled(field.name)} is for servers with several models")
    name, model = (None, text) if text is None else split_name(text)
    if name is None:
        return model, options
    if pick(options, EngineOptions).served_model_name:
        raise ConfigError(f"{text}: give NAME=MODEL or --served-model-name, not both")
    return model, with_name(options, name)


def with_name(options: ServeOptions, name: str) -> ServeOptions:
    """The options of a model that has this name."""
    changes: dict[str, Any] = {"served_model_name": [name]}
    return replace(options, **changes)


def check_pool(options: ServeOptions) -> None:
    """Refuses what goes with one model only."""
    for name in EXCLUDED:
        if getattr(options, name) not in (None, False):
            if name == "served_model_name":
                raise ConfigError(
                    "--served-model-name is for one model; name each of several: NAME=MODEL"
                )
            raise ConfigError(f"{spelled(name)} and several models exclude each other")
    if options.engine == "vllm":
        raise ConfigError("--engine vllm and several models exclude each other")
    for name in ("api_server_count", "data_parallel_size"):
        count = getattr(options, name)
        if count != 1:
            raise ConfigError(
                f"{spelled(name)} {count} and several models exclude each other; each model has one engine"
            )
    if not options.http:
        raise ConfigError(
            "--no-http and several models exclude each other: gRPC has the first model only"
        )
    memory_bytes = pick(options, PoolOptions).models_memory
    if memory_bytes is not None and memory_bytes < 1:
        raise ConfigError(f"--models-memory must be at least 1, not {memory_bytes}")
    for name in ("models_wait", "models_min_stay", "models_idle"):
        check_seconds(spelled(name), getattr(options, name))


def check_seconds(where: str, seconds: float | None) -> None:
    """Refuses a time that is negative, or longer than years."""
    if seconds is not None and not 0 <= seconds <= _MAX_S:
        raise ConfigError(f"{where} must be from 0 to {_MAX_S:g} seconds, not {seconds:g}")
