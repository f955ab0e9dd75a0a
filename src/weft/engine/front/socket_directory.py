"""Directories of sockets between processes of this machine, and the removal of directories whose owners were
killed.

Each directory holds a file that its owner locks as long as it lives: the system releases the lock however the owner
ends.
"""

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from itertools import islice
from pathlib import Path

import zmq

from weft.core.errors import ConfigError

log = logging.getLogger("weft.engine")

_PREFIX = "weft-"
_LOCK = "owner"
# TMPDIR may name a path that is too long for a socket; this path is short and exists on every system.
_SHORT_DIRECTORY = "/tmp"  # noqa: S108 - a fresh directory is made inside, for us alone
_MAX_LOOKED_AT = 10_000


class SocketDirectory:
    """A fresh directory whose socket paths are short enough for the system."""

    def __init__(self) -> None:
        where = tempfile.gettempdir()
        # mkdtemp appends 8 characters to the prefix; the longest socket name is "commands".
        if len(os.fsencode(f"{where}/{_PREFIX}12345678/commands")) > zmq.IPC_PATH_MAX_LEN:
            where = _SHORT_DIRECTORY
        try:
            remove_abandoned(where)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=where))
            self._lock = _lock_in(self.path)
        except OSError as error:
            raise ConfigError(
                f"{where}: no directory for the engine's sockets can be made there ({error.strerror}); "
                f"TMPDIR can name another, with a path of at most {zmq.IPC_PATH_MAX_LEN - 23} characters"
            ) from error

    def remove(self) -> None:
        """Removes the directory and its content; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _lock_in(path: Path) -> int:
    """Creates and locks the lock file; the file gets its name only when it is locked, so that nobody finds it
    unlocked.
    """
    lock = os.open(path / f".{_LOCK}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (path / f".{_LOCK}").rename(path / _LOCK)
    return lock


def remove_abandoned(where: str) -> None:
    """Removes directories of this user whose owners have ended. A directory without a lock file may be another
    program's and stays.
    """
    with os.scandir(where) as entries:
        ours = [
            Path(one) for one in islice(entries, _MAX_LOOKED_AT) if one.name.startswith(_PREFIX)
        ]
    for path in ours:
        with suppress(OSError):  # another user's directory, or removed meanwhile
            if _is_abandoned(path):
                shutil.rmtree(path)
                log.debug("removed %s, left behind by a process that was killed", path)


def _is_abandoned(path: Path) -> bool:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(lock)
    return True
