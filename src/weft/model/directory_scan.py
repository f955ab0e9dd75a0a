"""Finds the models below a directory."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from weft.core.errors import ConfigError
from weft.model.gguf.open import SUFFIX, all_parts
from weft.model.gguf.projector_file import is_projector

_CONFIG = "config.json"
_DEPTH = 2  # depth of models below the directory: OWNER/NAME


def checkpoints_in(directory: Path) -> Iterator[Path]:
    """Yields the checkpoints and GGUF files in the directory, or the directory itself if it is a checkpoint.

    Projector files are parts of models.
    """
    patterns = ["/".join(["*"] * depth + [_CONFIG]) for depth in range(_DEPTH + 1)]
    yield from sorted({one.parent for pattern in patterns for one in directory.glob(pattern)})
    patterns = ["/".join(["*"] * depth + [f"*{SUFFIX}"]) for depth in range(_DEPTH + 1)]
    for path in sorted(one for pattern in patterns for one in directory.glob(pattern)):
        if parts_of(path)[:1] == [path] and not is_projector(path.name):
            yield path


def parts_of(path: Path) -> list[Path]:
    """The present parts of a GGUF model; a file with invalid part numbers stands for itself."""
    with suppress(ConfigError):
        return [one for one in all_parts(path) if one.is_file()]
    return [path]
