"""The MCP servers that requests may use: those that the operator named, and those on allowed hosts."""

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import SplitResult, urlsplit

from weft.core.aio.pauses import Pauses
from weft.core.errors import BadRequest, ConfigError
from weft.core.extras import how_to_install
from weft.text.content import Place
from weft.web.mcp.sessions import Session, Sessions
from weft.web.mcp.values import ToolLimits, ToolServerError
from weft.web.options import ApiOptions

_PORTS = {"http": 80, "https": 443}
_MAX_URL = 2048
# First and longest pause between attempts to reach a server that did not answer.
_PAUSES_S = (30.0, 600.0)


@dataclass(frozen=True, slots=True)
class ToolServer:
    """An MCP server of the operator. Without a `label`, the name that the server reports is its label."""

    label: str | None
    url: str


@dataclass(frozen=True, slots=True)
class NamedServers:
    """The MCP servers that the flags name."""

    servers: tuple[ToolServer, ...] = ()
    allowed_hosts: frozenset[tuple[str, int | None]] = frozenset()


def read_servers(options: ApiOptions) -> NamedServers | None:
    """The servers that the flags name; None for none. Raises `ConfigError` for an invalid value."""
    if options.tool_server is None and options.allowed_tool_hosts is None:
        return None
    named = NamedServers(
        tuple(map(_server, _words(options.tool_server))),
        frozenset(map(_host, _words(options.allowed_tool_hosts))),
    )
    labels = [server.label for server in named.servers if server.label is not None]
    if len(set(labels)) < len(labels):
        raise ConfigError("--tool-server has one label twice")
    if find_spec("mcp") is None:
        flag = "--allowed-tool-hosts" if options.tool_server is None else "--tool-server"
        raise ConfigError(f"{flag} needs the mcp package: {how_to_install('mcp')}")
    return named


class ToolServers:
    """The servers of a running process, and the sessions with them."""

    def __init__(self, named: NamedServers, limits: ToolLimits | None = None) -> None:
        self.limits = limits or ToolLimits()
        self._named = named
        self._sessions = Sessions(self.limits)
        self._unlabelled = [
            _Unlabelled(one.url, self._sessions) for one in named.servers if one.label is None
        ]

    async def connect(
        self, label: str, server_url: str | None, headers: Mapping[str, str], place: Place
    ) -> Session:
        """Opens a session with the server that a request names; raises `BadRequest` if it is not allowed."""
        url = await self.find(label, server_url, place)
        return await self._sessions.open(label, url, headers)

    async def find(self, label: str, server_url: str | None, place: Place) -> str:
        """The address of the server that a request names: the operator's with that label, otherwise the request's
        own.
        """
        wanted = None if server_url is None else check_url(server_url, place.field("server_url"))
        urls = await self._urls(label)
        if server_url is not None and wanted is not None and label not in urls:
            self._check_host(wanted, place)
            return server_url
        if label not in urls:
            known = ", ".join(map(repr, urls)) or "none"
            raise place.error(
                f".server_label: no tool server that can be reached is labelled {label[:64]!a}; there "
                f"are {known}"
            )
        return urls[label]

    def close(self) -> None:
        """End all sessions."""
        self._sessions.close()

    def _check_host(self, wanted: SplitResult, place: Place) -> None:
        """Refuses an address whose host is not allowed."""
        allowed = self._named.allowed_hosts
        if allowed.isdisjoint({(wanted.hostname, None), (wanted.hostname, _port(wanted))}):
            raise place.error(
                f".server_url: this server calls no tools at {wanted.netloc[:80]!a}; its operator may allow "
                "the host with --allowed-tool-hosts"
            )

    async def _urls(self, label: str) -> dict[str, str]:
        """The operator's servers by label. Servers without a label are asked for their name only if no other server
        has `label`.
        """
        urls = {one.label: one.url for one in self._named.servers if one.label is not None}
        if label not in urls:
            names = await asyncio.gather(*(one.name() for one in self._unlabelled))
            for one, name in zip(self._unlabelled, names, strict=True):
                if name is not None:
                    urls.setdefault(name, one.url)
        return urls


class _Unlabelled:
    """A server that is known by its reported name, which is requested once.

    After a failure the server is not contacted for a while, each time longer, so that later requests do not wait for
    it.
    """

    def __init__(self, url: str, sessions: Sessions) -> None:
        self.url = url
        self._sessions = sessions
        self._name: str | None = None
        self._calling = asyncio.Lock()
        self._pauses = Pauses(*_PAUSES_S)
        self._paused_until = -math.inf

    async def name(self) -> str | None:
        """Name of the server; None until it is known."""
        async with self._calling:
            if self._name is None and time.monotonic() >= self._paused_until:
                try:
                    session = await self._sessions.open(self.url, self.url, {})
                except ToolServerError:
                    self._paused_until = time.monotonic() + self._pauses.next_s()
                else:
                    self._name = session.server_name
                    session.close()
            return self._name


def check_url(text: str, place: Place) -> SplitResult:
    """Splits an HTTP address; raises `BadRequest` for any other."""
    try:
        parts = urlsplit(text)
        has_host = parts.scheme in _PORTS and parts.hostname and parts.port != 0
    except ValueError:
        parts, has_host = SplitResult("", "", "", "", ""), None
    if not has_host or parts.username is not None or not text.isprintable() or len(text) > _MAX_URL:
        raise place.error(
            f" must be a URL of http or https without a user, of at most {_MAX_URL} characters"
        )
    return parts


def _words(text: str | None) -> Iterator[str]:
    for word in (text or "").split(","):
        if word.strip():
            yield word.strip()


def _server(word: str) -> ToolServer:
    if word == "demo":
        raise ConfigError(
            "--tool-server demo is not supported: the browser and the interpreter of gpt-oss are not "
            "part of this server; run MCP servers of your own, and name them as HOST:PORT"
        )
    label, equals, address = word.partition("=")
    if not equals or "/" in label:
        label, address = "", word
    if "://" not in address:
        # vLLM's form of the address.
        address = f"http://{address}/sse"
    try:
        parts = check_url(address, Place("tool_server", f"--tool-server {word}"))
        has_port = "://" in word or parts.port is not None
    except BadRequest as error:
        raise ConfigError(str(error)) from error
    if not has_port:
        raise ConfigError(f"--tool-server {word} needs a port: HOST:PORT, or a URL")
    return ToolServer(label or None, address)


def _host(word: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(f"//{word}")
        if parts.hostname and parts.netloc == word and not set("*@") & set(word):
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise ConfigError(f"--allowed-tool-hosts takes HOST or HOST:PORT, not {word!r}")


def _port(parts: SplitResult) -> int | None:
    return parts.port or _PORTS.get(parts.scheme)
