"""Checks of operating system limits before a slow start begins: ports, open files and memory."""

import logging
import os
import resource
import socket
from typing import Any

from weft.core.errors import ConfigError

log = logging.getLogger("weft.cli")

MIN_OPEN_FILES = 256  # the server's two processes need about 60; the rest is for connections
WANTED_OPEN_FILES = 65536
LOW_OPEN_FILES = 1024
# Memory and address space of the front process without a model: with two CPUs 150 and 370 MiB, plus the stack of a BLAS
# thread for each further CPU.
_MIN_BYTES = {
    ("ulimit -d, LimitDATA of systemd", resource.RLIMIT_DATA): 192 << 20,
    ("ulimit -v, LimitAS of systemd", resource.RLIMIT_AS): 360 << 20,
}
_BYTES_PER_CPU = 10 << 20


def check_memory_limits() -> None:
    """Raises `ConfigError` if a memory limit of the process is so low that libraries would abort in native code without
    a clear error.
    """
    for (way, kind), min_bytes in _MIN_BYTES.items():
        limit, _ = resource.getrlimit(kind)
        least = min_bytes + len(os.sched_getaffinity(0)) * _BYTES_PER_CPU
        if limit != resource.RLIM_INFINITY and limit < least:
            raise ConfigError(
                f"this process may use {limit >> 20} MiB of memory; at least {least >> 20} MiB are needed in addition "
                f"to the model: raise the limit ({way})"
            )


def use_no_tokenizer_threads() -> None:
    """Keeps the tokenizers library from starting threads, which serve nothing when texts are encoded one by one.

    The library starts them with the first text. If there is no memory for them then, it refuses every later text too.
    The user's environment comes first.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def raise_open_files() -> None:
    """Raises the limit on open files to the hard limit. Raises `ConfigError` if even the hard limit is far too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY or soft >= LOW_OPEN_FILES:
        return
    if soft < MIN_OPEN_FILES:
        raise ConfigError(
            f"only {soft} open files are allowed; at least {MIN_OPEN_FILES} are needed: "
            f"raise the hard limit (ulimit -Hn)"
        )
    log.warning("only %d open files are allowed: further connections will fail", soft)


def check_port(host: str, port: int, flag: str = "--grpc-port") -> None:
    """Raises `ConfigError` if a server cannot listen on the address; called before the model is loaded."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"{flag} must be between 0 and 65535, not {port}")
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as err:
        raise ConfigError(f"--host {host} cannot be resolved: {err}") from err
    _bound(found[0], f"{host}:{port}", flag).close()


def hold_port(host: str, port: int, flag: str) -> socket.socket:
    """Binds a port that several processes of this server will share, without listening, and returns the socket.

    Port 0 chooses a free port. Raises `ConfigError` if another process uses the port, which would then get a part of
    the connections.
    """
    check_port(host, port, flag)
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return _bound(found[0], f"{host}:{port}", flag, is_shared=True)


def _bound(found: Any, shown: str, flag: str, *, is_shared: bool = False) -> socket.socket:
    family, kind, protocol, _, address = found
    held = socket.socket(family, kind, protocol)
    # As in the server: a port can be reused while former connections are closing.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind(address)
    except OSError as err:
        held.close()
        raise ConfigError(
            f"cannot listen on {shown}: {err.strerror}; choose another with {flag} or --host"
        ) from err
    return held
