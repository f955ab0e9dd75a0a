"""Detects files that changed after they were read, and computes digests of files."""

from collections.abc import Callable, Iterable
from pathlib import Path

import xxhash

from weft.core.errors import ConfigError

_Stamp = tuple[int, int, int, int]
_PIECE_BYTES = 16 << 20


class Stamps:
    """Identities, sizes and modification times of files at the time of construction."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._stamps = {path: _stamp(path) for path in paths}

    def check(self) -> None:
        """Raises a `ConfigError` that names a file that was replaced, changed or removed."""
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                raise ConfigError(f"{path} has changed since it was loaded")


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def content_digest(
    start: str, paths: Iterable[Path], on_piece: Callable[[], None] = lambda: None
) -> str:
    """Returns a digest of a text and of the content of files; `on_piece` is called after each piece, and may raise to
    stop.
    """
    digest = xxhash.xxh3_128(start.encode())
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                on_piece()
    return digest.hexdigest()
