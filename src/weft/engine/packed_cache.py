"""`PackedCache`: packed weights that outlive the process that packed them, for the next that computes with them."""

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

from weft.compute.backend import PackedFile, PackedParts, SharingBackend
from weft.compute.backends import backend_of
from weft.compute.runner import Runner
from weft.core.config import EngineConfig
from weft.core.readable import format_bytes
from weft.engine import packed_files
from weft.engine.packed_files import Label, SourceFile
from weft.model.checkpoint import Checkpoint

T = TypeVar("T")

log = logging.getLogger("weft.engine")

# Smaller models are packed in less time than it takes to look.
_LEAST_BYTES = 64 << 20
# A file that changes twice within a tick of its disk's clock shows one time for both.
_CLOCK_TICK_NS = 2_000_000_000
_DELAY_S = 2.0  # the first answers come first
_LAZINESS = 19
_WRITE_BYTES = 8 << 20
_SYNC_BYTES = 64 << 20  # what waits for a disk stays little
_HUGE_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The weights of these files, packed as the key says."""

    key: str
    model: str
    paths: tuple[Path, ...]

    @property
    def name(self) -> str:
        text = repr((self.key, [str(path) for path in self.paths]))
        return sha256(text.encode()).hexdigest()[:32] + packed_files.SUFFIX


class PackedCache:
    """A directory of them. No start fails by it: what cannot be read is packed, what cannot be written is not kept."""

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
        """The user's, if it is wanted."""
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
        """What `load` makes of the packed file that is kept; of none, and then that is kept for the next time."""
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
        """Keep nothing of what is being written, and hold nothing of its memory."""
        if self._keeping is not None:
            thread, is_stopped = self._keeping
            is_stopped.set()
            thread.join()
            self._keeping = None
            atexit.unregister(self.stop)

    def wait(self) -> None:
        """Until what is being written is there."""
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
        # Until it is written it is the caller's alone, and may go.
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
    """Nobody wants it any more."""


@dataclass(frozen=True, slots=True)
class _Keeper:
    """Writes one file, beside whatever else this process does."""

    directory: Path
    max_bytes: int
    wanted: _Wanted
    stamps: Sequence[tuple[int, ...]]
    is_stopped: threading.Event

    def keep(self, parts: Sequence[memoryview]) -> None:
        """Write them, unless there is no room; whole, or not at all."""
        with suppress(OSError):  # its time is for what else is to be done
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
        """The checkpoint's files, which are still those that were packed; None: they are not."""
        found = [(path, packed_files.stamp_of(path)) for path in self.wanted.paths]
        latest = max(max(stamp[2:]) for _, stamp in found)
        # A change that comes now is to show another time than the one before.
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
    """Digests of pieces of one length, of bytes that come in others."""

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
    """The file, unless weights are to be packed anew; the log says why."""
    try:
        file = _checked(descriptor, wanted)
    except OSError as error:  # of its disk
        log.warning("%s: %s; weights are packed anew", path, error)
        return None
    if file is None:
        log.info("%s: other weights, or damaged; they are packed anew", path)
        return None
    log.info("weights: packed ones of %s", path)
    with suppress(OSError):  # the time of its last use
        os.utime(path)
    return file


def _checked(descriptor: int, wanted: _Wanted) -> PackedFile | None:
    """The file, where it holds these weights to the bit."""
    label = packed_files.read_label(descriptor)
    if label is None or label.key != wanted.key or not _are_sources(label, wanted.paths):
        return None
    is_whole, num_huge_bytes = packed_files.read_whole(descriptor, label)
    if not is_whole:
        return None
    # A map in small pages is read at 0.9 of the speed, and a copy made in a tenth of the time of packing.
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
    """What is stored, in a file in memory too, for those that map that one."""
    os.ftruncate(file.descriptor, 0)
    at, size = 0, os.fstat(stored.descriptor).st_size
    os.lseek(file.descriptor, 0, os.SEEK_SET)
    while at < size:
        sent = os.sendfile(file.descriptor, stored.descriptor, at, size - at)
        if sent == 0:
            raise OSError("a packed file has become shorter")
        at += sent
    return replace(file, is_published=True)
