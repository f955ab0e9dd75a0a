"""`weft epp`: opens a picker, serves it to Envoy, drains on SIGTERM. `weft epp explain`: why that one?"""

import asyncio
import json
import logging
import math
import signal
import time
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from weft.cli.epp_options import EppOptions, read_token
from weft.cli.limits import raise_open_files
from weft.core.callers import HostRule
from weft.core.errors import ConfigError, NotFound, Unavailable
from weft.core.log import configure_logging
from weft.core.terminal import say
from weft.epp.build import open_picker
from weft.epp.server.admin import AdminServer
from weft.epp.server.explain_page import lines, summary
from weft.epp.server.pages import PUBLIC, pages
from weft.epp.server.server import PickerServer

log = logging.getLogger("weft.cli")


def epp(*, options: EppOptions = EppOptions()) -> int:
    """Pick an endpoint for each request that Envoy shows, until SIGTERM or Ctrl-C.

    Durations: 300ms, 5s, 1m30s. Every flag can also be set in the environment (--grpc-port as
    WEFT_GRPC_PORT) or in a file (--config).
    """
    configure_logging("debug" if options.is_debugging() else options.log_level)
    for flag in options.without_effect():
        log.info("%s has no effect here", flag)
    options.refuse_what_is_not_offered()
    if not (math.isfinite(options.drain_timeout) and options.drain_timeout >= 0):
        raise ConfigError("--drain-timeout must be 0 or more seconds")
    raise_open_files()
    return asyncio.run(_serve(options))


async def _serve(options: EppOptions) -> int:
    started = time.monotonic()
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    server_options = options.server_options()
    host = server_options.host
    picker = await open_picker(options.picker_options())

    def explain(request_id: str) -> Any:
        record = picker.decisions.get(request_id)
        return None if record is None else summary(record)

    server = PickerServer(
        picker.director,
        picker.parsers,
        server_options,
        explain if options.explain_header else None,
        picker.metrics,
    )
    hosts = HostRule(host, options.allowed_hosts or ())
    shown = pages(server, picker.metrics_text, picker.decisions, picker.state)
    admin = AdminServer(shown, hosts, options.metrics_token(), PUBLIC)
    try:
        ports = await server.start()
        metrics_port = await admin.start(host, options.metrics_port)
        took_s = time.monotonic() - started
        lock = server_options.security
        print(
            f"Weft's endpoint picker, ready after {took_s:.1f} s\n"
            f"  pool     {len(picker.pool)} endpoints\n"
            f"  ext_proc {host}:{ports.grpc} ({lock})\n"
            f"  health   {host}:{ports.health}\n"
            f"  metrics  http://{host}:{metrics_port}/metrics",
            flush=True,
        )
        name = signal.Signals(await signals.get()).name
        log.info("%s: open requests get %g s", name, options.drain_timeout)
        await _drain(server, options.drain_timeout, signals)
    finally:
        await server.stop()
        await admin.stop()
        await picker.close()
    return 0


async def _drain(server: PickerServer, timeout_s: float, signals: asyncio.Queue[int]) -> None:
    """A second signal does not wait."""
    draining = asyncio.create_task(server.drain(timeout_s))
    again = asyncio.create_task(signals.get())
    await asyncio.wait((draining, again), return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, again):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def explain(
    request_id: str,
    *,
    host: Annotated[str, Parameter(help="Where the picker listens.")] = "127.0.0.1",
    metrics_port: Annotated[int, Parameter(help="Its metrics port.")] = 9090,
    metrics_token_file: Annotated[
        Path | None, Parameter(help="File with the token that its pages want, if they do.")
    ] = None,
    raw: Annotated[bool, Parameter(negative=(), help="Print the JSON as it is.")] = False,
) -> int:
    """Say why a request went where it went: candidates, filters, scores, runner-up.

    Parameters
    ----------
    request_id
        The request's x-request-id. The picker keeps the last thousand.
    """
    token = None if metrics_token_file is None else read_token(metrics_token_file)
    path = f"/debug/decisions?request_id={quote(request_id)}"
    record = _fetch(host, metrics_port, path, token)
    if "error" in record:
        raise NotFound(record["error"])
    say(json.dumps(record, indent=2) if raw else "\n".join(lines(record)))
    return 0


def _fetch(host: str, port: int, path: str, token: str | None) -> Any:
    connection = HTTPConnection(host.strip("[]"), port, timeout=10)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status == HTTPStatus.UNAUTHORIZED:
            raise ConfigError("the picker wants its token; name the file: --metrics-token-file")
        return json.loads(body)
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(
            f"no picker answers at {host}:{port} ({error}); --host and --metrics-port say where"
        ) from error
    finally:
        connection.close()


def _make_app() -> App:
    """The command with the one below it."""
    app = App(name="epp", help="Pick an endpoint for each request that Envoy shows.")
    app.default(epp)
    app.command(explain, name="explain", help="Say why a request went where it went.")
    return app


app = _make_app()  # loaded by name, when it is called
