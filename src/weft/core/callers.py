"""Checks of callers: their API keys, and the Host header that they send.

Only digests of keys are stored, and comparisons take constant time, so that timing does not show how close a guess
was. The Host header is checked because a web page may resolve its own name to this machine's address (DNS rebinding):
a browser then takes page and server for one site and lets the page read every answer. The page cannot change the name
that its requests carry in the header `Host`.
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
HOST_ADVICE = "use an IP address, localhost or a name under .internal, or start the server with --allowed-hosts NAME"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# Addresses need no DNS lookup, so DNS rebinding cannot use them. Python and Envoy both read these expressions.
_ADDRESSES = (r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", r"\[[0-9a-f:.]+\]")
# Nobody can register a name under these domains: localhost is this machine, and internal is reserved for private
# networks. A container calls its host host.docker.internal.
_PRIVATE = r"(?:[a-z0-9_-]+\.)+(?:internal|localhost)"


class KeyRing(tuple[bytes, ...]):
    """Digests of API keys. A ring without keys is falsy."""

    __slots__ = ()

    def __new__(cls, keys: Iterable[str]) -> Self:
        return super().__new__(cls, (_digest(key.encode()) for key in keys))

    def is_valid(self, key: bytes) -> bool:
        """True if `key` is one of the keys."""
        digest = _digest(key)
        # Every key is compared, in constant time: neither a match nor its place shows in the timing.
        matches = [hmac.compare_digest(digest, known) for known in self]
        return any(matches)


def bearer_key(header: bytes) -> bytes | None:
    """Returns the key in the value of a header `Authorization: Bearer KEY`; None for any other scheme."""
    scheme, _, key = header.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None


class HostRule:
    """The Host headers that a server bound to `bound` accepts: IP addresses, private names, `bound` and `allowed`.

    A server on a non-loopback address may have DNS names that are not configured, so `checks` is False for such a
    server unless `allowed` has names.
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
        """True if requests with this Host header are accepted."""
        return not self.checks or bool(self._is_own(host))

    def is_own(self, host: str) -> bool:
        """True if the host, with or without a port, is an IP address, a private name, `bound` or one of the allowed
        names.
        """
        return bool(self._is_own(host))


def host_refusal(host: str) -> str:
    """Returns the error message for a request whose Host header is not allowed."""
    return f"Host {host[:100]!r} is not allowed: {HOST_ADVICE}"


def is_loopback(host: str) -> bool:
    """True if a server that listens on `host` can be reached from this machine only."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # a server that binds to this host reports the error itself
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
