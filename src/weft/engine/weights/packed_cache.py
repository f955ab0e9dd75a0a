"""`PackedCache`: stores packed weights on disk, so that the next process with the same model need not pack them."""

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec
import xxhash

from weft.compute.backends import backend_of
from weft.compute.protocols.backend import PackedFile, PackedParts, SharingBackend
from weft.compute.protocols.runner import Runner
from weft.core.config.engine import EngineConfig
from weft.core.observe.readable import format_bytes
from weft.engine.weights import packed_files
from weft.engine.weights.packed_files import Label, SourceFile
from weft.model.files.checkpoint import Checkpoint

T = TypeVar("T")

log = logging.getLogger("weft.engine")

# Smaller models are packed faster than a cached file is checked.
_LEAST_BYTES = 64 << 20
# A file that changes twice within one tick of the disk's clock has the same time for both changes.
_CLOCK_TICK_NS = 2_000_000_000
_DELAY_S = 2.0  # writing starts later, so that it does not slow down the first answers
_LAZINESS = 19
_WRITE_BYTES = 8 << 20
_SYNC_BYTES = 64 << 20  # limit of the data that waits for the disk
_HUGE_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Identifies packed weights: the source files, and a key of everything else that determines the packed weights."""

    key: str
    model: str
    paths: tuple[Path, ...]

    @property
    def name(self) -> str:
        text = repr((self.key, [str(path) for path in self.paths]))
        return sha256(text.encode()).hexdigest()[:32] + packed_files.SUFFIX


class PackedCache:
    """A directory of packed weights. The cache never makes a start fail.

    Weights that cannot be read are packed again, and a failed write is skipped.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        *,
        least_bytes: int = _LEAST_BYTES,
        delay_s: float = _DELAY_S,
    ) -> None:
        self._directory, self._max_bytes = directory, max_bytes
        self._least_bytes, self._delay_s = least_bytes, delay_s
        self._keeping: tuple[threading.Thread, threading.Event] | None = None

    @classmethod
    def of(cls, config: EngineConfig) -> "PackedCache | None":
        """Returns the cache of this user; None if the cache is switched off."""
        max_bytes, directory = (
            config.model_config.packed_cache_bytes,
            packed_files.packed_directory(),
        )
        if max_bytes == 0 or directory is None or config.compute_config is None:
            return None
        return cls(directory, max_bytes)

    def load(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        load: Callable[[PackedFile | None], tuple[Runner, T]],
    ) -> tuple[Runner, T]:
        """Returns the result of `load` for the cached file.

        Without a cached file, returns `load(None)` and writes the packed weights to the cache for the next start.
        """
        wanted = self._wanted(checkpoint, config)
        if wanted is None:
            return load(None)
        stamps = _stamps(wanted.paths)  # first: a file may change while it is read
        with self._found(wanted) as file:
            loaded = load(file)
        if file is None:
            self._keep(wanted, stamps, loaded[0])
        return loaded

    def stop(self) -> None:
        """Cancels a write that is in progress, and frees its references to the weights."""
        if self._keeping is not None:
            thread, is_stopped = self._keeping
            is_stopped.set()
            thread.join()
            self._keeping = None
            atexit.unregister(self.stop)

    def wait(self) -> None:
        """Waits until a write in progress is finished."""
        if self._keeping is not None:
            self._keeping[0].join()

    def _wanted(self, checkpoint: Checkpoint, config: EngineConfig) -> _Wanted | None:
        backend, compute = backend_of(config), config.compute_config
        assert compute is not None
        if not isinstance(backend, SharingBackend) or not checkpoint.weight_files:
            return None
        if backend.sized(checkpoint, compute).card.weight_bytes < self._least_bytes:
            return None
        model = config.model_config
        how = msgspec.structs.replace(compute, num_threads=1)
        key = (backend.packing(), checkpoint.card.dtype, how, checkpoint.spec, checkpoint.groups)
        paths = tuple(path.resolve() for path in checkpoint.weight_files)
        return _Wanted(repr(key), model.model, paths)

    @contextmanager
    def _found(self, wanted: _Wanted) -> Iterator[PackedFile | None]:
        path = self._directory / wanted.name
        descriptor = packed_files.open_packed(path)
        if descriptor is None:
            yield None
            return
        try:
            yield _read(descriptor, wanted, path)
        finally:
            os.close(descriptor)

    def _keep(self, wanted: _Wanted, stamps: Sequence[tuple[int, ...]], runner: Runner) -> None:
        if not isinstance(runner, PackedParts):
            return
        self.stop()
        is_stopped = threading.Event()
        # A weak reference: the caller may free the runner before it is written.
        held = weakref.ref(runner)
        keep = _Keeper(self._directory, self._max_bytes, wanted, stamps, is_stopped).keep

        def run() -> None:
            if not is_stopped.wait(self._delay_s) and (runner := held()) is not None:
                keep(runner.packed_parts())

        thread = threading.Thread(target=run, name="weft-packed", daemon=True)
        self._keeping = thread, is_stopped
        thread.start()
        atexit.register(self.stop)


class _Stopped(Exception):
    """The write of a cache file was cancelled."""


@dataclass(frozen=True, slots=True)
class _Keeper:
    """Writes one cache file in the background."""

    directory: Path
    max_bytes: int
    wanted: _Wanted
    stamps: Sequence[tuple[int, ...]]
    is_stopped: threading.Event

    def keep(self, parts: Sequence[memoryview]) -> None:
        """Writes the parts as one file, completely or not at all; skips the file if the disk has too little space."""
        with suppress(OSError):  # runs at low priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LAZINESS)
        num_bytes = sum(part.nbytes for part in parts)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            refusal = packed_files.refusal_of(self.directory, num_bytes, self.max_bytes)
            if refusal is not None:
                log.info("%s", refusal)
                return
            packed_files.make_room(self.directory, num_bytes, self.max_bytes)
            sources = self._sources()
            if sources is not None:
                self._write(parts, num_bytes, sources)
        except _Stopped:
            pass
        except OSError as error:
            log.info("packed weights are not kept in %s: %s", self.directory, error)

    def _sources(self) -> tuple[SourceFile, ...] | None:
        """Returns the checkpoint's files with digests; None if the files changed since they were packed."""
        found = [(path, packed_files.stamp_of(path)) for path in self.wanted.paths]
        latest = max(max(stamp[2:]) for _, stamp in found)
        # After this pause, a later change of a file has another time than the change before.
        self._sleep((latest + _CLOCK_TICK_NS - time.time_ns()) / 1e9)
        sources = tuple(
            SourceFile(str(path), stamp, packed_files.digest_of(path, self._check))
            for path, stamp in found
        )
        is_same = [stamp for _, stamp in found] == list(self.stamps) == _stamps(self.wanted.paths)
        return sources if is_same else None

    def _write(
        self, parts: Sequence[memoryview], num_bytes: int, sources: tuple[SourceFile, ...]
    ) -> None:
        descriptor, unfinished = packed_files.create_unfinished(self.directory)
        try:
            digests = _Pieces()
            at = 0
            for part in parts:
                for start in range(0, part.nbytes, _WRITE_BYTES):
                    self._check()
                    piece = part[start : start + _WRITE_BYTES]
                    _write_all(descriptor, piece)
                    digests.add(piece)
                    at += piece.nbytes
                    if at % _SYNC_BYTES < _WRITE_BYTES:
                        os.fdatasync(descriptor)
            wanted = self.wanted
            label = Label(
                key=wanted.key,
                model=wanted.model,
                sources=sources,
                looked_ns=time.time_ns(),
                num_bytes=num_bytes,
                digests=digests.all(),
            )
            _write_all(descriptor, memoryview(packed_files.footer_of(label)))
            os.fsync(descriptor)
            unfinished.rename(self.directory / wanted.name)
            log.info(
                "weights: %s packed in %s for the next start",
                format_bytes(num_bytes),
                self.directory,
            )
        finally:
            unfinished.unlink(missing_ok=True)
            os.close(descriptor)

    def _check(self) -> None:
        if self.is_stopped.is_set():
            raise _Stopped

    def _sleep(self, seconds: float) -> None:
        if self.is_stopped.wait(max(0.0, min(seconds, _CLOCK_TICK_NS / 1e9))):
            raise _Stopped


class _Pieces:
    """Computes digests of pieces of fixed length, from data that arrives in other lengths."""

    def __init__(self) -> None:
        self._done: list[bytes] = []
        self._digest, self._left = xxhash.xxh3_128(), packed_files.PIECE_BYTES

    def add(self, data: memoryview) -> None:
        while data.nbytes:
            taken = data[: self._left]
            self._digest.update(taken)
            self._left -= taken.nbytes
            data = data[taken.nbytes :]
            if self._left == 0:
                self._end()

    def all(self) -> tuple[bytes, ...]:
        if self._left < packed_files.PIECE_BYTES:
            self._end()
        return tuple(self._done)

    def _end(self) -> None:
        self._done.append(self._digest.digest())
        self._digest, self._left = xxhash.xxh3_128(), packed_files.PIECE_BYTES


def _read(descriptor: int, wanted: _Wanted, path: Path) -> PackedFile | None:
    """Returns the packed file; None if the weights must be packed again, with the reason in the log."""
    try:
        file = _checked(descriptor, wanted)
    except OSError as error:  # a disk error
        log.warning("%s: %s; the weights are packed again", path, error)
        return None
    if file is None:
        log.info("%s is damaged or has other weights; the weights are packed again", path)
        return None
    log.info("weights: using packed weights from %s", path)
    with suppress(OSError):  # records the last use
        os.utime(path)
    return file


def _checked(descriptor: int, wanted: _Wanted) -> PackedFile | None:
    """Returns the packed file if it contains exactly the wanted weights, else None."""
    label = packed_files.read_label(descriptor)
    if label is None or label.key != wanted.key or not _are_sources(label, wanted.paths):
        return None
    is_whole, num_huge_bytes = packed_files.read_whole(descriptor, label)
    if not is_whole:
        return None
    # Reading mapped memory with small pages reaches 0.9 of the speed; copying takes a tenth of the time of packing.
    is_small = num_huge_bytes < _HUGE_SHARE * label.num_bytes
    is_copied = is_small and packed_files.has_huge_pages()
    return PackedFile(descriptor, is_published=True, is_copied=is_copied)


def _are_sources(label: Label, paths: Sequence[Path]) -> bool:
    if [source.path for source in label.sources] != [str(path) for path in paths]:
        return False
    for source, path in zip(label.sources, paths, strict=True):
        stamp = packed_files.stamp_of(path)
        is_certain = source.changed_ns + _CLOCK_TICK_NS <= label.looked_ns
        if stamp == source.stamp and is_certain:
            continue
        if stamp[1] != source.stamp[1] or packed_files.digest_of(path) != source.digest:
            return False
    return True


def _stamps(paths: Sequence[Path]) -> list[tuple[int, ...]]:
    return [packed_files.stamp_of(path) for path in paths]


def _write_all(descriptor: int, data: memoryview) -> None:
    while data.nbytes:
        data = data[os.write(descriptor, data) :]


def copied(stored: PackedFile, file: PackedFile) -> PackedFile:
    """Copies the stored weights into an in-memory file, and returns it for engines that map that file."""
    os.ftruncate(file.descriptor, 0)
    at, size = 0, os.fstat(stored.descriptor).st_size
    os.lseek(file.descriptor, 0, os.SEEK_SET)
    while at < size:
        sent = os.sendfile(file.descriptor, stored.descriptor, at, size - at)
        if sent == 0:
            raise OSError("a packed file has become shorter")
        at += sent
    return replace(file, is_published=True)
