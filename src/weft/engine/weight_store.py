"""Packed weights that all engines of a server map: made once, by the first who needs them.

They lie in files in memory, which the front holds and its engines open through /proc. There are two, so that
weights are served while others are packed. Who maps a file has a shared lock on it, who fills or empties it the
only one; an engine that dies leaves its locks.
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

from weft.compute.backend import PackedFile
from weft.compute.backends import shares_weights
from weft.core.config import EngineConfig
from weft.core.errors import ConfigError
from weft.engine.weight_files import PackedWeights

T = TypeVar("T")

_DIGEST_BYTES = 32
_RETRY_S = (0.001, 0.02)  # others that want the same lock try at other moments


def has_shared_weights(config: EngineConfig) -> bool:
    """Whether engines with this configuration have one copy of the weights."""
    assert config.compute_config is not None, "it computes elsewhere"
    return config.has_ranks and shares_weights(config.compute_config)


class WeightStore:
    """An engine's end; its thread owns it."""

    def __init__(self, given: PackedWeights) -> None:
        self._files = []
        for path in given.paths:
            try:
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:  # a system that hides processes from each other
                raise ConfigError(
                    f"{path} cannot be opened ({error.strerror}): several engines have their weights there"
                ) from error
            weakref.finalize(self, os.close, file)
            self._files.append(file)
        self._given = given

    def load(self, load: Callable[[PackedFile], T], identity: str | None) -> T:
        """What `load` makes of the file once the weights are in it; it packs them if they are not.

        `identity` is what tells them from others in another process; see `has`.
        """
        file = self._files[self._given.place]
        try:
            while True:
                fcntl.flock(file, fcntl.LOCK_SH)
                if self._is_published(file):
                    return load(PackedFile(file, is_published=True))
                if not _locked_alone(file):
                    time.sleep(random.uniform(*_RETRY_S))
                elif not self._is_published(file):  # nor were they while this one had no lock
                    self._pack(file, load, identity)
        except BaseException:
            self.leave()
            raise

    def has(self, identity: str | None) -> bool:
        """Whether that is the identity of what is mapped."""
        return self._mark(self._files[self._given.place])[_DIGEST_BYTES:] == _digest(identity)

    def move(self, given: PackedWeights) -> PackedWeights:
        """Use these from the next `load` on; those that were used until now."""
        former, self._given = self._given, given
        return former

    def read_anew(self) -> None:
        """See `WeightFiles`, which tells only engines that start later."""
        self._given = msgspec.structs.replace(self._given, may_pack=True)

    def leave(self, given: PackedWeights | None = None) -> None:
        """Nothing is mapped here any more; the memory goes back to the system when that holds for all."""
        self._leave(self._files[(given or self._given).place])

    def _pack(self, file: int, load: Callable[[PackedFile], T], identity: str | None) -> None:
        if not self._given.may_pack:
            raise ConfigError(
                "the weights that were sent are in no engine now; wake up the others first"
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
        except BlockingIOError:  # another maps it, or fills it
            return
        os.ftruncate(file, 0)
        fcntl.flock(file, fcntl.LOCK_UN)


def _locked_alone(file: int) -> bool:
    """Whether it is; else it is not locked at all, and so may be locked by another who wants the same.

    Who waited for that would wait for as long as another, who was first, maps the weights.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(file, fcntl.LOCK_UN)
        return False
    return True


def _digest(text: str | None) -> bytes:
    return hashlib.sha256(repr(text).encode()).digest()
