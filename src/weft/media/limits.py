"""Allowed sources of media, limits on the media of a prompt, and the words of errors about both."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from weft.core.errors import BadRequest, ConfigError
from weft.core.values.media import MAX_BYTES, WORDS, Modality

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# Ranges of IPv6 addresses whose last 32 bits are an IPv4 address: addresses of translators (RFC 6052), and
# IPv4-compatible addresses.
_CARRIERS = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
# Value of the third 32 bits of an ISATAP address (RFC 5214), whose last 32 bits are an IPv4 address.
_ISATAP = 0x5EFE
DOMAINS = "--allowed-media-domains"
LOCAL_PATH = "--allowed-local-media-path"
MAX_PREPARED_BYTES = (
    128 << 20
)  # of the items of a prompt, because messages to an engine have a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """Limits on the media of one prompt, and on the number of prompts whose media are fetched at the same time.

    `max_bytes` limits the encoded size of all items of a prompt together, `timeout_s` the seconds to fetch all of them,
    and `max_pixels` the pixels of all images of a prompt. The media of at most `max_prompts` prompts are fetched and
    held in memory at the same time.
    """

    max_bytes: int = MAX_BYTES
    max_pixels: int = 2**26
    max_redirects: int = 3
    max_prompts: int = 16
    timeout_s: float = 20.0

    @property
    def max_video_pixels(self) -> int:
        """Maximum number of pixels over all decoded frames of a prompt's videos; each pixel takes three bytes."""
        return 4 * self.max_pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSources:
    """Allowed sources of media besides the request itself: hosts by name, and one directory.

    An address in a private network is allowed only if `domains` contains the address itself; loopback addresses are
    also allowed for the host `localhost`.
    """

    domains: frozenset[str] = frozenset()
    directory: Path | None = None
    limits: MediaLimits = field(default_factory=MediaLimits)

    @classmethod
    def of(
        cls,
        domains: Sequence[str] | None,
        directory: str | Path | None,
        limits: MediaLimits | None = None,
    ) -> Self:
        """Creates the sources from flags; raises `ConfigError` for an invalid host or directory."""
        for domain in domains or ():
            if not is_host(domain):
                raise ConfigError(
                    f"{DOMAINS}: must be names or addresses of hosts, without scheme, port or path, "
                    f"got {domain[:100]!r}"
                )
        path = Path(directory).resolve() if directory else None
        if path is not None and not path.is_dir():
            raise ConfigError(
                f"{LOCAL_PATH}: must be an existing directory, got {str(directory)[:200]!r}"
            )
        names = frozenset(domain.lower().rstrip(".") for domain in domains or ())
        return cls(domains=names, directory=path, limits=limits or MediaLimits())

    def allows_address(self, host: str, address: str) -> bool:
        """True if `host`, which is an allowed host, may have this address: a public address, or an address in
        `domains`.
        """
        ip = _reached(ipaddress.ip_address(address.partition("%")[0]))
        if _is_public(ip):
            return True
        return str(ip) in self.domains or (host == "localhost" and ip.is_loopback)


def _reached(ip: _Address) -> _Address:
    """Returns the address that packets reach: the IPv4 address embedded in an IPv6 address, else the address itself."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    carried = ip.ipv4_mapped or ip.sixtofour
    is_last = (
        any(ip in network for network in _CARRIERS) and int(ip) > 1
    )  # :: and ::1 contain no IPv4 address
    if carried is None and (is_last or int(ip) >> 32 & 0xFDFFFFFF == _ISATAP):
        carried = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return carried or ip


def _is_public(ip: _Address) -> bool:
    if isinstance(ip, ipaddress.IPv6Address) and ip not in _GLOBAL_UNICAST:
        return False
    return ip.is_global and not ip.is_multicast


def is_host(name: str) -> bool:
    """True if the text is only a host name or an address, without scheme, port or path."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        try:
            parts = urlsplit(f"//{name}")
            return (
                bool(name) and parts.hostname == name.lower() and name.isascii() and " " not in name
            )
        except ValueError:
            return False
    return True


def too_large(what: str, max_bytes: int) -> BadRequest:
    """Returns the error for media that exceed the remaining size."""
    return BadRequest(
        what, f"{what}: the media are too large: {max_bytes} more bytes are allowed in this prompt"
    )


def check_prepared(modality: Modality, num_bytes: int) -> None:
    """Raises `BadRequest` for items of a prompt that take too many bytes once they are prepared."""
    if num_bytes > MAX_PREPARED_BYTES:
        raise BadRequest(
            modality,
            f"{modality}: the {WORDS[modality]}s of a prompt may take {MAX_PREPARED_BYTES} bytes once they are "
            f"prepared for this model, and they take {num_bytes}",
        )


def shown(url: str) -> str:
    """Returns the beginning of a URL for messages, without its query, which may be secret."""
    return ascii(url.partition("?")[0][:100])
