"""Header of a GGUF file: metadata, and the location of each tensor.

The file is untrusted: every count, length and offset is checked against the file's size before it is used.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from weft.core.errors import ConfigError
from weft.model.fields import POINTER_BYTES, refuse_pointer, regular_size, shown
from weft.model.files.safetensors_files import StoredTensor
from weft.model.gguf.blocks import TYPES, UNREAD_TYPES, BlockType

_VERSIONS = (2, 3)
# Metadata of models in use, vocabulary included, has about 15 MB, and 600,000 strings in its lists.
_MAX_HEADER_BYTES = 128 << 20
_MAX_ITEMS = 8 << 20  # maximum number of items in all lists together
_MAX_KEYS = 4096
_MAX_TENSORS = 50_000
_MAX_DIMENSIONS = 4
_MAX_NAME_BYTES = 65_535
_ALIGNMENT, _MAX_ALIGNMENT = 32, 1 << 20
_SCALARS = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", None, None, "<u8", "<i8", "<f8")
_STRING, _LIST = 8, 9
_LENGTH = struct.Struct("<Q")  # length of a string, stored before it


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file. `shape` has the rows first, as everywhere in Weft; GGUF files have the rows last."""

    path: Path
    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset: int

    @property
    def num_elements(self) -> int:
        """Number of weights."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def num_bytes(self) -> int:
        """Size in the file in bytes."""
        return self.num_elements // self.type.num_weights * self.type.num_bytes

    @property
    def as_floats(self) -> StoredTensor:
        """The tensor as a `StoredTensor`, for float types."""
        assert self.type.dtype is not None
        return StoredTensor(self.path, self.type.dtype, self.shape, self.offset)


@dataclass(frozen=True, slots=True)
class Header:
    """Header of one file; metadata values have JSON types."""

    metadata: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]


def read_header(path: Path) -> Header:
    """Returns the checked header of a file; raises `ConfigError` for a malformed file."""
    try:
        size = regular_size(path)
        if size < len(b"GGUF"):
            raise ConfigError(
                f"{path}: has {size} bytes; a GGUF file begins with GGUF and its version"
            )
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            refuse_pointer(path, data[:POINTER_BYTES])
            return _Reader(path, data, size).header()
    except FileNotFoundError:
        raise ConfigError(f"{path}: the file does not exist") from None
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read ({err.strerror or err})") from err


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path = path
        self._data = data
        self._size = size
        self._at = 0
        self._num_items = 0

    def header(self) -> Header:
        if self._data[: self._take(4)] != b"GGUF":
            raise ConfigError(f"{self._path}: is not a GGUF file: it does not begin with GGUF")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise ConfigError(
                f"{self._path}: GGUF version {version}; supported are little-endian files of version "
                f"{' and '.join(map(str, _VERSIONS))}"
            )
        num_tensors = self._count("tensors", _MAX_TENSORS)
        num_keys = self._count("keys", _MAX_KEYS)
        metadata: dict[str, object] = {}
        for _ in range(num_keys):
            key = self._name("a key")
            if key in metadata:
                raise ConfigError(f"{self._path}: key {shown(key)} appears twice")
            metadata[key] = self._value(key, self._number("<I"))
        return Header(MappingProxyType(metadata), self._tensors(num_tensors, metadata))

    def _tensors(self, count: int, metadata: Mapping[str, object]) -> Mapping[str, GgufTensor]:
        described = [self._described() for _ in range(count)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if (
            type(alignment) is not int
            or not 8 <= alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise ConfigError(
                f"{self._path}: general.alignment is {shown(alignment)}; it must be a power of two from 8 to "
                f"{_MAX_ALIGNMENT}"
            )
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, kind, shape, offset in described:
            if name in tensors:
                raise ConfigError(f"{self._path}: tensor {shown(name)} appears twice")
            if offset % alignment:
                raise ConfigError(
                    f"{self._path}: tensor {shown(name)} lies at {offset}, which is not a multiple of "
                    f"{alignment}"
                )
            tensors[name] = GgufTensor(self._path, name, kind, shape, start + offset)
        self._check_places(tensors)
        return MappingProxyType(tensors)

    def _check_places(self, tensors: Mapping[str, GgufTensor]) -> None:
        end, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda one: one.offset):
            if tensor.offset < end:
                raise ConfigError(
                    f"{self._path}: tensor {shown(tensor.name)} begins within {shown(before)}"
                )
            end, before = tensor.offset + tensor.num_bytes, tensor.name
            if end > self._size:
                raise ConfigError(
                    f"{self._path}: tensor {shown(tensor.name)} ends at byte {end}; the file has {self._size}: "
                    "is it cut off?"
                )

    def _described(self) -> tuple[str, BlockType, tuple[int, ...], int]:
        name = self._name("a tensor's name")
        num_dimensions = self._number("<I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise ConfigError(
                f"{self._path}: tensor {shown(name)} has {num_dimensions} dimensions; 1 to "
                f"{_MAX_DIMENSIONS} are possible"
            )
        shape = tuple(self._number("<Q") for _ in range(num_dimensions))[::-1]
        kind, offset = self._type(name, self._number("<I")), self._number("<Q")
        if not all(shape) or shape[-1] % kind.num_weights:
            raise ConfigError(
                f"{self._path}: tensor {shown(name)} has the shape {list(shape)}; as {kind.name} its rows "
                f"must be whole blocks of {kind.num_weights}"
            )
        return name, kind, shape, offset

    def _type(self, name: str, number: int) -> BlockType:
        if number not in TYPES:
            known = UNREAD_TYPES.get(number, f"number {number}")
            raise ConfigError(
                f"{self._path}: tensor {shown(name)} is of type {known}; supported are "
                + ", ".join(kind.name for kind in TYPES.values())
            )
        return TYPES[number]

    def _value(self, key: str, kind: int) -> object:
        if kind == _STRING:
            return self._text(key)
        if kind == _LIST:
            return self._list(key)
        return self._numbers(key, kind, 1)[0]

    def _list(self, key: str) -> list[object]:
        kind, count = self._number("<I"), self._number("<Q")
        self._num_items += count
        if self._num_items > _MAX_ITEMS:
            raise ConfigError(
                f"{self._path}: {shown(key)} has {count} items; at most {_MAX_ITEMS} are read of all lists"
            )
        if kind == _STRING:
            return self._texts(key, count)
        return self._numbers(key, kind, count)

    def _numbers(self, key: str, kind: int, count: int) -> list[object]:
        dtype = _SCALARS[kind] if kind < len(_SCALARS) else None
        if dtype is None:
            raise ConfigError(
                f"{self._path}: {shown(key)} has values of type {kind}, which GGUF does not have there"
            )
        end = self._take(count * np.dtype(dtype).itemsize)
        return list(
            np.frombuffer(self._data[end - count * np.dtype(dtype).itemsize : end], dtype).tolist()
        )

    def _name(self, what: str) -> str:
        length = self._number("<Q")
        if not 0 < length <= _MAX_NAME_BYTES:
            raise ConfigError(
                f"{self._path}: {what} has {length} bytes; 1 to {_MAX_NAME_BYTES} are possible"
            )
        return self._decoded(what, length)

    def _text(self, key: str) -> str:
        return self._decoded(key, self._number("<Q"))

    def _texts(self, key: str, count: int) -> list[object]:
        """Returns `count` strings like `_text`, with minimal work per string, because strings are most of a header."""
        data, end, read = self._data, min(self._size, _MAX_HEADER_BYTES), _LENGTH.unpack_from
        texts: list[object] = []
        at = self._at
        try:
            for _ in range(count):
                start = at + _LENGTH.size
                at = start + (read(data, at)[0] if start <= end else 0)
                if at > end:
                    break
                texts.append(data[start:at].decode())
        except UnicodeDecodeError as err:
            raise self._no_text(key, err) from err
        self._take(at - self._at)
        return texts

    def _decoded(self, what: str, length: int) -> str:
        end = self._take(length)
        try:
            return self._data[end - length : end].decode()
        except UnicodeDecodeError as err:
            raise self._no_text(what, err) from err

    def _no_text(self, what: str, err: UnicodeDecodeError) -> ConfigError:
        return ConfigError(f"{self._path}: {shown(what)} is not UTF-8 text (byte {err.start})")

    def _count(self, what: str, most: int) -> int:
        count = self._number("<Q")
        if count > most:
            raise ConfigError(f"{self._path}: names {count} {what}; at most {most} are read")
        return count

    def _number(self, form: str) -> int:
        size = struct.calcsize(form)
        return int(struct.unpack_from(form, self._data, self._take(size) - size)[0])

    def _take(self, num_bytes: int) -> int:
        """Advances by this many bytes, checks that the file has them, and returns the new position."""
        self._at += num_bytes
        if self._at > min(self._size, _MAX_HEADER_BYTES):
            limit = (
                f"the file has {self._size}: is it cut off?"
                if self._at > self._size
                else f"at most {_MAX_HEADER_BYTES} are read"
            )
            raise ConfigError(f"{self._path}: its metadata extends to byte {self._at}; {limit}")
        return self._at
