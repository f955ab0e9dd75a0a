"""Converts YAML or JSON documents to checked values. Every error names the path of the wrong key."""

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
import yaml

from weft.core.checks.allowed import explain
from weft.core.errors import ConfigError

MAX_DOCUMENT_BYTES = 1 << 20
MAX_NODES = 200_000  # aliases can make a huge document of a small file
MAX_DEPTH = 64

_T = TypeVar("_T")
_WHERE = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<key>.*)`$", re.DOTALL)


class _Loader(yaml.SafeLoader):
    """Loader of YAML's safe subset. A duplicate key is an error, and dates stay text, as in JSON."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _at(key_node, f"keys must be strings, got {key!r}")
            if key in seen:
                raise _at(key_node, f"key {key!r} appears twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_documents(text: str, source: str) -> list[Any]:
    """Returns every document of a YAML or JSON text as plain values; all numbers are finite."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise ConfigError(f"{source}: larger than {MAX_DOCUMENT_BYTES} bytes")
    documents = []
    try:
        loader = _Loader(text)
        try:
            while loader.check_data():  # type: ignore[no-untyped-call]
                documents.append(loader.get_data())
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise ConfigError(f"{source}: not valid YAML: {_one_line(error)}") from error
    for document in documents:
        _Plain(source).check(document, "", 0)
    return documents


def parse_document(text: str, source: str) -> Any:
    """Returns the only document of a text. Raises `ConfigError` unless there is exactly one."""
    documents = [document for document in parse_documents(text, source) if document is not None]
    if len(documents) != 1:
        raise ConfigError(f"{source}: expected one document, found {len(documents)}")
    return documents[0]


def decode(value: Any, into: type[_T], path: str) -> _T:
    """Converts plain values to `into`, a Struct type that forbids unknown keys."""
    try:
        return msgspec.convert(value, into)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(explain(error, into), into, path)) from error


def join(path: str, rest: str) -> str:
    """Joins two parts of a key's path."""
    rest = rest.removeprefix(".")
    if not path or not rest:
        return path or rest
    return path + rest if rest.startswith("[") else f"{path}.{rest}"


def _explain(message: str, into: type, path: str) -> str:
    where = _WHERE.search(message)
    if where:
        message = message[: where.start()]
        path = join(path, where["path"])
    unknown = _UNKNOWN.match(message)
    if not unknown:
        return f"{path or 'the document'}: {message[:1].lower()}{message[1:]}"
    key = unknown["key"]
    allowed = [] if where else list(getattr(into, "__struct_encode_fields__", ()))
    close = get_close_matches(key, allowed, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listed = f"; allowed: {', '.join(allowed) or 'none'}" if not where and not close else ""
    return f"{join(path, key or '(empty)')}: unknown key{hint}{listed}"


class _Plain:
    """Checks that a document contains only values that JSON has."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._num_nodes = 0

    def check(self, value: Any, path: str, depth: int) -> None:
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ConfigError(f"{self._source}: too large or too deep once aliases are expanded")
        if isinstance(value, Mapping):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ConfigError(f"{join(path, str(key))}: keys must be strings")
                self._check_text(key, path)
                self.check(item, join(path, key or "(empty)"), depth + 1)
        elif isinstance(value, list):
            for i, item in enumerate(value):
                self.check(item, f"{path}[{i}]", depth + 1)
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{path}: must be a finite number, got {value}")
        elif isinstance(value, str):
            self._check_text(value, path)
        elif value is not None and not isinstance(value, bool | int | float):
            raise ConfigError(f"{path}: must be text, a number, a list or a mapping")

    def _check_text(self, text: str, path: str) -> None:
        """Raises an error for a surrogate without its pair, which a YAML escape may spell and no encoding can write."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ConfigError(
                f"{path or self._source}: contains half of a surrogate pair: {text!r}"
            )


def _at(node: yaml.Node, message: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, message, node.start_mark)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
