"""`WorkOwner`: this process as the owner of work in a store file. A lock on a file shows others that it still runs."""

import os
import secrets
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import IO

_MARK = "-owner-"


class WorkOwner:
    """The name of this process in records, with its lock file beside the store file at `path`.

    The system releases the lock when the process ends in any way. A store in memory has no file and no other owners.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self.name = secrets.token_hex(8)
        if path is not None:
            self._remove_old(path)
            self._file = self._locked(self._file_of(self.name))

    def has_ended(self, name: str) -> bool:
        """True if the process with this name has ended."""
        if name == self.name:
            return False
        if self._path is None:
            return True
        return _is_free(self._file_of(name))

    def close(self) -> None:
        """Releases the lock: others may take over the work that is left."""
        if self._file is not None:
            self._file_of(self.name).unlink(missing_ok=True)
            self._file.close()

    def _file_of(self, name: str) -> Path:
        assert self._path is not None
        return self._path.with_name(f"{self._path.name}{_MARK}{name}")

    def _locked(self, path: Path) -> IO[bytes]:
        """Creates and locks the file. Another process may remove a file that is not locked yet."""
        while True:
            file = path.open("ab")
            flock(file, LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
            file.close()

    @staticmethod
    def _remove_old(path: Path) -> None:
        for old in path.parent.glob(f"{path.name}{_MARK}*"):
            _is_free(old)


def _is_free(path: Path) -> bool:
    """True if no process holds the lock on the file; then the file is removed."""
    try:
        with path.open("ab" if path.exists() else "rb") as file:
            flock(file, LOCK_EX | LOCK_NB)
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True
