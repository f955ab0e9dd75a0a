"""Tests an untrusted tokenizer.json in a child process before this process uses it.

The library executes what the file says: it may use all memory, hang or abort, and only ending the process stops it.
"""

import hashlib
import json
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import tokenizers

from weft.core.aio.worker import Worker
from weft.core.cache_directory import cache_directory, is_ours_alone
from weft.core.errors import ConfigError

TIME_LIMIT_S: Final = 60.0  # a file of 30 MB takes one to five
_MAX_MEMORY_BYTES: Final = 4 << 30

_sound: set[bytes] = set()  # digests of files that this process has already tested

_WORKER: Final = "weft.model.tokenizers.tokenizer_worker"
# Smaller files are tested in negligible time, so no mark is stored for them.
_LEAST_BYTES: Final = 1 << 20
_MAX_MARKS: Final = 256


def try_out(data: bytes, where: str, *, time_limit_s: float = TIME_LIMIT_S) -> None:
    """Loads, checks and uses the tokenizer in a child process; raises `ConfigError` for a failure.

    Too much time or memory is a failure too. The test bounds the growth of texts, and finds endless loops on common
    texts. It does not find regular expressions that are slow on other texts: limits on texts cover these.
    """
    digest = hashlib.sha256(data).digest()
    if digest in _sound or _has_mark(data):
        _sound.add(digest)
        return
    try:
        line = json.dumps(data.decode()) + "\n"
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: not a valid tokenizer (not UTF-8 text, byte {error.start})"
        ) from error
    setup = {"time_limit_s": time_limit_s, "max_memory_bytes": _MAX_MEMORY_BYTES}
    worker = Worker(_WORKER, json.dumps(setup) + "\n")
    try:
        answer = worker.call(line)
    finally:
        worker.stop()
    if answer is None:
        raise ConfigError(
            f"{where}: not a usable tokenizer (to load it and try it out takes more than "
            f"{time_limit_s:g} s or {_MAX_MEMORY_BYTES >> 30} GiB)"
        )
    if "error" in answer:
        raise ConfigError(f"{where}: not a valid tokenizer ({answer['error']})")
    _sound.add(digest)
    _set_mark(data)


def _mark_of(data: bytes) -> Path | None:
    """Returns the path of an empty file whose existence says that this data passed the test with this library."""
    worker, directory = find_spec(_WORKER), cache_directory("tokenizers")
    if len(data) < _LEAST_BYTES or not (directory and worker and worker.origin):
        return None
    digest = hashlib.sha256(tokenizers.__version__.encode())
    digest.update(hashlib.sha256(Path(worker.origin).read_bytes()).digest())
    digest.update(data)
    return directory / digest.hexdigest()


def _has_mark(data: bytes) -> bool:
    with suppress(OSError):
        mark = _mark_of(data)
        return mark is not None and is_ours_alone(mark.lstat())
    return False


def _set_mark(data: bytes) -> None:
    with suppress(OSError):  # then the next start tries it out again
        mark = _mark_of(data)
        if mark is None:
            return
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        marks = sorted(mark.parent.iterdir(), key=lambda one: one.lstat().st_mtime_ns)
        for former in marks[:-_MAX_MARKS]:
            former.unlink(missing_ok=True)
