"""The server tools that one response may call: their list, the approvals they need, and their calls."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from weft.core.errors import BadRequest
from weft.core.values.patterns import TOOL_NAME, TOOL_NAME_RULE
from weft.schema.response_object import McpListedTool
from weft.text.content import Place
from weft.web.mcp.servers import ToolServers
from weft.web.mcp.sessions import Session
from weft.web.mcp.values import CallResult, ToolServerError, failed

_INVALID_PARAMS = -32602  # error code of JSON-RPC


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedServer:
    """A server named in a request. `is_allowed` and `needs_approval` are rules for its tools."""

    label: str
    url: str | None
    headers: Mapping[str, str]
    place: Place
    is_allowed: Callable[[McpListedTool], bool]
    needs_approval: Callable[[McpListedTool], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTool:
    """A tool that may be called."""

    label: str
    listed: McpListedTool
    needs_approval: bool
    session: Session


class Toolbox:
    """The tools of a response, by their names, and the sessions with their servers until `close`."""

    def __init__(self, servers: ToolServers, wanted: Sequence[WantedServer]) -> None:
        self.limits = servers.limits
        self.labels = tuple(server.label for server in wanted)
        self.tools: dict[str, ServerTool] = {}
        self._servers = servers
        self._wanted = wanted
        self._sessions: list[Session] = []

    async def find(self) -> None:
        """Checks that every server may be used; raises `BadRequest` for a server that is not allowed."""
        for server in self._wanted:
            await self._servers.find(server.label, server.url, server.place)

    async def open(self, taken: Collection[str]) -> None:
        """Connects to the servers and lists their tools. `taken` are the names of the client's functions, which tools
        may not have. Raises `ToolServerError` if a server does not answer.
        """
        for server in self._wanted:
            session = await self._servers.connect(
                server.label, server.url, server.headers, server.place
            )
            self._sessions.append(session)
            for tool in await session.list_tools():
                if server.is_allowed(tool):
                    self._add(server, tool, session, taken)

    def close(self) -> None:
        """End the sessions."""
        for session in self._sessions:
            session.close()

    def listed(self, label: str) -> list[McpListedTool]:
        """The allowed tools of one server."""
        return [tool.listed for tool in self.tools.values() if tool.label == label]

    async def call(self, label: str, name: str, arguments: str) -> CallResult:
        """Calls a tool, with arguments as JSON from the model. A failure becomes the call's result."""
        tool = self.tools.get(name)
        if tool is None or tool.label != label:
            return failed("mcp_protocol_error", _INVALID_PARAMS, f"{label!a} has no tool {name!a}")
        try:
            decoded = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            decoded = None
        if not isinstance(decoded, dict):
            message = "the arguments must be a JSON object"
            return failed("mcp_protocol_error", _INVALID_PARAMS, message)
        return await tool.session.call(name, decoded)

    def _add(
        self, server: WantedServer, tool: McpListedTool, session: Session, taken: Collection[str]
    ) -> None:
        if not TOOL_NAME.fullmatch(tool.name):
            raise ToolServerError(
                f"the tool server {server.label!r} has a tool named {tool.name[:64]!a}; names have "
                f"{TOOL_NAME_RULE}: leave it out with allowed_tools"
            )
        if tool.name in taken or tool.name in self.tools:
            raise BadRequest(
                "tools",
                f"{server.place.path}: {server.label!a} has a tool named {tool.name!r}, as another of "
                "the tools is; leave one out with allowed_tools",
            )
        self.tools[tool.name] = ServerTool(
            label=server.label,
            listed=tool,
            needs_approval=server.needs_approval(tool),
            session=session,
        )
