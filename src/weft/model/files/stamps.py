"""`Stamps`: detects files that changed after they were read."""

from collections.abc import Iterable
from pathlib import Path

from weft.core.errors import ConfigError

_Stamp = tuple[int, int, int, int]


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
