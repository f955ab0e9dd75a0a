"""Packed weights on disk: the format of a file, and the directory of files.

A file begins with the data that `SharingBackend.load_shared` maps. A label follows, with the origin of the data and
digests of all data, and then a digest of the label. A file that does not match exactly is not used. A file contains
only numbers, and nothing in it is ever executed.
"""

import fcntl
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import xxhash

from weft.compute.native import available_cpus
from weft.core.cache_directory import cache_directory, is_ours_alone
from weft.core.observe.readable import format_bytes

SUFFIX = ".packed"
PIECE_BYTES = 32 << 20
_MAGIC = b"WEFTPW01"
_FOOTER_BYTES = xxhash.xxh3_128().digest_size + 8 + len(_MAGIC)
_MAX_LABEL_BYTES = 64 << 20
_UNFINISHED = ".unfinished-"
_MAX_THREADS = 8
# A file takes at most 1 / `_FREE_PARTS` of the disk's free space.
_FREE_PARTS = 4


class SourceFile(msgspec.Struct, frozen=True):
    """A file of the checkpoint: its stamp, and the digest of its content at the time of packing."""

    path: str
    stamp: tuple[int, int, int, int]
    digest: bytes

    @property
    def changed_ns(self) -> int:
        """Time of the last write or replacement, in ns."""
        return max(self.stamp[2:])


class Label(msgspec.Struct, frozen=True):
    """Origin of a packed file. `key` has everything that determines how the weights of `sources` are packed.

    `digests` are the digests of the file's pieces. `looked_ns` is the time when the sources were last checked.
    """

    key: str
    model: str
    sources: tuple[SourceFile, ...]
    looked_ns: int
    num_bytes: int
    digests: tuple[bytes, ...]


class StoredPacked(msgspec.Struct, frozen=True):
    """A packed file on disk: its model and its size in bytes."""

    path: Path
    model: str
    num_bytes: int


def packed_directory() -> Path | None:
    """Returns the user's directory of packed files; None for a user without a home directory."""
    return cache_directory("packed")


def stamp_of(path: Path) -> tuple[int, int, int, int]:
    """Returns values that change with the file: inode, size, and times of the last write and change."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def digest_of(path: Path, on_piece: Callable[[], None] = lambda: None) -> bytes:
    """Returns the digest of the file's content; `on_piece` is called after each piece, and may raise to stop."""
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(PIECE_BYTES):
            digest.update(chunk)
            on_piece()
    return digest.digest()


def open_packed(path: Path) -> int | None:
    """Returns a file descriptor for reading; None if the file is missing or another user could have written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if is_ours_alone(os.fstat(descriptor)):
        return descriptor
    os.close(descriptor)
    return None


def read_label(descriptor: int) -> Label | None:
    """Returns the file's label if its digest matches; otherwise None."""
    size = os.fstat(descriptor).st_size
    footer = os.pread(descriptor, _FOOTER_BYTES, max(size - _FOOTER_BYTES, 0))
    if len(footer) != _FOOTER_BYTES or not footer.endswith(_MAGIC):
        return None
    digest, length = footer[:-16], int.from_bytes(footer[-16:-8], "little")
    start = size - _FOOTER_BYTES - length
    if not 0 < length <= _MAX_LABEL_BYTES or start < 0:
        return None
    text = os.pread(descriptor, length, start)
    if xxhash.xxh3_128(text).digest() != digest:
        return None
    try:
        label = msgspec.msgpack.decode(text, type=Label)
    except msgspec.DecodeError:
        return None
    return label if label.num_bytes == start else None


def footer_of(label: Label) -> bytes:
    """Returns the end of a packed file: the encoded label and its digest."""
    text = msgspec.msgpack.encode(label)
    return text + xxhash.xxh3_128(text).digest() + len(text).to_bytes(8, "little") + _MAGIC


def read_whole(descriptor: int, label: Label) -> tuple[bool, int]:
    """Returns whether the digests of all pieces match, and how many bytes the system maps in huge pages."""
    if label.num_bytes == 0 or len(label.digests) != -(-label.num_bytes // PIECE_BYTES):
        return False, 0
    before = _huge_bytes()
    with mmap.mmap(descriptor, label.num_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # only a hint
                mapped.madvise(mmap.MADV_HUGEPAGE)

        def holds(index: int) -> bool:
            start = index * PIECE_BYTES
            with memoryview(mapped) as view, view[start : start + PIECE_BYTES] as piece:
                return xxhash.xxh3_128(piece).digest() == label.digests[index]

        with ThreadPoolExecutor(min(available_cpus(), _MAX_THREADS)) as threads:
            is_whole = all(threads.map(holds, range(len(label.digests))))
        return is_whole, _huge_bytes() - before


def has_huge_pages() -> bool:
    """True if the system gives huge pages to memory that requests them."""
    with suppress(OSError):
        return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    return False


def _huge_bytes() -> int:
    """Returns the bytes of files that this process maps in huge pages."""
    with suppress(OSError), open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("FilePmdMapped:"):
                return int(line.split()[1]) << 10
    return 0


def all_packed(directory: Path | None) -> Iterator[StoredPacked]:
    """Yields the packed files, least recently used first, without a check of their content."""
    for _, path in [] if directory is None else sorted(_used(directory)):
        descriptor = open_packed(path)
        if descriptor is None:
            continue
        try:
            label, size = read_label(descriptor), os.fstat(descriptor).st_size
        except OSError:  # a disk error
            continue
        finally:
            os.close(descriptor)
        model = "(damaged)" if label is None else label.model
        yield StoredPacked(path, model, size)


def _used(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yields each file with the time of its last use; skips files that were just removed, and broken links."""
    for path in directory.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            yield path.stat().st_mtime_ns, path


def refusal_of(directory: Path, num_bytes: int, max_bytes: int) -> str | None:
    """Returns why a file of this size must not be written; None if it may be written."""
    needs = f"{format_bytes(num_bytes)} of packed weights are not kept for the next start"
    if num_bytes > max_bytes:
        return f"{needs}: --packed-cache-bytes is {format_bytes(max_bytes)}"
    free = shutil.disk_usage(directory).free
    if num_bytes * _FREE_PARTS > free:
        return f"{needs}: the disk of {directory} has {format_bytes(free)} left"
    return None


def make_room(directory: Path, num_bytes: int, max_bytes: int) -> None:
    """Removes unfinished files, and least recently used files until there is space for `num_bytes` more."""
    for path in directory.glob(f"{_UNFINISHED}*"):
        with suppress(OSError), path.open("rb") as file:
            # Fails while another process writes the file.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    there = list(all_packed(directory))
    excess = sum(one.num_bytes for one in there) + num_bytes - max_bytes
    for one in there:
        if excess <= 0:
            break
        one.path.unlink(missing_ok=True)
        excess -= one.num_bytes


def create_unfinished(directory: Path) -> tuple[int, Path]:
    """Creates and locks a file for writing; returns its descriptor and its temporary name."""
    path = directory / f"{_UNFINISHED}{os.getpid()}-{os.urandom(8).hex()}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor, path
