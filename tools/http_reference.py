"""The page of all HTTP calls, from the table of endpoints that a server has."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec
from prometheus_client import CollectorRegistry

from tools.markdown import page, table
from weft.web.http.endpoint import Access, Endpoint
from weft.web.http.state import ServerState
from weft.web.routes import all_endpoints

_KEYS = {Access.OPEN: "none", Access.PAGE: "none", Access.API: "API", Access.CONTROL: "control"}
_REFUSED = "Not supported"
_PARAMETER = re.compile(r":path\}")


def http_page() -> str:
    """Returns the page of all calls, with the fields of their bodies."""
    endpoints = all_endpoints(ServerState(CollectorRegistry()))
    parts = []
    for group, several in groupby(endpoints, key=attrgetter("group")):
        parts += [f"## {group}", _calls(group, list(several))]
    return page(
        "HTTP",
        (
            "All calls of `weft serve`, by API. The column *key* says whether a call needs a key of `--api-key` or of "
            "`--control-api-key`. Without API keys, calls that need an API key are open to everyone; without control "
            "keys, calls that need a control key are disabled. Bodies are JSON; those marked *form* are "
            "`multipart/form-data`. Fields that a body must have are in bold type. `/openapi.json` of a server has the "
            "types of all fields and answers, and `/docs` shows them."
        ),
        *parts,
    )


def _calls(group: str, endpoints: Sequence[Endpoint]) -> str:
    if group == _REFUSED:
        columns: tuple[str, ...] = ("call", "answer")
        return table(columns, ((_name(each), each.summary.rstrip(".")) for each in endpoints))
    columns = ("call", "what it does", "key", "fields of the body")
    return table(columns, map(_row, endpoints))


def _row(endpoint: Endpoint) -> Sequence[str]:
    kind = "*form* " if endpoint.is_form else "WebSocket" if endpoint.socket is not None else ""
    fields = ", ".join(_fields(endpoint.body))
    return _name(endpoint), endpoint.summary.rstrip("."), _KEYS[endpoint.access], f"{kind}{fields}"


def _name(endpoint: Endpoint) -> str:
    return f"`{endpoint.method} {_PARAMETER.sub('}', endpoint.path)}`"


def _fields(body: object) -> Iterator[str]:
    """Yields the names of a body's fields, the required ones first."""
    if not (isinstance(body, type) and issubclass(body, msgspec.Struct)):
        return
    fields = msgspec.structs.fields(body)
    for field in fields:
        if field.required:
            yield f"**`{field.encode_name}`**"
    for field in fields:
        if not field.required:
            yield f"`{field.encode_name}`"
