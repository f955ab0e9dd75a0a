"""Downloads of media: only from allowed hosts, only from allowed addresses, and only up to the size limit."""

import asyncio
import socket
from contextlib import aclosing
from io import BytesIO
from typing import Any

import httpx2

from weft.core.errors import BadRequest
from weft.media.limits import DOMAINS, MediaSources, shown, too_large

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "weft"}


class Downloader:
    """Downloads media over HTTP; used on one event loop. Ignores proxies and passwords in the environment."""

    def __init__(self, sources: MediaSources) -> None:
        self._sources = sources
        self._client: httpx2.AsyncClient | None = None

    async def get(self, url: str, what: str, max_bytes: int) -> bytes:
        """Returns the bytes at `url`, at most `max_bytes`.

        Every failure is a `BadRequest`; `what` is the name of the request's field or modality in the message.
        """
        try:
            return await self._get(url, what, max_bytes)
        # an invalid host name raises an encoding error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
            reason = type(error).__name__
            raise BadRequest(what, f"{what}: {shown(url)} cannot be fetched: {reason}") from error

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _get(self, url: str, what: str, max_bytes: int) -> bytes:
        target = httpx2.URL(url)
        for _ in range(self._sources.limits.max_redirects + 1):
            request = await self._request(target, what)
            response = await self._connections().send(request, stream=True)
            async with aclosing(response):
                if response.status_code not in _REDIRECTS:
                    return await _body(response, what, url, max_bytes)
                target = target.join(response.headers.get("location", ""))
        raise BadRequest(
            what,
            f"{what}: {shown(url)} redirects more than {self._sources.limits.max_redirects} times",
        )

    async def _request(self, url: httpx2.URL, what: str) -> httpx2.Request:
        """Returns a request to an address of the host that was checked.

        The request names the address, not the host: a second DNS lookup could give another address.
        """
        host = url.host.lower().rstrip(".")
        if url.scheme not in ("http", "https") or not host:
            raise BadRequest(
                what, f"{what}: {shown(str(url))} must be an http or https URL with a host"
            )
        if host not in self._sources.domains:
            raise BadRequest(
                what,
                f"{what}: {host[:100]!r} is not among the hosts that this server fetches media from "
                f"({DOMAINS}); send the bytes as a data: URL",
            )
        if url.port is not None and not 0 < url.port < 2**16:
            raise BadRequest(what, f"{what}: the port of a URL must be 1 to 65535, not {url.port}")
        if url.userinfo:
            raise BadRequest(what, f"{what}: a URL must not contain a user name or a password")
        address = await self._address(host, url, what)
        extensions: dict[str, Any] = {"sni_hostname": host}
        return self._connections().build_request(
            "GET",
            url.copy_with(host=address),
            headers={"host": url.netloc.decode("ascii")},
            extensions=extensions,
        )

    async def _address(self, host: str, url: httpx2.URL, what: str) -> str:
        port = url.port or (443 if url.scheme == "https" else 80)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        for address in addresses:
            if self._sources.allows_address(host, address):
                return address
        raise BadRequest(
            what, f"{what}: {host[:100]!r} has a private address that {DOMAINS} does not allow"
        )

    def _connections(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = httpx2.AsyncClient(
                headers=_HEADERS, trust_env=False, follow_redirects=False, timeout=None
            )
        return self._client


async def _body(response: httpx2.Response, what: str, url: str, max_bytes: int) -> bytes:
    if response.status_code != 200:
        raise BadRequest(
            what, f"{what}: {shown(url)} cannot be fetched: status {response.status_code}"
        )
    if response.headers.get("content-encoding", "identity") != "identity":
        raise BadRequest(what, f"{what}: {shown(url)} is sent compressed, which was not requested")
    data = BytesIO()  # not a `bytearray`, which ends with a copy on the event loop
    length = response.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large(what, max_bytes)
    async for chunk in response.aiter_raw():
        data.write(chunk)
        if data.tell() > max_bytes:
            raise too_large(what, max_bytes)
    return data.getvalue()
