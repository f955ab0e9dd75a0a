"""What a body asks for beyond its API: refused where that was wished for, else answered with a warning.

Clients of other engines send fields of their own, so unknown ones are ignored as those engines do; but a
misspelt field is one too, and its sender ought to hear of it.
"""

import difflib
import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from weft.core.errors import BadRequest
from weft.web.http.endpoint import Departure, Endpoint

log = logging.getLogger("weft.web")

_MAX_NAME_CHARS = 100
# A caller can make up names, and so lines of the log: after these it gets only its headers.
_MAX_LOGGED = 1000


class Strictness:
    """One server's answer to departures from the APIs; each of them is logged once."""

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._logged: set[tuple[str, str]] = set()

    def judge(self, endpoint: Endpoint, body: bytes, value: Any) -> dict[str, str]:
        """The headers that tell of departures. `BadRequest` names the first where none is taken."""
        found = [*unknown_fields(body, endpoint.body), *endpoint.departures(value)]
        if not found:
            return {}
        if self._is_strict or endpoint.is_strict:
            raise BadRequest(found[0].parameter, found[0].reason)
        for departure in found:
            self._log(endpoint.path, departure)
        # 299: about the request, and to be shown to a person.
        return {"warning": ", ".join(f'299 - "{_quotable(one.reason)}"' for one in found)}

    def _log(self, path: str, departure: Departure) -> None:
        key = (path, departure.parameter)
        if key not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(key)
            log.warning("%s: %s (told once; --strict refuses it)", path, departure.reason)


def unknown_fields(body: bytes, kind: Any) -> Iterable[Departure]:
    """The first field of the object in `body` that a `kind` does not have. Its inner objects are not looked at."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    for name in msgspec.json.decode(body, type=dict[str, msgspec.Raw]):
        if name not in known:
            shown = name[:_MAX_NAME_CHARS]
            yield Departure(shown, f"unknown field {shown!a}{_hint(kind, shown)}")
            return


@lru_cache(maxsize=256)
def _hint(kind: type[msgspec.Struct], name: str) -> str:
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _quotable(text: str) -> str:
    """As a header may hold it between quotes."""
    return text.encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")
