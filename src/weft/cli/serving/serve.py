"""`weft serve`: checks the options before the slow part of the start, then runs `Serving`.

The imports of this module delay the first HTTP answer. `weft.cli.serving.loading` imports all other modules later.
"""

import asyncio
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module

import uvloop

from weft.cli.arguments.flags import pick
from weft.cli.options import ServeOptions
from weft.cli.process.limits import (
    check_memory_limits,
    check_port,
    raise_open_files,
    use_no_tokenizer_threads,
)
from weft.cli.serving.servers import Serving
from weft.cli.serving.several.model_names import check_pool, named, wants_pool
from weft.core.callers import is_loopback
from weft.core.config.ranks import RankOptions
from weft.core.errors import ConfigError
from weft.core.observe.log import configure_logging
from weft.core.tenants import ApiKeys
from weft.core.values.declare import spelled
from weft.rpc.options import RpcOptions
from weft.web.http.options import HttpOptions
from weft.web.mcp.servers import read_servers
from weft.web.options import ApiOptions

log = logging.getLogger("weft.cli")

MAX_API_SERVERS = 64


def serve(model: str | None, *more: str, options: ServeOptions) -> int:
    """Serves until a signal arrives; returns the exit status."""
    started = time.monotonic()
    configure_logging(options.log_level, log_format=options.log_format)
    for note in options.translated or ():
        log.info("%s", note)
    check(options)
    texts = () if model is None else (model, *more)
    if wants_pool(texts, options):
        check_pool(options)
    else:
        model, options = named(model, options)
    check_memory_limits()
    use_no_tokenizer_threads()
    raise_open_files()
    # Child processes are started without fork, and gRPC would log a warning that it does not support fork.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    http_options = to_http_options(options)
    host, is_headless = http_options.host, pick(options, RankOptions).headless
    if options.grpc and options.remote is None and not is_headless:
        check_port(host, pick(options, RpcOptions).port)
    if not http_options.has_api_keys and not is_loopback(host) and not is_headless:
        log.warning("no --api-key is set: everyone who can connect to %s can use this server", host)
    kind = _kind(texts, options)
    serving = kind(model, options, http_options, started)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            status = runner.run(serving.run())
    finally:
        serving.close()
    if serving.is_loading:
        # The process exits without cleanup: the importing thread cannot be stopped, and may crash while modules are
        # torn down.
        for child in import_module("multiprocessing").active_children():
            child.kill()  # processes of vLLM, which would keep running
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _kind(texts: Sequence[str], options: ServeOptions) -> Callable[..., Serving]:
    """Returns the kind of server that these options ask for, imported only now."""
    if wants_pool(texts, options):
        return partial(import_module("weft.cli.serving.several.pool_serving").PoolServing, texts)
    kind: type[Serving] = Serving
    if pick(options, RankOptions).headless:
        kind = import_module("weft.cli.serving.headless").HeadlessServing
    elif options.api_server_count > 1:
        kind = import_module("weft.cli.serving.api_servers").SupervisedServing
    return kind


def check(options: ServeOptions) -> None:
    """Raises `ConfigError` for options that would leave the server without authentication by mistake, or without any
    server.
    """
    if not (math.isfinite(options.shutdown_timeout) and options.shutdown_timeout >= 0):
        raise ConfigError(
            f"--shutdown-timeout must be 0 or more seconds, not {options.shutdown_timeout}"
        )
    if not (options.http or options.grpc):
        raise ConfigError("--no-http and --no-grpc together leave nothing to serve")
    for name in ("api_key", "control_api_key", "remote_api_key", "remote_control_api_key"):
        given = getattr(options, name)
        keys = [given] if isinstance(given, str) else given
        if keys is not None and (not keys or not all(key.strip() for key in keys)):
            # An empty variable must not turn off authentication.
            raise ConfigError(f"--{name.replace('_', '-')} must not be empty")
    api = pick(options, ApiOptions)
    remote, vllm = options.remote is not None, options.engine == "vllm"
    for needed, has, names in (
        ("--remote", remote, ("remote_api_key", "remote_control_api_key", "remote_tls_ca")),
        ("--engine vllm", vllm, ("engine_args",)),
        (
            "--enable-lora",
            options.engine_options().enable_lora,
            ("lora_modules", "allow_runtime_lora_updating"),
        ),
    ):
        for name in names:
            if getattr(options, name) not in (None, False) and not has:
                raise ConfigError(f"{spelled(name)} needs {needed}")
    if remote and vllm:
        raise ConfigError("--engine vllm and --remote exclude each other")
    _check_keys(options)
    _check_ranks(options)
    _check_api_servers(options)
    _check_log(options)
    _check_socket(options)
    read_servers(api)
    if api.max_n < 1:
        raise ConfigError(f"--max-n must be at least 1, not {api.max_n}")


def _check_keys(given: ServeOptions) -> None:
    options, has_remote = pick(given, HttpOptions), given.remote is not None
    if has_remote and options.salt_by_key:
        raise ConfigError(
            "--salt-by-key and --remote exclude each other: gRPC requests have no cache_salt"
        )
    # An unreadable file is reported before the model loads.
    keys = ApiKeys(options.api_keys, options.api_key_file, salts=options.salt_by_key)
    is_own = not has_remote and given.engine == "weft"
    if keys.has_priorities and is_own and given.engine_options().scheduling_policy != "priority":
        raise ConfigError(
            f"--api-key-file {options.api_key_file}: priority needs --scheduling-policy priority"
        )


def _check_ranks(options: ServeOptions) -> None:
    """Checks the options of data parallel ranks that `ServeOptions.ranks` does not check."""
    if options.remote is not None or options.engine == "vllm":
        other = "--engine vllm" if options.remote is None else "--remote"
        for field in fields(RankOptions):
            given = getattr(options, field.name)
            if given is not None and given is not False:  # rank 0 counts as given
                raise ConfigError(f"{spelled(field.name)} and {other} exclude each other")
        return
    ranks = options.ranks()
    if ranks is None or ranks.link is None:
        for name in ("data_parallel_address", "data_parallel_rpc_port"):
            if getattr(options, name) is not None:
                log.info(
                    "%s has no effect: this server has no engines on other machines",
                    spelled(name),
                )
    if ranks is not None and ranks.link is not None and options.api_server_count > 1:
        raise ConfigError(
            f"--api-server-count {options.api_server_count} cannot be combined with engines on other machines, which "
            "cannot send their outputs to the processes of this one"
        )


def _check_log(options: ServeOptions) -> None:
    if options.max_log_len < 0:
        raise ConfigError(f"--max-log-len must be at least 0, not {options.max_log_len}")


def _check_socket(options: ServeOptions) -> None:
    """Checks that nothing else says where the HTTP server listens, if it listens on a Unix socket."""
    http = pick(options, HttpOptions)
    if http.uds is None:
        return
    for flag, is_given in (
        ("--no-http", not options.http),
        (f"--api-server-count {options.api_server_count}", options.api_server_count > 1),
        (f"--port {http.port}", http.port != HttpOptions().port),
    ):
        if is_given:
            raise ConfigError(f"--uds and {flag} exclude each other")


def _check_api_servers(options: ServeOptions) -> None:
    if not 1 <= options.api_server_count <= MAX_API_SERVERS:
        raise ConfigError(
            f"--api-server-count must be from 1 to {MAX_API_SERVERS}, not {options.api_server_count}"
        )
    if options.api_server_count > 1 and (options.remote is not None or options.engine == "vllm"):
        other = "--engine vllm" if options.remote is None else "--remote"
        raise ConfigError(
            f"--api-server-count {options.api_server_count} and {other} exclude each other: several API servers "
            "work only with engines of this server"
        )


def to_http_options(options: ServeOptions) -> HttpOptions:
    """Returns the options of the HTTP server."""
    return pick(options, HttpOptions)
