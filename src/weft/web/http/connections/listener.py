"""The socket on which the HTTP server listens: a TCP port, or a Unix socket."""

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from weft.core.errors import ConfigError
from weft.web.http.options import HttpOptions

_MAX_PORT = 65535


def listen(options: HttpOptions) -> socket.socket:
    """Returns a bound socket. Raises `ConfigError` if the address is taken or wrong."""
    listener = _listen_on_port(options) if options.uds is None else _listen_on_path(options.uds)
    listener.setblocking(False)
    return listener


def remove_socket(path: Path) -> None:
    """Removes the file of a Unix socket, so that the next server may listen there."""
    with suppress(OSError):
        path.unlink()


def _listen_on_path(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_abandoned(path)
        listener.bind(os.fspath(path))
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"--uds {path}: cannot listen: {reason}") from error
    return listener


def _remove_abandoned(path: Path) -> None:
    """Removes a socket that a killed server left; raises `OSError` for one that is in use, and for other files."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise OSError(errno.EEXIST, "the file exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its queue is full
    raise OSError(errno.EADDRINUSE, "another process listens there")


def _listen_on_port(options: HttpOptions) -> socket.socket:
    host, port = options.host.strip("[]"), options.port
    if not 0 <= port <= _MAX_PORT:
        raise ConfigError(f"--port must be between 0 and {_MAX_PORT}, not {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if options.shares_port:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen on {options.host}:{port}: {reason}; choose another with --port or --host"
        ) from error
    return listener
