"""Ports for servers that are told theirs: of other programs, or those that come back where they were."""

import random
import socket
from contextlib import suppress
from pathlib import Path

_OF_SYSTEM = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _TRIES = 10_000, 1000
_draw = random.SystemRandom()  # what is seeded would draw the same ones in each process
# For as long as this process lives: a test may start its server again.
_held: list[socket.socket] = []


def free_port(count: int = 1) -> int:
    """A port of loopback that nobody listens on, and that stays free until the test takes it.

    One that the system has chosen may be given to the next who asks, before a program has come so far
    as to listen. This one is outside the range that the system chooses from, if there is anything
    outside, and no other test gets it. With a `count` so many from there on.
    """
    first_of_system = int(_OF_SYSTEM.read_text().split()[0]) if _OF_SYSTEM.exists() else 32_768
    beyond = first_of_system if first_of_system > _FIRST + _TRIES else 2**16
    for _ in range(_TRIES):
        first = _draw.randrange(_FIRST, beyond - count)
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
                    _hold(port)
            return first
    raise AssertionError(f"no port from {_FIRST} to {beyond - 1} is free")


def _hold(port: int) -> None:
    """Take the number among tests, of this and other processes: UDP's ports stand for TCP's."""
    mark = socket.socket(type=socket.SOCK_DGRAM)
    try:
        mark.bind(("127.0.0.1", port))
    except OSError:
        mark.close()
        raise
    _held.append(mark)
