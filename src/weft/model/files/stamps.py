"""`Stamps`: whether files are still those that were read."""

from collections.abc import Iterable
from pathlib import Path

from weft.core.errors import ConfigError

_Stamp = tuple[int, int, int, int]


class Stamps:
    """Of files as they are when this is made: which file it is, how long, and when it was last written."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._stamps = {path: _stamp(path) for path in paths}

    def check(self) -> None:
        """Raise the `ConfigError` that names a file which is another one now, or is not there."""
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                raise ConfigError(f"{path} has changed since it was loaded")


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
