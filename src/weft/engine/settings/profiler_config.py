"""Reads `--profiler-config`."""

import os
from pathlib import Path
from typing import Any

import msgspec

from weft.core.config.profiling import ProfilerConfig
from weft.core.errors import ConfigError
from weft.engine.settings.given import read_json

FLAG = "--profiler-config"


def read_profiler(given: str | dict[str, Any] | None) -> ProfilerConfig | None:
    """Returns the configuration in JSON text, or in Python in a dict."""
    if given is None:
        return None
    config = read_json(FLAG, given, ProfilerConfig)
    directory = Path(config.torch_profiler_dir).expanduser().absolute()
    if not (directory.is_dir() and os.access(directory, os.W_OK)):
        raise ConfigError(
            f"{FLAG}: torch_profiler_dir must be a writable directory, got {directory}"
        )
    return msgspec.structs.replace(config, torch_profiler_dir=str(directory))
