"""A server that listens on a Unix socket instead of a port."""

import socket

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.web.http.serving import serving
from weft.core.errors import ConfigError


@pytest.fixture
def path(tmp_path_factory):
    """A path short enough for a socket."""
    return tmp_path_factory.mktemp("uds") / "weft.sock"


def client_of(path):
    transport = httpx2.AsyncHTTPTransport(uds=str(path))
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=PATIENCE_S)


async def test_requests_are_answered_on_the_socket_alone(path):
    """Whole responses and streams; the file is gone after the server's end."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    async with serving(uds=path), client_of(path) as client:
        assert (await client.get("/health")).status_code == 200
        whole = await client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 3})
        assert whole.status_code == 200
        stream = await client.post("/v1/chat/completions", json=body | {"stream": True})
        wrong = await client.get("/v1/models", headers={"host": "elsewhere.example"})
    assert stream.text.endswith("data: [DONE]\n\n")
    assert wrong.status_code == 403
    assert not path.exists()


async def test_a_socket_that_a_killed_server_left_is_taken_over(path):
    """Nobody listens there any more."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with serving(uds=path), client_of(path) as client:
        assert (await client.get("/health")).status_code == 200


async def test_a_path_in_use_is_refused(path):
    """Another server's socket, another file, and a directory that is not there; what stands there stays."""
    async with serving(uds=path), client_of(path) as client:
        with pytest.raises(ConfigError, match=f"--uds {path}: .*another process listens there"):
            async with serving(uds=path):
                pass
        assert (await client.get("/health")).status_code == 200
    path.write_text("mine")
    with pytest.raises(ConfigError, match="the file exists and is no socket"):
        async with serving(uds=path):
            pass
    assert path.read_text() == "mine"
    with pytest.raises(ConfigError, match="No such file or directory"):
        async with serving(uds=path.parent / "none" / "weft.sock"):
            pass
    with pytest.raises(ConfigError, match="too long"):
        async with serving(uds=path.parent / ("x" * 120)):
            pass
