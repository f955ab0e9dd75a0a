"""Paths to endpoints, by the path as it came over the wire: nothing is decoded or tidied before the match."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from weft.core.errors import ConfigError
from weft.web.http.endpoint import Access, Dialect, Endpoint
from weft.web.http.problem import HttpError

_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")
_ANTHROPIC_PREFIX = b"/v1/messages"


@dataclass(frozen=True, slots=True)
class Found:
    """An endpoint and what its path holds."""

    endpoint: Endpoint
    path_parameters: Mapping[str, str]


class Router:
    """`{name}` in a path is one segment, `{name:path}` all that is left."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self._methods_by_path: dict[bytes, dict[str, Endpoint]] = {}
        patterns: dict[str, dict[str, Endpoint]] = {}
        for endpoint in self.endpoints:
            if "{" in endpoint.path:
                methods = patterns.setdefault(endpoint.path, {})
            else:
                methods = self._methods_by_path.setdefault(endpoint.path.encode(), {})
            if endpoint.method in methods:
                raise ConfigError(f"{endpoint.method} {endpoint.path} is there twice")
            methods[endpoint.method] = endpoint
        self._patterns = [(_to_pattern(path), methods) for path, methods in patterns.items()]
        self._open_paths = frozenset(
            endpoint.path.encode() for endpoint in self.endpoints if endpoint.access is Access.OPEN
        )

    def is_open(self, raw_path: bytes) -> bool:
        """Whether anybody may ask for exactly this path."""
        return raw_path in self._open_paths

    def find(self, method: str, raw_path: bytes) -> Found:
        """The endpoint; 404 for an unknown path and 405 for a known one with another method."""
        methods = self._methods_by_path.get(raw_path)
        parameters: dict[str, str] = {}
        if methods is None:
            methods, parameters = self._match(raw_path)
        endpoint = methods.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = sorted(methods | ({"HEAD": None} if "GET" in methods else {}))
            raise HttpError(
                405,
                f"this path takes {', '.join(allowed)}, not {method}",
                headers={"allow": ", ".join(allowed)},
            )
        return Found(endpoint, parameters)

    def _match(self, raw_path: bytes) -> tuple[dict[str, Endpoint], dict[str, str]]:
        for pattern, methods in self._patterns:
            if match := pattern.fullmatch(raw_path):
                return methods, {name: _text(value) for name, value in match.groupdict().items()}
        raise HttpError(404, "there is nothing at this path; /openapi.json lists what there is")


def dialect_of(raw_path: bytes) -> Dialect:
    """Whose error objects a path answers with when it leads to no endpoint."""
    is_anthropic = raw_path.startswith(_ANTHROPIC_PREFIX)
    return Dialect.ANTHROPIC if is_anthropic else Dialect.OPENAI


def _to_pattern(path: str) -> re.Pattern[bytes]:
    text = ""
    position = 0
    for parameter in _PARAMETER.finditer(path):
        text += re.escape(path[position : parameter.start()])
        text += f"(?P<{parameter[1]}>{'.+' if parameter[2] else '[^/]+'})"
        position = parameter.end()
    return re.compile((text + re.escape(path[position:])).encode())


def _text(value: bytes) -> str:
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise HttpError(404, "there is nothing at this path: it is not UTF-8") from None
