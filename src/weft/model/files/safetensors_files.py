"""Safetensors files: the safetensors library checks the headers, and data is memory-mapped by tensor name."""

import mmap
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from weft.core.errors import ConfigError
from weft.core.panics import panics_as
from weft.model.fields import (
    POINTER_BYTES,
    Fields,
    one_line,
    parse_object,
    read_fields,
    refuse_pointer,
    regular_size,
    shown,
)
from weft.model.weights import BYTES_PER_ELEMENT, FLOAT8, Tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})\.safetensors")
_OF_ADAPTER = "adapter_model.safetensors"
_DTYPES = {
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "F8_E4M3": FLOAT8,
    "I8": "int8",
    "U8": "uint8",
    "I32": "int32",
    "I64": "int64",
}
_STORAGE = {
    "float32": "<f4",
    "bfloat16": "<u2",
    "float16": "<f2",
    FLOAT8: "<u1",
    "int8": "<i1",
    "uint8": "<u1",
    "int32": "<i4",
    "int64": "<i8",
}
# Maximum header size of one file, metadata included; headers of models in use have less than a tenth of it.
_MAX_HEADER_BYTES = 16 << 20
_MAX_TENSORS = 50_000  # of all files together; models of the known families have some thousands
# Counters and masks that old versions of transformers saved with the weights; they are not weights.
_BUFFERS = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    ".attn.bias",
    ".attn.masked_bias",
)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Place of a stored tensor: `offset` bytes after the start of the file `path`."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=object)) if self.shape else 1

    @property
    def num_bytes(self) -> int:
        """Size in the file in bytes."""
        return self.num_elements * BYTES_PER_ELEMENT[self.dtype]


def find_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Returns every tensor of the checkpoint in `directory`, by name; reads only headers."""
    if (directory / SINGLE).exists():
        return read_header(directory / SINGLE)
    if (directory / INDEX).exists():
        return _read_shards(directory, _listed_shards(directory))
    others = weight_files([path.name for path in directory.iterdir()], str(directory))
    if others:
        return _read_shards(directory, others)
    pickles = sorted(p.name for p in directory.iterdir() if p.suffix in PICKLES)
    if pickles:
        raise ConfigError(
            f"{directory}: only {pickles[0]} holds weights, and pickled weights are never loaded; "
            f"convert them to {SINGLE}, as transformers' save_pretrained writes it"
        )
    raise ConfigError(f"{directory}: no weights; {SINGLE} or {INDEX} with its shards must be there")


def weight_files(names: Collection[str], where: str) -> list[str]:
    """Returns the weight files of a directory without the files `SINGLE` and `INDEX`; empty if it has no weights.

    The result is the shards of one series (of "model" if there are several series), or a single file.
    """
    files = sorted(name for name in names if name.endswith(SUFFIX) and name != _OF_ADAPTER)
    series = dict.fromkeys(found.groups() for file in files if (found := _SHARD.fullmatch(file)))
    chosen = [one for one in series if one[0] == "model"] or list(series)
    if len(chosen) == 1:
        stem, count = chosen[0]
        return [f"{stem}-{number:05}-of-{count}{SUFFIX}" for number in range(1, int(count) + 1)]
    if len(files) > 1:
        raise ConfigError(
            f"{where}: neither {SINGLE} nor {INDEX} is there, and {files[0]} and {files[1]} may both hold the "
            f"weights; name the right one {SINGLE}"
        )
    return files


def _listed_shards(directory: Path) -> list[str]:
    index = read_fields(directory / INDEX)
    weight_map = index.object("weight_map")
    if weight_map is None or not weight_map.values:
        index.refuse("weight_map", "an object from tensor name to file name")
    return _shard_names(weight_map)


def _read_shards(directory: Path, shards: list[str]) -> dict[str, StoredTensor]:
    """Returns all tensors of the shards. Only file names are used of an index, which may be older than its shards."""
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        for name, tensor in read_header(directory / shard).items():
            if name in tensors:
                raise ConfigError(
                    f"{directory / shard}: tensor {shown(name)} is also in {tensors[name].path.name}"
                )
            tensors[name] = tensor
        _check_count(len(tensors), str(directory))
    return tensors


def _shard_names(weight_map: Fields) -> list[str]:
    names: set[str] = set()
    for tensor, shard in weight_map.values.items():
        plain = isinstance(shard, str) and Path(shard).name == shard and "\\" not in shard
        if not plain or not str(shard).endswith(".safetensors"):
            raise ConfigError(
                f"{weight_map.where}: tensor {shown(tensor)} is in {shown(shard)}; "
                "it must be a .safetensors file beside the index, without a path"
            )
        names.add(str(shard))
    return sorted(names)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Returns every tensor of one file, by name.

    The library refuses truncation, overlap, overflow and trailing bytes; Weft refuses duplicates.
    """
    try:
        size = regular_size(path)
        with path.open("rb") as file:
            start = file.read(POINTER_BYTES)
            refuse_pointer(path, start)
            file.seek(8)
            length = int.from_bytes(start[:8], "little")
            if _MAX_HEADER_BYTES < length < size:  # a longer header belongs to a truncated file
                raise ConfigError(
                    f"{path}: the header has {length} bytes; at most {_MAX_HEADER_BYTES} are read"
                )
            with panics_as(SafetensorError), safe_open(path, framework="numpy"):
                pass
            header = parse_object(file.read(length), f"{path}: header")
    except SafetensorError as err:
        raise ConfigError(f"{path}: not a valid safetensors file ({one_line(err)})") from err
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read ({err.strerror or err})") from err
    header.pop("__metadata__", None)
    _check_count(len(header), str(path))
    return {
        name: _stored(path, name, entry, 8 + length)
        for name, entry in header.items()
        if not name.endswith(_BUFFERS)
    }


def _check_count(num_tensors: int, where: str) -> None:
    if num_tensors > _MAX_TENSORS:
        raise ConfigError(
            f"{where}: names {num_tensors} tensors or more; at most {_MAX_TENSORS} are read"
        )


def _stored(path: Path, name: str, entry: object, start: int) -> StoredTensor:
    fields = Fields(entry if isinstance(entry, dict) else {}, f"{path}: tensor {shown(name)}")
    dtype = _DTYPES.get(fields.text("dtype"))
    if dtype is None:
        fields.refuse("dtype", "one of " + ", ".join(_DTYPES))
    shape, offsets = fields.values["shape"], fields.values["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list):
        fields.refuse("shape", "a list")
    return StoredTensor(path, dtype, tuple(shape), start + offsets[0])


class MappedFiles:
    """Open memory maps, one per file, which live as long as this object or any array made from it."""

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}

    def read(self, stored: StoredTensor) -> Tensor:
        """Returns the tensor's data, memory-mapped and read-only."""
        try:
            flat: NDArray[Any] = np.frombuffer(
                self._map(stored.path), _STORAGE[stored.dtype], stored.num_elements, stored.offset
            )
        except OSError as err:  # the file changed after its header was read
            raise ConfigError(f"{stored.path}: cannot be read ({err.strerror or err})") from err
        except ValueError as err:
            raise ConfigError(f"{stored.path}: was cut off since its header was read") from err
        return Tensor(stored.dtype, flat.reshape(stored.shape), is_mapped=True)

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[path]
