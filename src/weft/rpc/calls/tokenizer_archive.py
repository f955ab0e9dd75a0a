"""The tokenizer's files as a zip archive with reproducible bytes, split into pieces for the protocol."""

import asyncio
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence

from weft.core.errors import FailedPrecondition, GenerationError
from weft.pb import common_pb2

PIECE_BYTES = 64 * 1024

# Limits of what a client accepts from a server that it does not control.
MAX_FILES = 50
MAX_PACKED_BYTES = 200 * 2**20
MAX_UNPACKED_BYTES = 500 * 2**20

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# Exceptions of the library for a broken archive.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)

# A constant time in each entry's header: the archive's hash is then the same on every server.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


class TokenizerArchive:
    """Packs on first use, off the event loop, and keeps the result."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._lock = asyncio.Lock()
        self._packed: bytes | None = None

    async def packed(self) -> bytes:
        """The archive."""
        async with self._lock:
            if self._packed is None:
                if not self._files:
                    raise FailedPrecondition("the served model has no tokenizer files")
                self._packed = await asyncio.to_thread(pack, self._files)
            return self._packed


def pack(files: Mapping[str, bytes]) -> bytes:
    """A zip of `files`, sorted by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, compresslevel=6)
    return buffer.getvalue()


def to_chunks(packed: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """Splits the archive into pieces; the last piece carries the hash of the whole."""
    last = (len(packed) - 1) // PIECE_BYTES
    digest = hashlib.sha256()  # a piece at a time, because this runs on the event loop
    for number in range(last + 1):
        data = packed[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
        digest.update(data)
        sha256 = digest.hexdigest() if number == last else ""
        yield common_pb2.GetTokenizerChunk(data=data, sha256=sha256)


def unpack(packed: bytes, sha256: str) -> dict[str, bytes]:
    """Unpacks a received archive, after checking its hash, file names, and sizes."""
    if hashlib.sha256(packed).hexdigest() != sha256:
        raise GenerationError("the tokenizer archive is damaged: its SHA-256 does not match")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = archive.infolist()
            _check_entries(entries)
            return {entry.filename: archive.read(entry) for entry in entries}
    except _DAMAGE as error:
        raise GenerationError(f"the tokenizer archive cannot be read: {error}") from error


def _check_entries(entries: Sequence[zipfile.ZipInfo]) -> None:
    names = [entry.filename for entry in entries]
    if len(set(names)) != len(names):
        raise ValueError("a file name occurs twice")
    if any(entry.compress_type not in _METHODS for entry in entries):
        raise ValueError("an entry is packed with an unknown method")
    # The declared sizes can be trusted: reading raises an error if an entry holds more.
    num_bytes = sum(entry.file_size for entry in entries)
    if len(names) > MAX_FILES or num_bytes > MAX_UNPACKED_BYTES:
        raise ValueError(
            f"{len(names)} files of {num_bytes} bytes; at most {MAX_FILES} and "
            f"{MAX_UNPACKED_BYTES} are accepted"
        )
    for name in names:
        if not name or name != name.rsplit("/", 1)[-1].rsplit("\\", 1)[-1] or name in (".", ".."):
            raise ValueError(f"file name {name[:80]!a} is not a plain name")
