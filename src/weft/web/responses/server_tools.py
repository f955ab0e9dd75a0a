"""MCP tools of a request: which servers, which of their tools, and which tools need approval."""

import re
from collections.abc import Callable

from weft.core.checks.object_ids import new_id
from weft.core.errors import BadRequest
from weft.schema.response_object import McpListedTool, McpListToolsItem
from weft.schema.responses import (
    McpApprovalFilter,
    McpToolFilter,
    ResponsesBody,
    ResponsesTool,
)
from weft.text.content import Place
from weft.web.items.items import RequestInput
from weft.web.mcp.servers import ToolServers
from weft.web.mcp.toolbox import Toolbox, WantedServer

_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_MAX_HEADERS = 32
_MAX_HEADER_CHARS = 8192
# Headers that control the transport, which a request may not set.
_OWN_HEADERS = frozenset(
    "accept accept-encoding connection content-length content-type cookie expect host keep-alive "
    "last-event-id mcp-protocol-version mcp-session-id proxy-authorization te trailer "
    "transfer-encoding upgrade".split()
)


def to_toolbox(
    body: ResponsesBody, servers: ToolServers | None, conversation: RequestInput
) -> Toolbox | None:
    """The servers that a request names, not contacted yet; None if it names none."""
    place = Place("tools", "tools")
    wanted = [
        _wanted(tool, place[position])
        for position, tool in enumerate(body.tools or ())
        if tool.type == "mcp"
    ]
    if not wanted:
        _check_approved(conversation, None)
        return None
    if servers is None:
        raise BadRequest(
            "tools",
            f"{wanted[0].place.path}: tools of type mcp are not offered; the server has to be started "
            "with --tool-server or --allowed-tool-hosts",
        )
    _check_labels(wanted, servers)
    return Toolbox(servers, wanted)


async def open_toolbox(toolbox: Toolbox, body: ResponsesBody, conversation: RequestInput) -> None:
    """Connects to the servers and lists their tools; raises `ToolServerError` if one does not answer."""
    await toolbox.open({tool.name for tool in body.tools or () if tool.name is not None})
    _check_approved(conversation, toolbox)


def to_items(toolbox: Toolbox | None, known_labels: frozenset[str]) -> list[McpListToolsItem]:
    """List items for the servers whose tools the conversation does not know yet."""
    if toolbox is None:
        return []
    return [
        McpListToolsItem(id=new_id("mcpl"), server_label=label, tools=toolbox.listed(label))
        for label in toolbox.labels
        if label not in known_labels
    ]


def check_server(tool: ResponsesTool, place: Place) -> None:
    """Raises `BadRequest` for an invalid server specification."""
    if tool.server_label is None or not _LABEL.fullmatch(tool.server_label):
        raise place.error(
            ".server_label must have 1 to 64 letters, digits, underscores, dots and dashes"
        )
    if isinstance(tool.require_approval, str) and tool.require_approval not in ("always", "never"):
        raise place.error(
            '.require_approval must be "always", "never", or filters of that name, got '
            f"{tool.require_approval[:40]!a}"
        )
    headers = tool.headers or {}
    num_chars = sum(len(name) + len(value) for name, value in headers.items())
    if len(headers) > _MAX_HEADERS or num_chars > _MAX_HEADER_CHARS:
        raise place.error(
            f".headers takes at most {_MAX_HEADERS} headers of {_MAX_HEADER_CHARS} characters together"
        )
    for name, value in (*headers.items(), ("authorization", tool.authorization or "")):
        if not _HEADER.fullmatch(name) or name.lower() in _OWN_HEADERS:
            raise place.error(f".headers: {name[:64]!a} is no header that may be set here")
        if not (value.isascii() and value.isprintable()):
            raise place.error(f".headers: the value of {name!a} must be printable ASCII")


def _wanted(tool: ResponsesTool, place: Place) -> WantedServer:
    check_server(tool, place)
    headers = dict(tool.headers or {})
    if tool.authorization is not None:
        headers["Authorization"] = f"Bearer {tool.authorization}"
    assert tool.server_label is not None
    return WantedServer(
        label=tool.server_label,
        url=tool.server_url,
        headers=headers,
        place=place,
        is_allowed=_filter(tool.allowed_tools),
        needs_approval=_approval(tool.require_approval),
    )


def _check_labels(wanted: list[WantedServer], servers: ToolServers) -> None:
    if len(wanted) > servers.limits.max_servers:
        raise BadRequest("tools", f"tools takes at most {servers.limits.max_servers} of type mcp")
    labels: set[str] = set()
    for server in wanted:
        if server.label in labels:
            raise server.place.error(f".server_label: there are two servers {server.label!r}")
        labels.add(server.label)


def _check_approved(conversation: RequestInput, toolbox: Toolbox | None) -> None:
    """An approval opens no tool that the request does not name."""
    for call in conversation.approved:
        tool = None if toolbox is None else toolbox.tools.get(call.name)
        if tool is None or tool.label != call.label:
            raise call.place.error(
                f": the call is of {call.name[:64]!a} of {call.label[:64]!a}, which is none of the tools "
                "of this request"
            )


def _filter(allowed: list[str] | McpToolFilter | None) -> Callable[[McpListedTool], bool]:
    match allowed:
        case None:
            return lambda _: True
        case list():
            return lambda tool: "*" in allowed or tool.name in allowed
        case McpToolFilter(tool_names=names, read_only=read_only):
            return lambda tool: (
                (names is None or "*" in names or tool.name in names)
                and (read_only is None or _is_read_only(tool) == read_only)
            )


def _is_read_only(tool: McpListedTool) -> bool:
    """True if the tool's server declares it read-only."""
    return bool(tool.annotations and tool.annotations.get("readOnlyHint"))


def _approval(required: str | McpApprovalFilter | None) -> Callable[[McpListedTool], bool]:
    """Returns the approval rule. A tool without annotations needs approval, as in OpenAI's API."""
    match required:
        case McpApprovalFilter(always=always, never=never):
            needs = _filter(always) if always is not None else lambda _: False
            free = _filter(never) if never is not None else lambda _: False
            return lambda tool: needs(tool) or not free(tool)
        case _:
            return lambda _: required != "never"
