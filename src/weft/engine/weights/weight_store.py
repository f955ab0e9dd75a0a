"""Packed weights that all engines of a server map; the first engine that needs them packs them.

The weights are in in-memory files, which the front owns and the engines open through /proc. There are two files, so
that one is in use while the other is filled. An engine that maps a file has a shared lock on it; an engine that fills
or empties it has the exclusive lock. The system releases a dead engine's locks.
"""

import fcntl
import hashlib
import os
import random
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

import msgspec

from weft.compute.backends import shares_weights
from weft.compute.protocols.backend import PackedFile
from weft.core.config.engine import EngineConfig
from weft.core.errors import ConfigError
from weft.engine.ipc.weight_files import PackedWeights

T = TypeVar("T")

_DIGEST_BYTES = 32
# Range of the random pause, so that engines that want the same lock do not collide again.
_RETRY_S = (0.001, 0.02)


def has_shared_weights(config: EngineConfig) -> bool:
    """True if engines with this configuration share one copy of the weights."""
    assert config.compute_config is not None, "it computes elsewhere"
    return config.has_ranks and shares_weights(config.compute_config)


class WeightStore:
    """An engine's access to the files of packed weights; owned by the engine's thread."""

    def __init__(self, given: PackedWeights) -> None:
        self._files = []
        for path in given.paths:
            try:
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:  # the system hides the files of other processes
                raise ConfigError(
                    f"{path} cannot be opened ({error.strerror}): several engines have their weights there"
                ) from error
            weakref.finalize(self, os.close, file)
            self._files.append(file)
        self._given = given

    def load(self, load: Callable[[PackedFile], T], identity: str | None) -> T:
        """Returns the result of `load` on the file with the weights; packs the weights first if they are missing.

        `identity` distinguishes these weights from others, across processes; `has` compares it.
        """
        file = self._files[self._given.place]
        try:
            while True:
                fcntl.flock(file, fcntl.LOCK_SH)
                if self._is_published(file):
                    return load(PackedFile(file, is_published=True))
                if not _locked_alone(file):
                    time.sleep(random.uniform(*_RETRY_S))
                elif not self._is_published(file):
                    # Another engine may have packed the weights before this engine got the lock.
                    self._pack(file, load, identity)
        except BaseException:
            self.leave()
            raise

    def has(self, identity: str | None) -> bool:
        """True if the mapped weights have this identity."""
        return self._mark(self._files[self._given.place])[_DIGEST_BYTES:] == _digest(identity)

    def move(self, given: PackedWeights) -> PackedWeights:
        """Makes the next `load` use these weights; returns the former location."""
        former, self._given = self._given, given
        return former

    def read_anew(self) -> None:
        """Makes the next `load` read the weights from disk.

        `WeightFiles.read_anew` does so for engines that start later.
        """
        self._given = msgspec.structs.replace(self._given, may_pack=True)

    def leave(self, given: PackedWeights | None = None) -> None:
        """Releases this engine's lock, once the engine maps nothing.

        The last engine that leaves returns the memory to the system.
        """
        self._leave(self._files[(given or self._given).place])

    def _pack(self, file: int, load: Callable[[PackedFile], T], identity: str | None) -> None:
        if not self._given.may_pack:
            raise ConfigError(
                "no running engine has the weights that were sent; wake up the other engines first"
            )
        load(PackedFile(file, is_published=False))
        os.pwrite(file, _digest(self._given.key) + _digest(identity), os.fstat(file).st_size)

    def _is_published(self, file: int) -> bool:
        return self._mark(file)[:_DIGEST_BYTES] == _digest(self._given.key)

    @staticmethod
    def _mark(file: int) -> bytes:
        start = os.fstat(file).st_size - 2 * _DIGEST_BYTES
        return os.pread(file, 2 * _DIGEST_BYTES, start) if start > 0 else b""

    @staticmethod
    def _leave(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another engine maps or fills the file
            return
        os.ftruncate(file, 0)
        fcntl.flock(file, fcntl.LOCK_UN)


def _locked_alone(file: int) -> bool:
    """Tries to turn the shared lock into the exclusive lock; True on success.

    On failure the file is left unlocked, so that other engines can try. The engine cannot wait for the exclusive lock:
    another engine that was first keeps its shared lock while it serves.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(file, fcntl.LOCK_UN)
        return False
    return True


def _digest(text: str | None) -> bytes:
    return hashlib.sha256(repr(text).encode()).digest()
