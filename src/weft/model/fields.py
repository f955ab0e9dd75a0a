"""Strict readers of untrusted JSON objects: every error names the file, the key and the allowed values."""

import json
import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeGuard

from weft.core.errors import ConfigError

# Far beyond the values of any model, and small enough for float32 computations: the smallest values are epsilons, the
# largest are bases of rotary frequencies.
SMALLEST, LARGEST = 1e-15, 1e15
LARGEST_FACTOR = 1e6
_MAX_SHOWN = 60
# Maximum size of a file: parsed JSON takes about fifty times its size in memory, and a second per 10 MB. The largest
# tokenizer.json in use has about 40 MB; an index has a hundred bytes per tensor.
_MAX_BYTES = 4 << 20
_MAX_BYTES_BY_NAME = {
    "tokenizer.json": 128 << 20,
    "tokenizer_config.json": 16 << 20,
    "vocab.json": 32 << 20,
    "merges.txt": 32 << 20,
    "model.safetensors.index.json": 32 << 20,
}
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
POINTER_BYTES = len(_LFS_POINTER)


def read_bytes(path: Path) -> bytes:
    """Returns the file's content; raises a `ConfigError` if it cannot be read."""
    try:
        size = regular_size(path)
        limit = _MAX_BYTES_BY_NAME.get(path.name, _MAX_BYTES)
        if size > limit:
            raise ConfigError(f"{path}: has {size} bytes; at most {limit} are read")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: the file does not exist") from None
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read ({err.strerror or err})") from err
    refuse_pointer(path, data)
    return data


def refuse_pointer(path: Path, start: bytes) -> None:
    """Raises `ConfigError` if the file is a git-LFS pointer, which a clone without git-LFS contains."""
    if start.startswith(_LFS_POINTER):
        raise ConfigError(
            f"{path}: this is a git-LFS pointer, not the file itself: run `git lfs pull` in {path.parent}"
        )


def regular_size(path: Path) -> int:
    """Returns the size of a regular file.

    Raises `ConfigError` for others: a pipe blocks its reader, a device never ends.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path}: is not a regular file")
    return found.st_size


def parse_object(data: bytes, where: str) -> dict[str, object]:
    """Returns the JSON object in `data`; raises `ConfigError` for duplicate keys, NaN, and other JSON values."""
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except UnicodeDecodeError as err:
        raise ConfigError(f"{where}: not UTF-8 text (byte {err.start})") from err
    except RecursionError:
        raise ConfigError(f"{where}: JSON is nested too deeply") from None
    except ValueError as err:  # covers JSONDecodeError, our own errors and over-long integers
        raise ConfigError(f"{where}: not valid JSON ({err})") from err
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must hold one JSON object, not {_kind(value)}")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {shown(key)} appears twice")
        result[key] = value
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def shown(value: object) -> str:
    """Returns a value as text for messages: quoted, and cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python prints
        return "a huge number"
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def one_line(err: BaseException) -> str:
    """Returns a library's error text on one line, short enough to end a message."""
    return (" ".join(str(err).split()) or type(err).__name__)[:200]


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed access to one JSON object; null counts as absent. `where` begins every error message."""

    values: Mapping[str, object]
    where: str

    def refuse(self, key: str, allowed: str) -> NoReturn:
        """Raises a `ConfigError` that names `key` and the `allowed` values."""
        if self.values.get(key) is None:
            raise ConfigError(f"{self.where}: {key} is missing; it must be {allowed}")
        raise ConfigError(f"{self.where}: {key} is {shown(self.values[key])}; it must be {allowed}")

    def has(self, key: str) -> bool:
        """True if `key` has a value other than null."""
        return self.values.get(key) is not None

    def integer(self, key: str, *, low: int = 1, high: int = 2**31 - 1) -> int:
        """Returns the whole number of `key`; raises `ConfigError` unless it is in [low, high]."""
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(key, f"a whole number from {low} to {high}")
        return value

    def integer_or(self, key: str, default: int, *, low: int = 1, high: int = 2**31 - 1) -> int:
        """Returns the whole number of `key`, like `integer`; `default` if the key is absent."""
        return self.integer(key, low=low, high=high) if self.has(key) else default

    def number(self, key: str, *, low: float = SMALLEST, high: float = LARGEST) -> float:
        """Returns the number of `key`; raises `ConfigError` unless it is in [low, high]."""
        value = self.values.get(key)
        if not is_finite_number(value) or not low <= value <= high:
            self.refuse(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def number_or(
        self, key: str, default: float, *, low: float = SMALLEST, high: float = LARGEST
    ) -> float:
        """Returns the number of `key`, like `number`; `default` if the key is absent."""
        return self.number(key, low=low, high=high) if self.has(key) else default

    def factor(self, key: str) -> float:
        """Returns a number by which other numbers are multiplied or divided."""
        return self.number(key, low=1 / LARGEST_FACTOR, high=LARGEST_FACTOR)

    def factor_or(self, key: str, default: float) -> float:
        """Returns the number of `key`, like `factor`; `default` if the key is absent."""
        return self.factor(key) if self.has(key) else default

    def flag_or(self, key: str, default: bool) -> bool:
        """Returns the boolean of `key`; `default` if the key is absent."""
        value = self.values.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def text(self, key: str) -> str:
        """Returns the text of `key`, which must not be empty."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value:
            self.refuse(key, "text")
        return value

    def object(self, key: str) -> "Fields | None":
        """Returns the nested object of `key`; None if the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(key, "an object")
        return Fields(value, f"{self.where}: {key}")

    def texts(self, key: str) -> tuple[str, ...]:
        """Returns the list of texts of `key`; empty if the key is absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(key, "a list of texts")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Returns the list of numbers of `key`, by which other numbers are multiplied."""
        value = self.values.get(key)
        low, high = 1 / LARGEST_FACTOR, LARGEST_FACTOR
        if not isinstance(value, list) or not all(
            is_finite_number(item) and low <= item <= high for item in value
        ):
            self.refuse(key, f"a list of numbers from {low:g} to {high:g}")
        return tuple(float(item) for item in value)


def read_fields(path: Path) -> Fields:
    """Returns the JSON object in a file as `Fields`."""
    return Fields(parse_object(read_bytes(path), str(path)), str(path))


def is_finite_number(value: object) -> TypeGuard[float]:
    """True if `value` is a JSON number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the range of a float
        return False
