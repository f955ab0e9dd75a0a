"""The ASGI application: routing, keys, bodies, handlers, errors and metrics.

A handler is cancelled when the client disconnects, which aborts its request in the engine.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from weft.core.errors import BadRequest, ConfigError, WeftError
from weft.core.observe.log import REQUEST
from weft.core.tenants import Tenant
from weft.web.http.body import (
    JSON,
    MAX_VALUES,
    BodyBudget,
    BodyScan,
    ClientDisconnected,
    Strictness,
    check_content,
    decode_body,
    read_body,
    scan_message,
)
from weft.web.http.choices import has_several_choices, send_choices
from weft.web.http.connections.sockets import Socket
from weft.web.http.endpoint import PREFIXES, Access, Answer, Call, Dialect, Endpoint, Events
from weft.web.http.exchange import Exchange
from weft.web.http.form import FORM, decode_form
from weft.web.http.gate import Gate
from weft.web.http.options import HttpOptions
from weft.web.http.problem import HttpError, to_problem
from weft.web.http.sse import error_event, write_events
from weft.web.http.state import ServerState
from weft.web.http.traffic import Traffic
from weft.web.served import Served

log = logging.getLogger("weft.web")

# Access levels of endpoints that need no key, and answer before the model is loaded.
_KEYLESS: Final = (Access.OPEN, Access.PAGE)
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")
_MAX_QUERY_FIELDS = 100
_GOING_AWAY: Final = 1001  # close code of a WebSocket
# Maximum characters of an unknown path that are compared with known paths; takes 1 ms.
_MAX_COMPARED: Final = 100
_json = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """An endpoint, and the values of its path parameters."""

    endpoint: Endpoint
    path_parameters: Mapping[str, str]


class Router:
    """Finds endpoints by path: `{name}` matches one segment, `{name:path}` the rest of the path."""

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
                raise ConfigError(f"duplicate endpoint {endpoint.method} {endpoint.path}")
            methods[endpoint.method] = endpoint
        self._patterns = [(_to_pattern(path), methods) for path, methods in patterns.items()]
        # Paths that need no API key.
        self.open_paths = frozenset(
            endpoint.path.encode() for endpoint in self.endpoints if endpoint.access in _KEYLESS
        )

    def find(self, method: str, raw_path: bytes) -> RouteMatch:
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
        return RouteMatch(endpoint, parameters)

    def _match(self, raw_path: bytes) -> tuple[dict[str, Endpoint], dict[str, str]]:
        for pattern, methods in self._patterns:
            if match := pattern.fullmatch(raw_path):
                return methods, {name: _text(value) for name, value in match.groupdict().items()}
        raise self._nowhere(raw_path)

    def _nowhere(self, raw_path: bytes) -> HttpError:
        """404, in the form of the API with the nearest path."""
        by_path = {_PARAMETER.sub(r"{\1}", each.path): each for each in self.endpoints}
        path = raw_path[:_MAX_COMPARED].decode("latin-1")
        nearest = next(iter(get_close_matches(path, by_path, n=1)), None)
        hint = "" if nearest is None else f"; the nearest is {nearest}"
        return HttpError(
            404,
            f"there is nothing at this path{hint}; /docs shows what there is",
            dialect=None if nearest is None else by_path[nearest].dialect,
        )


def dialect_of(raw_path: bytes) -> Dialect:
    """Returns the dialect of error objects for a path that has no endpoint."""
    for start, kind in PREFIXES:
        if raw_path.startswith(start):
            return kind
    return Dialect.OPENAI


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


class HttpApp:
    """Serves the endpoints of its router; before the state is open, only those that need no key."""

    def __init__(self, state: ServerState, options: HttpOptions, probes: Router) -> None:
        self._state = state
        self._options = options
        self._probes = probes
        self._router: Router | None = None
        self._max_values = MAX_VALUES
        self._bodies = BodyBudget(options.max_total_body_bytes)
        self._gate = Gate(options)
        self._strictness = Strictness(is_strict=options.strict)
        self._traffic = Traffic(state.registry)

    def open(self, router: Router) -> None:
        """Serves these endpoints from now on."""
        self._router = router

    def take_prompts_of(self, max_model_len: int) -> None:
        """Takes bodies with two contexts of token ids, whatever their length is."""
        self._max_values = max(self._max_values, 2 * max_model_len)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request. Never raises: every failure ends this request only."""
        exchange = Exchange(scope, send, self._options.write_timeout_s)
        REQUEST.set((exchange.label, exchange.headers.get("traceparent")))
        dialect = dialect_of(exchange.raw_path)
        try:
            exchange.extra_headers = self._gate.cors_headers(exchange.headers)
            await self._serve(exchange, receive, dialect)
        except ClientDisconnected:
            exchange.abort()
        except Exception as error:  # noqa: BLE001 - the root of a request
            if isinstance(error, HttpError) and dialect is Dialect.OPENAI:
                dialect = error.dialect or dialect
            await _fail(exchange, error, dialect)
        finally:
            self._traffic.observe(exchange)
            if exchange.span is not None:
                exchange.end_span(exchange.span)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s", exchange.summary())

    async def _serve(self, exchange: Exchange, receive: Receive, dialect: Dialect) -> None:
        if exchange.method == "OPTIONS" and self._gate.is_preflight(exchange):
            await exchange.start(204, self._gate.preflight_headers(exchange))
            await exchange.end()
            return
        if dialect is Dialect.ANTHROPIC:
            # Anthropic's clients read the request id from this header, in responses and errors.
            exchange.extra_headers["request-id"] = exchange.label
        is_open = exchange.raw_path in self._probes.open_paths
        if not is_open:
            self._gate.let_in(exchange)
            # Raises while the server starts: until then, all paths give the same error.
            _ = self._state.served
        router = self._probes if is_open else self._router or self._probes
        found = router.find(exchange.method, exchange.raw_path)
        endpoint = found.endpoint
        exchange.handler = endpoint.path
        self._gate.check(endpoint, exchange)
        tracer = self._state.tracer
        if tracer is not None and endpoint.access is Access.API and endpoint.method == "POST":
            exchange.begin_span(tracer)
        if is_open:
            await self._answer(exchange, found, b"")
            return
        if exchange.scope["type"] == "websocket":
            await self._serve_socket(exchange, found, self._to_socket(exchange, receive))
            return
        with self._state.hold(exchange), self._bodies.share() as grow:
            body = b""
            if endpoint.body is not None:
                if endpoint.admit is not None and (served := self._state.served) is not None:
                    endpoint.admit(served)
                check_content(exchange.headers, FORM if endpoint.is_form else JSON)
                if endpoint.is_form:
                    self._gate.check_page(exchange, "send forms")
                scan = None if endpoint.is_form else BodyScan(self._max_values)
                body = await read_body(receive, exchange.headers, self._options, scan, grow)
                exchange.num_bytes_in = len(body)
                exchange.field_names = [] if scan is None else scan.field_names()
                exchange.long_strings = () if scan is None else scan.long_strings
            await self._answer_while_wanted(exchange, receive, found, body)

    async def _serve_socket(self, exchange: Exchange, found: RouteMatch, socket: Socket) -> None:
        """Serves a WebSocket. Until it is accepted, errors are the responses of a GET request."""
        self._gate.check_page(exchange, "open WebSockets")
        serve = found.endpoint.socket
        assert serve is not None, "the protocol upgrades no other path"
        with self._state.hold(exchange):
            call = await self._to_call(exchange, found, b"")
            work = asyncio.create_task(_until_closed(serve(call, socket), socket))
            either: set[asyncio.Future[Any]] = {work, exchange.ending}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
                await socket.close(_GOING_AWAY, "the server is shutting down")
                return
            work.result()

    def _to_socket(self, exchange: Exchange, receive: Receive) -> Socket:
        async def decode(data: bytes, endpoint: Endpoint) -> Any:
            scan = await scan_message(data, self._max_values)
            exchange.field_names, exchange.long_strings = scan.field_names(), scan.long_strings
            return await self._decode(exchange, data, endpoint)

        return Socket(exchange, receive, decode)

    async def _answer_while_wanted(
        self, exchange: Exchange, receive: Receive, found: RouteMatch, body: bytes
    ) -> None:
        """Runs the handler and sends its answer, until the client disconnects or the server ends."""
        work = asyncio.create_task(self._answer(exchange, found, body))
        watch = asyncio.create_task(_wait_until_disconnected(exchange, receive))
        try:
            either: set[asyncio.Future[Any]] = {work, exchange.ending}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_early = not work.done()
            for task in (work, watch):
                task.cancel()
            await asyncio.wait({work, watch})
        if is_early and exchange.ending.done():
            raise exchange.ending.result()
        work.result()

    async def _answer(self, exchange: Exchange, found: RouteMatch, body: bytes) -> None:
        endpoint = found.endpoint
        try:
            answer = await endpoint.handler(await self._to_call(exchange, found, body))
            await self._send(exchange, answer)
        except (ClientDisconnected, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - here the endpoint's own dialect is known
            await _fail(exchange, error, endpoint.dialect)
        finally:
            for release in exchange.releases:
                release()

    async def _to_call(self, exchange: Exchange, found: RouteMatch, body: bytes) -> Call:
        endpoint = found.endpoint
        is_open = endpoint.access in _KEYLESS
        given: bytes = exchange.scope.get("query_string", b"")
        return Call(
            body=None if endpoint.body is None else await self._decode(exchange, body, endpoint),
            # Probes answer before the model is loaded; they use the state only.
            served=cast(Served, None) if is_open else self._served_to(exchange.tenant),
            request_id=exchange.request_id,
            label=exchange.label,
            headers=exchange.headers,
            path_parameters=found.path_parameters,
            query=_query(given, endpoint.repeatable) if given else {},
            raw_body=body,
            decode=partial(self._decode, exchange, body),
            exchange=exchange,
        )

    def _served_to(self, tenant: Tenant | None) -> Served:
        served, options = self._state.served, self._options
        hides = options.hide_cached_tokens
        if served is None or (tenant is None and not hides):
            return cast(Served, served)  # None: the endpoint takes a model from the pool
        return served.seen_by(tenant, salts=options.salt_by_key, hides_cached_tokens=hides)

    async def _decode(self, exchange: Exchange, body: bytes, endpoint: Endpoint) -> Any:
        names: Iterable[str]
        if endpoint.is_form:
            kind = exchange.headers["content-type"]
            value, names = await decode_form(body, kind, endpoint.body)
        else:
            is_by_value = self._strictness.is_by_value(endpoint)
            value = decode_body(
                body, endpoint.body, is_by_value=is_by_value, long_strings=exchange.long_strings
            )
            names = exchange.field_names
        exchange.extra_headers |= self._strictness.judge(endpoint, names, value)
        return value

    async def _send(self, exchange: Exchange, answer: Answer) -> None:
        if isinstance(answer, Events):
            await write_events(exchange, answer, self._options.ping_interval_s)
        elif isinstance(answer, Response):
            await answer(exchange.scope, _nothing_more, exchange.send)
        elif has_several_choices(answer):
            await send_choices(exchange, answer)
        else:
            await exchange.answer(200, _json.encode(answer), {"content-type": "application/json"})


async def _until_closed(work: Awaitable[None], socket: Socket) -> None:
    await work
    await socket.close()


async def _wait_until_disconnected(exchange: Exchange, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of a body that the endpoint did not read
    exchange.cut(ClientDisconnected())


async def _nothing_more() -> Any:
    await asyncio.get_running_loop().create_future()


async def _fail(exchange: Exchange, error: Exception, dialect: Dialect) -> None:
    """Sends the error: as a response, as a stream's last event, or by closing the connection."""
    if not isinstance(error, WeftError | HttpError):
        log.error("request %s failed", exchange.request_id, exc_info=error)
    problem = to_problem(error, exchange.request_id)
    if exchange.span is not None and exchange.status is not None:
        exchange.span.fail(f"failed in its answer: status {problem.status(dialect)}")
    body = problem.body(dialect, exchange.label)
    try:
        if exchange.status is None:
            headers = {"content-type": "application/json", **problem.headers}
            await exchange.answer(problem.status(dialect), body, headers)
        elif exchange.is_event_stream:
            await exchange.end(error_event(body, dialect))
        else:
            exchange.abort()
    except ClientDisconnected:
        pass  # the client has disconnected


def _query(given: bytes, repeatable: tuple[str, ...]) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            given.decode("ascii"),
            keep_blank_values=True,
            max_num_fields=_MAX_QUERY_FIELDS,
            errors="strict",
        )
    except ValueError:
        raise BadRequest(None, "the query string cannot be read") from None
    query: dict[str, str] = {}
    for name, value in pairs:
        if name in query and name in repeatable:
            query[name] += f",{value}"
            continue
        if name in query:
            raise BadRequest(name[:100], f"duplicate {name[:100]!r} in the query")
        query[name] = value
    return query
