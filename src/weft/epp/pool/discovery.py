"""Keeps the pool current: resolves host names and checks files for changes, periodically."""

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from weft.core.aio.tasks import every
from weft.epp.pool.endpoint import EndpointSpec
from weft.epp.pool.pool import Pool

_log = logging.getLogger(__name__)

RESOLVE_EVERY_S = 10.0
_RESOLVE_TIMEOUT_S = 5.0
LOOK_EVERY_S = 0.5

Marks = tuple[tuple[str, int, int, int], ...]


def is_ip_address(text: str) -> bool:
    """True if the text is an IP address, which needs no DNS."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class Resolver:
    """Resolves addresses to IP addresses. A host name keeps its IP address as long as the name server still returns
    that address.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        # Names whose failure was logged; removed when they resolve again.
        self._failed: set[str] = set()

    async def resolve_all(self, specs: Sequence[EndpointSpec]) -> list[tuple[EndpointSpec, str]]:
        """Returns each endpoint with its IP address. Endpoints whose name cannot be resolved are left out."""
        hosts = await asyncio.gather(*(self._resolve(spec.address) for spec in specs))
        return [(spec, host) for spec, host in zip(specs, hosts, strict=True) if host is not None]

    async def _resolve(self, name: str) -> str | None:
        if is_ip_address(name):
            return name
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_RESOLVE_TIMEOUT_S):
                found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, TimeoutError) as error:
            # A short failure of the name server must not empty the pool: the last addresses are kept.
            last = self._last.get(name)
            if name not in self._failed:
                self._failed.add(name)
                _log.warning(
                    "endpoint address %s cannot be resolved (%s); keeping %s", name, error, last
                )
            return last
        self._failed.discard(name)
        addresses = sorted(
            {str(entry[4][0]) for entry in found}, key=lambda each: (":" in each, each)
        )
        if self._last.get(name) not in addresses:
            self._last[name] = addresses[0]
        return self._last[name]


async def put_endpoints(pool: Pool, specs: Sequence[EndpointSpec], resolver: Resolver) -> None:
    """Adds the endpoints of the command line to the pool."""
    pool.replace("static", await resolver.resolve_all(specs))


async def follow_names(pool: Pool, specs: Sequence[EndpointSpec], resolver: Resolver) -> None:
    """Resolves the endpoints' host names periodically, until cancelled. `resolver` stores the last addresses."""
    await every(RESOLVE_EVERY_S, lambda: put_endpoints(pool, specs, resolver))


def mark(paths: Iterable[Path]) -> Marks:
    """Returns a fingerprint of the files that changes when one of them changes."""
    marks = []
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            continue
        marks.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(sorted(marks))


async def watch(
    list_paths: Callable[[], Iterable[Path]],
    seen: Marks,
    on_change: Callable[[], Awaitable[None]],
) -> None:
    """Calls `on_change` whenever the fingerprint of the files differs from `seen`, until cancelled.

    The files are checked periodically, which works on every file system, through symlinks and renames.
    """

    async def look() -> None:
        nonlocal seen
        now = mark(list_paths())
        if now != seen:
            await on_change()
            seen = now

    await every(LOOK_EVERY_S, look)
