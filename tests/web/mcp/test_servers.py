"""Which servers of tools there are, and which a request may name."""

import asyncio
import dataclasses

import pytest

from tests.busy import PATIENCE_S, until
from tests.web.serving import http_serving
from weft.core.errors import BadRequest, ConfigError
from weft.schema.response_object import McpListedTool
from weft.text.content import Place
from weft.web.mcp.servers import NamedServers, ToolServer, ToolServers, check_url, read_servers
from weft.web.mcp.sessions import Session, Sessions
from weft.web.mcp.toolbox import ServerTool, Toolbox
from weft.web.mcp.values import ToolLimits, ToolServerError
from weft.web.options import ApiOptions

PLACE = Place("tools", "tools[0]")


def named(servers=None, hosts=None):
    return read_servers(ApiOptions(tool_server=servers, allowed_tool_hosts=hosts))


def test_without_flags_there_are_none():
    """Nothing is called that nobody named."""
    assert named() is None


@pytest.mark.parametrize(
    ("text", "label", "url"),
    [
        ("localhost:8888", None, "http://localhost:8888/sse"),
        ("a=localhost:8888", "a", "http://localhost:8888/sse"),
        ("a=https://x.org/mcp?key=b=c", "a", "https://x.org/mcp?key=b=c"),
        ("https://x.org/mcp?key=b", None, "https://x.org/mcp?key=b"),
        ("[::1]:8888", None, "http://[::1]:8888/sse"),
    ],
)
def test_a_server_is_a_port_or_an_address(text, label, url):
    """HOST:PORT as vLLM takes it, which is a stream of events; anything else by its URL."""
    assert named(text).servers == (ToolServer(label, url),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("demo", "not supported"),
        ("localhost", "needs a port"),
        ("a=ftp://x:1", "URL of http"),
        ("http://me:secret@x:1/", "without a user"),
        ("a=x:1,a=y:1", "twice"),
        ("x:port", "URL of http"),
    ],
)
def test_a_server_that_is_none_is_refused_at_the_start(text, said):
    """With what is allowed."""
    with pytest.raises(ConfigError, match=said):
        named(text)


@pytest.mark.parametrize("text", ["http://x.org", "x.org/path", "me@x.org", "x.org:port", "*:"])
def test_a_host_is_a_name_and_perhaps_a_port(text):
    """No patterns, no addresses with paths."""
    with pytest.raises(ConfigError, match="HOST or HOST:PORT"):
        named(hosts=text)


@pytest.mark.parametrize(
    ("hosts", "url", "is_allowed"),
    [
        ("x.org", "https://x.org/mcp", True),
        ("x.org", "http://X.ORG:81/mcp", True),
        ("x.org:443", "https://x.org/mcp", True),
        ("x.org:443", "http://x.org/mcp", False),
        ("x.org", "https://y.x.org/", False),
        ("x.org", "https://x.org.evil.com/", False),
        ("[::1]:80", "http://[::1]/", True),
        ("", "http://127.0.0.1/", False),
    ],
)
def test_a_request_may_name_servers_of_allowed_hosts_only(hosts, url, is_allowed):
    """Host for host, and port for port where one was given."""
    servers = ToolServers(named(hosts=hosts))
    outcome = asyncio.run(refusal(servers, "a", url))
    assert (outcome is None) == is_allowed


async def refusal(servers, label, url):
    try:
        await servers.find(label, url, PLACE)
    except BadRequest as error:
        return str(error)
    return None


def test_the_operators_label_comes_before_an_address_of_the_request():
    """As with vLLM: clients write any address beside the label of a server that the operator named."""
    allowed = frozenset({("y", None)})
    servers = ToolServers(NamedServers((ToolServer("a", "http://x:81/sse"),), allowed))
    for url in ("http://x:81", "http://x:82", "http://y/other", None):
        assert asyncio.run(servers.find("a", url, PLACE)) == "http://x:81/sse"
    assert asyncio.run(servers.find("b", "http://y/other", PLACE)) == "http://y/other"
    assert "must be a URL" in asyncio.run(refusal(servers, "a", "file:///x"))
    assert "--allowed-tool-hosts" in asyncio.run(refusal(servers, "b", "http://x:81"))
    assert "'a'" in asyncio.run(refusal(servers, "b", None))


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "http://", "x.org", "http://u@x.org/", "http://x.org/\n", "http://x:0/"],
)
def test_an_address_is_one_of_http(url):
    """Whatever else a library would do with it."""
    with pytest.raises(BadRequest, match=r"^tools\[0\] must be a URL"):
        check_url(url, PLACE)


async def test_a_session_may_be_closed_after_all_are():
    """As by a response that ends while the server does."""
    sessions = Sessions(ToolLimits())
    session = Session("a", sessions._started(), ToolLimits())
    sessions.close()
    session.close()


async def test_all_sessions_end_with_the_server(served):
    """Else they end with the process, and the tool servers see connections break."""
    servers = ToolServers(NamedServers())
    async with http_serving(dataclasses.replace(served, tool_servers=servers)):
        loop = servers._sessions._started()
    await until(loop.is_closed)


@pytest.mark.slow  # the mcp package takes seconds to import
async def test_who_connects_while_all_sessions_end_gets_an_error():
    """And does not wait for a thread that has ended."""
    connected, left = asyncio.Event(), asyncio.Event()

    async def accept(reader, writer):  # and says nothing
        connected.set()
        while await reader.read(1024):
            pass
        writer.close()
        await writer.wait_closed()
        left.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    sessions = Sessions(ToolLimits(connect_timeout_s=2 * PATIENCE_S))
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    opening = asyncio.create_task(sessions.open("a", url, {}))
    async with asyncio.timeout(PATIENCE_S):
        await connected.wait()
        sessions.close()
        with pytest.raises(ToolServerError, match="shutting down"):
            await opening
        await left.wait()
    server.close()


async def test_arguments_that_are_nested_too_deep_are_no_object():
    """A client may write them, as of a call that it approves of."""
    toolbox = Toolbox(ToolServers(NamedServers()), [])
    listed = McpListedTool(name="t", description=None, input_schema={}, annotations=None)
    session = Session("a", asyncio.get_running_loop(), ToolLimits())
    toolbox.tools["t"] = ServerTool(label="a", listed=listed, needs_approval=False, session=session)
    result = await toolbox.call("a", "t", "[" * 100_000)
    assert "must be a JSON object" in result.text


@pytest.mark.slow  # the mcp package takes seconds to import
async def test_a_server_without_a_label_that_is_down_is_called_once():
    """Whoever names a server that nobody knows would wait for it, each time; now one does, for all at once."""
    num_calls = 0

    async def connected(_reader, writer):  # and says nothing
        nonlocal num_calls
        num_calls += 1
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as down:
        port = down.sockets[0].getsockname()[1]
        servers = ToolServers(NamedServers((ToolServer(None, f"http://127.0.0.1:{port}/mcp"),)))
        said = await asyncio.gather(*(refusal(servers, "x", None) for _ in range(3)))
        num_first = num_calls
        said.append(await refusal(servers, "x", None))
        servers.close()
    assert all("there are none" in one for one in said)
    assert num_calls == num_first == 1
