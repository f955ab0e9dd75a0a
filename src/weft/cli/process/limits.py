"""Resources that the operating system must grant before a slow start begins: a port and open files."""

import logging
import os
import resource
import socket
from typing import Any

from weft.core.errors import ConfigError

log = logging.getLogger("weft.cli")

MIN_OPEN_FILES = 256  # the two processes need about 60; the rest are connections
WANTED_OPEN_FILES = 65536
LOW_OPEN_FILES = 1024
# What the front takes before any model: 150 MiB with two processors, and a stack for each thread of BLAS, of which
# there are as many as processors.
_MIN_DATA_BYTES, _DATA_BYTES_PER_CPU = 192 << 20, 10 << 20


def check_data_limit() -> None:
    """Refuse a limit of memory below which libraries abort or fail in native code, before any can say why."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    least = _MIN_DATA_BYTES + len(os.sched_getaffinity(0)) * _DATA_BYTES_PER_CPU
    if limit != resource.RLIM_INFINITY and limit < least:
        raise ConfigError(
            f"this process may use {limit >> 20} MiB of memory; at least {least >> 20} MiB are needed before the "
            "model: raise that limit (ulimit -d, LimitDATA of systemd)"
        )


def raise_open_files() -> None:
    """Take as many open files as the hard limit allows; refuse to start with hopelessly few."""
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
    log.warning("only %d open files are allowed: as many connections fail beyond that", soft)


def check_port(host: str, port: int, flag: str = "--grpc-port") -> None:
    """Refuse an address that cannot be listened on, before the model is loaded."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"{flag} must be between 0 and 65535, not {port}")
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as err:
        raise ConfigError(f"--host {host}: no such address ({err})") from err
    _bound(found[0], f"{host}:{port}", flag).close()


def hold_port(host: str, port: int, flag: str) -> socket.socket:
    """A port that processes of this server are to share: bound, not listened on. Port 0 becomes a free one.

    `ConfigError` where somebody else has it, who would get a part of the connections.
    """
    check_port(host, port, flag)
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return _bound(found[0], f"{host}:{port}", flag, is_shared=True)


def _bound(found: Any, shown: str, flag: str, *, is_shared: bool = False) -> socket.socket:
    family, kind, protocol, _, address = found
    held = socket.socket(family, kind, protocol)
    # As the server does it: a port whose last connections still linger is free.
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
