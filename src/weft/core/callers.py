"""Who may call: with which keys, and by which names of this server.

Of keys only digests are retained, and comparing shows nobody how near a guess was. Names matter because
a web page may have its own looked up as this machine's address: a browser then takes the page and the
server for one site, and lets the page read every answer (DNS rebinding). What it cannot change is the
name it calls by, which is in the header `Host`.
"""

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Self

from weft.core.errors import ConfigError

ANY = "*"
HOST_ADVICE = "ask by an address, localhost or a name under internal, or start the server with --allowed-hosts NAME"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# Addresses are not looked up, so nobody can have pointed one here. Read by Python and by Envoy.
_ADDRESSES = (r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", r"\[[0-9a-f:.]+\]")
# Nor can anybody own a name under these: localhost is this machine, internal is for private networks and will never
# be registered. A container calls its host host.docker.internal.
_PRIVATE = r"(?:[a-z0-9_-]+\.)+(?:internal|localhost)"


class KeyRing(tuple[bytes, ...]):
    """Digests of some keys. False when there are none."""

    __slots__ = ()

    def __new__(cls, keys: Iterable[str]) -> Self:
        return super().__new__(cls, (_digest(key.encode()) for key in keys))

    def is_valid(self, key: bytes) -> bool:
        """Whether `key` is one of them."""
        digest = _digest(key)
        # Every key is compared, in constant time: neither a match nor its place shows in the timing.
        matches = [hmac.compare_digest(digest, known) for known in self]
        return any(matches)


def bearer_key(header: bytes) -> bytes | None:
    """The key of an `Authorization: Bearer KEY` header's value; None for any other scheme."""
    scheme, _, key = header.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None


class HostRule:
    """What `Host` may say of a server that listens on `bound`: an address, a private name, `bound`, or `allowed`.

    A server that listens to other machines is known by names that are not configured: there `checks` is
    False until some are allowed.
    """

    def __init__(self, bound: str, allowed: Iterable[str] = ()) -> None:
        names = {name.lower() for name in allowed}
        for name in names:
            if name != ANY and not _NAME.fullmatch(name):
                raise ConfigError(
                    f"--allowed-hosts {name!r}: must be a host name without port, or * for any"
                )
        self.checks = ANY not in names and (bool(names) or is_loopback(bound))
        known = sorted({"localhost", *names, *filter(_NAME.fullmatch, (bound,))})
        self.pattern = (
            f"(?i)(?:{'|'.join((*map(re.escape, known), *_ADDRESSES, _PRIVATE))})(?::[0-9]+)?"
        )
        self._is_own = re.compile(self.pattern).fullmatch

    def allows(self, host: str) -> bool:
        """Whether a caller may ask by this name."""
        return not self.checks or self.is_own(host)

    def is_own(self, host: str) -> bool:
        """Whether the name, with or without a port, is an address or one that is known."""
        return self._is_own(host) is not None


def host_refusal(host: str) -> str:
    """The refusal of a name that is not allowed."""
    return f"Host {host[:100]!r} is not allowed: {HOST_ADVICE}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # whoever listens there says what is wrong with it
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
