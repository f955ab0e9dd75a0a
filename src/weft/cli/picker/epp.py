"""`weft epp` starts a picker, serves it to Envoy and drains it on SIGTERM. `weft epp explain` prints a routing
decision.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from weft.cli.picker.options import EppOptions, ExplainOptions, read_token
from weft.cli.process.limits import raise_open_files
from weft.cli.process.signals import Signalled, Signals
from weft.cli.tracing import open_tracer
from weft.core.callers import HostRule
from weft.core.errors import ConfigError, NotFound, Unavailable
from weft.core.observe.log import configure_logging
from weft.core.observe.terminal import say
from weft.epp.build import Picker, open_picker
from weft.epp.kubernetes.access_reviewer import AccessReviewer
from weft.epp.server.admin import AdminServer, Guard, Page, Render, TokenGuard
from weft.epp.server.explain_page import lines, summary
from weft.epp.server.health import Standing
from weft.epp.server.pages import PUBLIC, pages
from weft.epp.server.server import Observers, PickerServer
from weft.web.page import assets

if TYPE_CHECKING:  # imports OpenTelemetry, which is an extra
    from weft.core.observe.otlp import OtlpTracer

log = logging.getLogger("weft.cli")


def epp(options: EppOptions) -> int:
    """Runs the picker until a signal; returns the exit status."""
    configure_logging(
        "debug" if options.is_debugging() else options.log_level,
        log_format="json" if options.wants_json() else options.log_format,
    )
    for flag in options.without_effect():
        log.info("%s has no effect here", flag)
    options.refuse_what_is_not_offered()
    if not (math.isfinite(options.drain_timeout) and options.drain_timeout >= 0):
        raise ConfigError("--drain-timeout must be 0 or more seconds")
    raise_open_files()
    tracer = open_tracer("--tracing", "weft-epp") if options.tracing else None
    try:
        return asyncio.run(_serve(options, tracer))
    finally:
        if tracer is not None:
            tracer.close()


async def _serve(options: EppOptions, tracer: "OtlpTracer | None") -> int:
    started = time.monotonic()
    signals = Signals()
    signals.listen()
    server_options = options.server_options()
    host = server_options.host
    async with AsyncExitStack() as stack:
        picker = await open_picker(options.picker_options())
        stack.push_async_callback(picker.close)
        guard = _guard(options, picker, stack)

        def explain(request_id: str) -> Any:
            entry = picker.decisions.find(request_id)
            return None if entry is None else summary(entry)

        server = PickerServer(
            picker.director,
            picker.parsers,
            server_options,
            Observers(explain if options.explain_header else None, picker.metrics, tracer),
            Standing(picker.may_serve, picker.may_be_called),
        )
        if tracer is not None:
            picker.metrics.registry.register(tracer.series)
        hosts = HostRule(host, options.allowed_hosts or ())
        shown = pages(server, picker.metrics_text, picker.decisions, picker.state)
        admin = AdminServer(shown, hosts, guard, PUBLIC, _routing_page())
        stack.push_async_callback(admin.stop)
        stack.push_async_callback(server.stop)
        ports = await server.start()
        metrics_port = await admin.start(host, options.metrics_port)
        took_s = time.monotonic() - started
        lock = server_options.security
        print(
            f"Weft's endpoint picker, ready after {took_s:.1f} s\n"
            f"  pool     {len(picker.pool)} endpoints\n"
            f"  ext_proc {host}:{ports.grpc} ({lock})\n"
            f"  health   {host}:{ports.health}\n"
            f"  routing  http://{host}:{metrics_port} (for a browser: workers, and each decision with its scores)\n"
            f"  metrics  http://{host}:{metrics_port}/metrics",
            flush=True,
        )
        signalled = await signals.take()
        log.info("%s: open requests get %g s", signalled.name, options.drain_timeout)
        server.health.drain()
        if picker.elector is not None:
            await picker.elector.release()
        with suppress(Signalled):  # a second signal ends the wait
            await signals.unless(server.drain(options.drain_timeout))
    return 0


def _guard(options: EppOptions, picker: Picker, stack: AsyncExitStack) -> Guard | None:
    """Returns the authorization for the pages of the metrics port; None if everyone may read them. Raises
    `ConfigError`.
    """
    if options.metrics_endpoint_auth is False:
        return None
    token = options.metrics_token()
    if token is not None:
        return TokenGuard(token)
    if picker.cluster is not None:
        reviewer = AccessReviewer(options.picker_options().pool_namespace)
        stack.push_async_callback(reviewer.close)
        return reviewer
    if options.metrics_endpoint_auth:
        raise ConfigError(
            "--metrics-endpoint-auth needs --metrics-token-file, or a pool in Kubernetes"
        )
    return None


def _routing_page() -> Mapping[str, Render]:
    """Returns the files of the web page that shows the routing state."""

    def render(name: str, _query: Mapping[str, str]) -> Page:
        return Page(assets.read(name)[0], assets.content_type(name), headers=assets.HEADERS)

    return {assets.path_of(name): partial(render, name) for name in assets.ROUTING}


def explain(request_id: str, options: ExplainOptions) -> int:
    """Prints the record of the routing decision for a request; returns the exit status."""
    file = options.metrics_token_file
    token = None if file is None else read_token(file)
    path = f"/debug/decisions?request_id={quote(request_id)}"
    record = _fetch(options.host, options.metrics_port, path, token)
    if "error" in record:
        raise NotFound(record["error"])
    is_json = options.json or options.raw
    say(json.dumps(record, indent=2) if is_json else "\n".join(lines(record)))
    return 0


def _fetch(host: str, port: int, path: str, token: str | None) -> Any:
    connection = HTTPConnection(host.strip("[]"), port, timeout=10)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            said = body.decode(errors="replace").strip()
            raise ConfigError(f"the picker: {said}; name a file with a token: --metrics-token-file")
        return json.loads(body)
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(
            f"no picker answers at {host}:{port} ({error}); give its address with --host and --metrics-port"
        ) from error
    finally:
        connection.close()
