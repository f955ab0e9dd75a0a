"""`weft serve` over HTTP, as a process: its first second, its addresses, its keys, and its end."""

import json
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.busy import PATIENCE_S, is_within
from tests.cli.running import SMALL, WEFT, Server, clean_environment, here, running, started, weft
from tests.faults.watching import is_listening, until
from tests.ports import free_port
from tests.rpc.test_auth import make_pair

SLOW_TO_LOAD = "embedded:random?layers=24&hidden=1024&vocab=32000&max_len=1024"


def get(url: str, body: object = None, **headers: str) -> tuple[int, str]:
    """Status and text of an answer, 0 where nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | headers
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (OSError, HTTPException):  # or ends in the midst of it
        return 0, ""


def test_both_servers_answer_for_one_engine():
    """The ready block names both, and comes last; scripts find their line in the log."""
    with running(SMALL, "--served-model-name", "small") as server:
        assert server.http.startswith("http://127.0.0.1:")
        status, text = get(f"{server.http}/v1/models")
        assert (status, json.loads(text)["data"][0]["id"]) == (200, "small")
        tokens = get(f"{server.http}/tokenize", {"model": "small", "prompt": "hello"})
        assert json.loads(tokens[1])["count"] == 5
        server.read_log_until(f"Uvicorn running on {server.http}")
        assert here("complete", "hello", "--address", server.address).returncode == 0


@pytest.mark.slow
def test_either_server_can_be_left_out():
    """And then nothing listens there."""
    with running(SMALL, "--no-grpc") as server:
        assert "  gRPC" not in server.banner
        assert get(f"{server.http}/readyz")[0] == 200
        assert f"  try     curl {server.http}/v1/chat/completions" in server.banner
        assert server.banner.count("  try") == 1
        server.send(signal.SIGTERM)
        assert server.wait()[0] == 0
    with running(SMALL, "--no-http") as server:
        assert "  HTTP" not in server.banner
        assert is_listening(server.address)


@pytest.mark.slow
def test_http_on_a_unix_socket_and_grpc_on_its_port(tmp_path_factory):
    """The banner names the socket, with a command that uses it; there is no address for a browser."""
    path = tmp_path_factory.mktemp("uds") / "weft.sock"
    argv = ("serve", SMALL, "--uds", str(path), "--grpc-port", "0")
    with started(*argv, last="  next") as (process, lines):
        server = Server(process, "".join(lines))
        assert f"  HTTP    unix:{path} (/v1" in server.banner
        assert f"--unix-socket {path} " in server.banner
        assert "in a browser" not in server.banner
        assert is_listening(server.address)
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(PATIENCE_S)
            asked.connect(str(path))
            asked.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert asked.recv(100).startswith(b"HTTP/1.1 200")
        server.send(signal.SIGTERM)
        assert server.wait()[0] == 0
    assert not path.exists()


@pytest.mark.slow
def test_http_answers_long_before_the_model_is_ready():
    """Alive, not ready, and how far it is; everything else is told when to come back."""
    for _ in range(5):
        seen = seen_during_start()
        if not seen.out:  # else it was ready before it was asked all
            break
    # A second where nothing else runs; `benchmarks` are for that.
    assert is_within(seen.process_s, 5)
    assert (seen.ready, seen.models[0]) == (503, 503)
    assert json.loads(seen.models[1])["error"]["code"] == "service_unavailable"
    assert seen.progress["phase"] != "ready"
    assert 0 <= seen.progress["fraction"] < 1
    assert (seen.status, seen.out) == (128 + signal.SIGTERM, "")
    assert "Traceback" not in seen.err


@dataclass(frozen=True, slots=True)
class Seen:
    """Of a server whose model loads: what it answered, after how long it was alive, and how it ended."""

    process_s: float
    ready: int
    models: tuple[int, str]
    progress: dict[str, Any]
    status: int
    out: str
    err: str


def seen_during_start() -> Seen:
    """One start, ended by a signal when it has answered."""
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    started = time.monotonic()
    with subprocess.Popen(
        [*WEFT, "serve", SLOW_TO_LOAD, "--num-gpu-blocks-override", "64", "--port", port, "--no-grpc"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    ) as process:  # fmt: skip
        try:
            until(lambda: get(f"{url}/livez")[0] == 200, 10)
            process_s = time.monotonic() - started
            ready, models = get(f"{url}/readyz")[0], get(f"{url}/v1/models")
            progress = json.loads(get(f"{url}/startupz")[1])
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    return Seen(process_s, ready, models, progress, process.returncode, out, err)


@pytest.mark.slow
def test_http_is_up_before_anything_that_computes_is_imported():
    """The probes answer meanwhile: numpy, gRPC and the backends take as long to import as all of HTTP does."""
    code = "import sys, weft.cli.main, weft.cli.serving.serve\nprint(*sys.modules)"
    result = subprocess.run(
        [WEFT[0], "-c", code], capture_output=True, text=True, check=True, env=clean_environment()
    )
    names = {".".join(name.split(".")[:2]) for name in result.stdout.split()}
    assert "weft.web" in names
    assert names.isdisjoint({"numpy", "grpc", "llguidance", "weft.compute", "weft.pb"})


@pytest.mark.slow
def test_keys_hold_for_both_servers():
    """One flag, every way in; control has its own."""
    argv = (SMALL, "--api-key", "one", "--api-key", "two", "--control-api-key", "three")
    with running(*argv) as server:
        assert get(f"{server.http}/v1/models")[0] == 401
        assert get(f"{server.http}/v1/models", authorization="Bearer two")[0] == 200
        assert get(f"{server.http}/resume", {}, **{"x-api-key": "one"})[0] == 401
        assert get(f"{server.http}/resume", {}, **{"x-api-key": "three"})[0] == 200
        assert here("complete", "x", "--address", server.address).returncode == 1
        assert (
            here("complete", "x", "--address", server.address, "--api-key", "one").returncode == 0
        )


def test_tls_encrypts(tmp_path: Path):
    """The block says https, and the certificate is the one given."""
    pair = make_pair(tmp_path, "server")
    argv = ("--ssl-certfile", str(pair.cert), "--ssl-keyfile", str(pair.key))
    with running(SMALL, "--no-grpc", *argv) as server:
        trust = ssl.create_default_context(cafile=pair.cert)
        with urllib.request.urlopen(
            f"{server.http}/readyz", context=trust, timeout=PATIENCE_S
        ) as answer:
            assert answer.status == 200
    assert server.http.startswith("https://127.0.0.1:")


@pytest.mark.slow
def test_a_template_of_the_users_own_is_used(tmp_path: Path):
    """In place of the model's."""
    path = tmp_path / "template.jinja"
    path.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    with running(SMALL, "--chat-template", str(path), "--no-grpc") as server:
        body = {"messages": [{"role": "user", "content": "ab"}]}
        tokens = json.loads(get(f"{server.http}/tokenize", body)[1])["tokens"]
    assert bytes(tokens) == b"<ab>"


@pytest.mark.slow
def test_a_port_in_use_is_refused_before_the_model_is_read():
    """And the server that has it is not disturbed."""
    with running(SMALL, "--no-grpc") as server:
        port = server.http.rpartition(":")[2]
        result = weft("serve", "/no/such/model", "--port", port, "--no-grpc")
        assert get(f"{server.http}/readyz")[0] == 200
    assert result.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "--port" in result.stderr


@pytest.mark.slow
def test_the_death_of_the_engine_ends_http_too():
    """Nobody is told that all is well, and the status is that of a failure."""

    def is_ready(server: Server) -> bool:
        return get(f"{server.http}/health")[0] == 200

    with running(SMALL, "--no-grpc") as server:
        assert is_ready(server)
        server.engine.kill()
        until(lambda: not is_ready(server), 2)
        assert server.wait()[0] == 1
        assert not is_listening(server.http.removeprefix("http://"))
