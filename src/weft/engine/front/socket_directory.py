"""Directories of sockets between processes of this machine, and the end of those whose owners were killed.

Each holds a file that its owner keeps locked as long as it lives: the system lets go of it, however the owner ends.
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
# What TMPDIR names is the user's choice, and may be deep; this is not, and every system has it.
_SHORT_DIRECTORY = "/tmp"  # noqa: S108 - a fresh directory is made inside, for us alone
_MAX_LOOKED_AT = 10_000


class SocketDirectory:
    """A fresh directory whose sockets' paths are as short as the system wants them."""

    def __init__(self) -> None:
        where = tempfile.gettempdir()
        # What mkdtemp puts behind the prefix, and the longest name inside, are of these lengths.
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
        """Remove it with all that is in it; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _lock_in(path: Path) -> int:
    """Its file has its name only once it is locked, so that nobody finds it free before."""
    lock = os.open(path / f".{_LOCK}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (path / f".{_LOCK}").rename(path / _LOCK)
    return lock


def remove_abandoned(where: str) -> None:
    """Remove directories of this user whose owners have ended; one without a lock may be another program's."""
    with os.scandir(where) as entries:
        ours = [
            Path(one) for one in islice(entries, _MAX_LOOKED_AT) if one.name.startswith(_PREFIX)
        ]
    for path in ours:
        with suppress(OSError):  # it is another user's, or goes meanwhile
            if _is_abandoned(path):
                shutil.rmtree(path)
                log.info("removed %s, which a process that was killed had left", path)


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
