"""Stores of a second tier: host memory, or files that a later process finds again.

A file begins with the kind of its content, the model, and a digest of both and of the block: a file that does not match
exactly is not used. A file contains only bytes, and nothing in it is ever executed. The state after a block is stored
like a block, under another name.
"""

import fcntl
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from weft.compute.host_blocks import Bytes
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.observe.readable import format_bytes
from weft.core.values.kv_cache import KvOffloadingConfig, Medium
from weft.model.card import ModelCard

SIZE_FLAG = "--kv-offloading-size"
PATH_FLAG = "--kv-offloading-path"
MAX_GIB = 1 << 20
TILE_TOKENS = (
    16  # tokens that are contiguous in the pool: smaller blocks cannot be copied separately
)
MAX_ENGINES = 64  # maximum number of engines that share a path
_MAGIC, _STATE_MAGIC = b"WEFTKV01", b"WEFTKS01"
_STATE = "s"  # suffix of a state's name
_IDENTITY_BYTES = 32
HEADER_BYTES = len(_MAGIC) + _IDENTITY_BYTES + 32 + xxhash.xxh3_128().digest_size
_PAGE = 4096  # files take whole pages of disk space
MAX_FILE_OVERHEAD = HEADER_BYTES + _PAGE
_NAME = re.compile(rf"[0-9a-f]{{16}}-[0-9a-f]{{64}}{_STATE}?")
_UNFINISHED = "unfinished"


def read_kv_offloading(
    options: EngineOptions, card: ModelCard, block_size: int
) -> KvOffloadingConfig | None:
    """Returns the configuration of each engine's second tier; None if the engines have no second tier.

    Raises `ConfigError` for an invalid size or path, and if the engine's blocks cannot be copied.
    """
    size, path = options.kv_offloading_size, options.kv_offloading_path
    if not size:
        if path is not None:
            raise ConfigError(f"{PATH_FLAG} needs {SIZE_FLAG}")
        return None
    if not 0 < size <= MAX_GIB:
        raise ConfigError(f"{SIZE_FLAG} must be above 0 and at most {MAX_GIB} GiB, not {size:g}")
    if path is not None and not path.strip():
        raise ConfigError(f"{PATH_FLAG} must name a directory")
    check_copyable(SIZE_FLAG, options, card, block_size)
    num_bytes = int(size * (1 << 30))
    least = block_size * card.kv_bytes_per_token + card.state_bytes_per_block + MAX_FILE_OVERHEAD
    what = "a block takes"
    if card.state_bytes_per_slot:
        least += card.state_bytes_per_slot + MAX_FILE_OVERHEAD
        what = "a block and a state take"
    if num_bytes < least:
        raise ConfigError(
            f"{SIZE_FLAG} {size:g} GiB is less than the {format_bytes(least)} that {what}"
        )
    absolute = None if path is None else str(Path(path).expanduser().absolute())
    return KvOffloadingConfig(num_bytes=num_bytes, path=absolute)


def check_copyable(flag: str, options: EngineOptions, card: ModelCard, block_size: int) -> None:
    """Raises `ConfigError`, naming `flag`, if the blocks of this engine cannot be copied, which the flag needs."""
    if not (options.enable_prefix_caching and card.is_causal and card.kv_bytes_per_token):
        raise ConfigError(f"{flag} needs a prefix cache, with blocks that hold keys and values")
    if block_size % TILE_TOKENS:
        raise ConfigError(
            f"{flag} needs a --block-size that is a multiple of {TILE_TOKENS}, not {block_size}"
        )


class DamagedBlock(Exception):
    """The stored data of a block differs from the data that was written."""


class BlockStore(Protocol):
    """Stores blocks by name. One thread calls the methods; after an `OSError` the store is no longer used."""

    medium: Medium

    def name_of(self, block_hash: bytes, *, is_state: bool = False) -> str:
        """Returns the name of a block, or of the state after the block."""

    def hash_of(self, name: str) -> bytes | None:
        """Returns the hash of the block with that name; None for a block of another model, and for a state."""

    def find(self) -> list[tuple[str, int]]:
        """Returns the names and sizes in bytes of the data that earlier processes stored, least recently used first."""

    def size_of(self, data: Bytes) -> int:
        """Returns the number of bytes that a block with this data takes in the store."""

    def write(self, name: str, data: Bytes) -> None:
        """Stores a block, completely or not at all."""

    def read(self, name: str) -> Bytes | None:
        """Returns a block bit for bit; None if the block is not stored. Raises `DamagedBlock`."""

    def remove(self, name: str) -> None:
        """Removes a block; no effect if the block is not stored."""

    def close(self) -> None:
        """Releases the resources of the store."""


class MemoryBlocks:
    """Stores blocks in the memory of this process, in the form of the pool."""

    medium = Medium.MEMORY

    def __init__(self) -> None:
        self._blocks: dict[str, Bytes] = {}

    def name_of(self, block_hash: bytes, *, is_state: bool = False) -> str:
        return block_hash.hex() + _STATE * is_state

    def hash_of(self, name: str) -> bytes | None:
        return None if name.endswith(_STATE) else bytes.fromhex(name)

    def find(self) -> list[tuple[str, int]]:
        return []

    def size_of(self, data: Bytes) -> int:
        return data.nbytes

    def write(self, name: str, data: Bytes) -> None:
        self._blocks[name] = data

    def read(self, name: str) -> Bytes | None:
        return self._blocks.get(name)

    def remove(self, name: str) -> None:
        self._blocks.pop(name, None)

    def close(self) -> None:
        self._blocks.clear()


class DirectoryBlocks:
    """Stores one file per block, in a directory that only this engine uses and no other user may read.

    `identity` names the model of the blocks. Blocks of other models count for the size and age as well, but are never
    read.
    """

    medium = Medium.DISK

    def __init__(self, directory: Path, lock: int, identity: bytes) -> None:
        self.directory = directory
        self._lock = lock
        self._identity = identity
        self._prefix = identity[:8].hex() + "-"

    @classmethod
    def open(cls, path: str, identity: str) -> "DirectoryBlocks":
        """Opens the first subdirectory of `path` that no engine uses. Raises `ConfigError` for an unusable path."""
        digest = hashlib.blake2b(identity.encode(), digest_size=_IDENTITY_BYTES).digest()
        try:
            Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
            for number in range(MAX_ENGINES):
                directory = Path(path) / f"engine-{number}"
                lock = _take(directory)
                if lock is not None:
                    return cls(directory, lock, digest)
        except OSError as error:
            raise ConfigError(f"{PATH_FLAG} {path}: {error.strerror or error}") from error
        raise ConfigError(f"{PATH_FLAG} {path}: {MAX_ENGINES} engines use it, which is the maximum")

    def name_of(self, block_hash: bytes, *, is_state: bool = False) -> str:
        return self._prefix + block_hash.hex() + _STATE * is_state

    def hash_of(self, name: str) -> bytes | None:
        if name.endswith(_STATE) or not name.startswith(self._prefix):
            return None
        return bytes.fromhex(name.removeprefix(self._prefix))

    def find(self) -> list[tuple[str, int]]:
        found: list[tuple[int, str, int]] = []
        for folder in os.scandir(self.directory):
            if not folder.is_dir(follow_symlinks=False):
                continue
            for file in os.scandir(folder):
                if _NAME.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                    stamp = file.stat(follow_symlinks=False)
                    found.append((stamp.st_mtime_ns, file.name, _on_disk(stamp.st_size)))
        return [(name, size) for _, name, size in sorted(found)]

    def size_of(self, data: Bytes) -> int:
        return _on_disk(HEADER_BYTES + data.nbytes)

    def write(self, name: str, data: Bytes) -> None:
        path, unfinished = self._path(name), self.directory / _UNFINISHED
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(unfinished, flags, 0o600), "wb", buffering=0) as file:
            for part in (self._header(name, data), data.data):
                rest = memoryview(part).cast("B")
                while rest:
                    rest = rest[file.write(rest) :]
        unfinished.replace(path)

    def read(self, name: str) -> Bytes | None:
        path = self._path(name)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                content = file.read()
            os.utime(path)  # records the use: the next start orders files by it
        except FileNotFoundError:
            return None
        if len(content) <= HEADER_BYTES:
            raise DamagedBlock
        data = np.frombuffer(content, np.uint8, offset=HEADER_BYTES)
        if content[:HEADER_BYTES] != self._header(name, data):
            raise DamagedBlock
        return data

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._lock)

    def _path(self, name: str) -> Path:
        return self.directory / name.removesuffix(_STATE)[-2:] / name

    def _header(self, name: str, data: Bytes) -> bytes:
        block_hash = self.hash_of(name.removesuffix(_STATE))
        assert block_hash is not None, "blocks of another model are not read"
        magic = _STATE_MAGIC if name.endswith(_STATE) else _MAGIC
        head = magic + self._identity + block_hash
        digest = xxhash.xxh3_128(head)
        digest.update(data.data)
        return head + digest.digest()


def _take(directory: Path) -> int | None:
    """Locks a directory for this engine and returns the lock's file descriptor; None if another engine has locked
    it.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    is_private = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
    if not stat.S_ISDIR(found.st_mode) or not is_private:
        raise ConfigError(
            f"{PATH_FLAG}: {directory} must be a directory of this user, with mode 0700"
        )
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(directory / "lock", flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _on_disk(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE
