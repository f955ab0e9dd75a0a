"""An endpoint as a value: its route, types of body and answer, access, and handler.

The server, the errors, `/openapi.json` and the tests are all derived from these values.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from inspect import getdoc
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from starlette.responses import Response

from weft.web.served import Served


class Access(Enum):
    """Callers that an endpoint accepts."""

    OPEN = "open"  # everyone: probes
    PAGE = "page"  # everyone, with an allowed Host header: static files
    API = "api"  # holders of an API key; everyone if no key is set
    CONTROL = "control"  # holders of a control key; no one if no key is set


class Dialect(Enum):
    """Dialect of an endpoint's error objects."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"


PARTS: Final = "weft.parts"  # key in the ASGI scope's extensions: a `PartWriter`


class PartWriter(Protocol):
    """Sends parts of a body at once, if that is possible without waiting."""

    @property
    def takes_parts(self) -> bool:
        """True if the response head is sent, the response is open, and the client reads."""

    def write_part(self, data: bytes) -> None:
        """Send a part; only while `takes_parts`."""


class PartSink(Protocol):
    """Sends by `parts`, once the stream has begun."""

    parts: PartWriter | None


@dataclass(frozen=True, slots=True)
class Events:
    """A stream of server-sent events, encoded by the handler (`weft.web.http.sse`), or of JSON objects if it
    `is_lines`: one on each line, without pings.

    An error that `source` raises is sent as the dialect's error event, the last one. The source is closed as soon as
    the client disconnects, or reads nothing for too long. Outputs that go through `sink` are not yielded by the
    source.
    """

    source: AsyncGenerator[bytes, None]
    headers: Mapping[str, str] = field(default_factory=dict)
    sink: PartSink | None = None
    is_lines: bool = False


Answer: TypeAlias = msgspec.Struct | Events | Response
"""A struct is sent as JSON with status 200, without fields that are `msgspec.UNSET`."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A part of a body that exceeds its API: the field, and a sentence about it."""

    parameter: str
    reason: str


def no_deviations(_body: Any) -> Iterable[Deviation]:
    """The default of APIs that define no deviations."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An HTTP request that passed API keys and limits. `body` is a checked instance of the endpoint's `body` type.

    `decode` reads the same body as another endpoint would.
    `request_id` is the server's own, unique for ever: use it with the engine. `label` is the client's
    `X-Request-Id`, or `request_id`: it is shown in answers and logs and is a key to nothing.
    Header names are lower case.
    """

    body: Any
    served: Served
    request_id: str
    label: str
    headers: Mapping[str, str]
    path_parameters: Mapping[str, str]
    query: Mapping[str, str]
    raw_body: bytes = b""
    decode: "Callable[[Endpoint], Awaitable[Any]] | None" = None


Handler: TypeAlias = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """`answer` and `event` are what a JSON answer and an event's data consist of, for the description.

    `is_strict` refuses unknown fields of the body; the inference APIs ignore them, with a warning, unless the
    server is strict. A body that `is_form` is multipart/form-data. What `admit` raises is answered before
    the body is received. Names in the query that are `repeatable` come as one value, joined by commas.
    `deviations` are what else of a body is beyond the API. One that `is_refused` is
    there to say so, with 404. `example` is a body, without the model's name, that is answered; `group` is
    the API it stands under in the description, which `weft.web.routes` says.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    access: Access = Access.API
    dialect: Dialect = Dialect.OPENAI
    body: Any = None
    answer: Any = None
    event: Any = None
    is_form: bool = False
    admit: Callable[[Served], None] | None = None
    is_strict: bool = False
    repeatable: tuple[str, ...] = ()
    deviations: Callable[[Any], Iterable[Deviation]] = no_deviations
    is_refused: bool = False
    example: Mapping[str, Any] | None = None
    group: str = ""


def endpoint(route: str, **fields: Any) -> Callable[[Handler], Endpoint]:
    """Makes a handler the endpoint of `route`, "GET /path"; the first line of its docstring is the summary."""
    method, path = route.split()

    def make(handler: Handler) -> Endpoint:
        summary = (getdoc(handler) or "").partition("\n")[0]
        return Endpoint(method=method, path=path, handler=handler, summary=summary, **fields)

    return make
