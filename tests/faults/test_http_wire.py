"""Hostile and broken HTTP clients against a real server process: it answers, or hangs up, and goes on."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.busy import PATIENCE_S, is_within
from tests.cli.running import Server, running
from tests.cli.test_serve_http import get
from tests.faults.watching import until

MODEL = "embedded:random?layers=2&hidden=64&vocab=512&max_len=256"
CANARY = {"prompt": [11, 12, 13], "max_tokens": 5, "temperature": 0, "ignore_eos": True}
POST = (
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "Connection: close\r\n"
)
MIB = 2**20


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """One server for all of them: what one does must not show in the next."""
    with running(MODEL, "--no-grpc") as server:
        yield server


def canary(server: Server) -> str:
    """What a plain request is answered."""
    status, text = get(f"{server.http}/v1/completions", CANARY)
    assert status == 200
    return str(json.loads(text)["choices"][0]["text"])


@pytest.fixture(scope="module")
def reference(shared: Server) -> str:
    """The canary's song before anything happened."""
    return canary(shared)


@pytest.fixture
def server(shared: Server, reference: str) -> Iterator[Server]:
    """Afterwards nothing is open, health is good, and the canary sings as before."""
    yield shared
    until(lambda: json.loads(get(f"{shared.http}/load")[1])["server_load"] == 0)
    assert canary(shared) == reference
    assert get(f"{shared.http}/health")[0] == 200


def connect(server: Server) -> socket.socket:
    """A plain connection."""
    host, _, port = server.http.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def exchange(server: Server, data: bytes) -> bytes:
    """Everything that is answered to `data`."""
    answer = b""
    with connect(server) as connection:
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                answer += part
        except (ConnectionResetError, BrokenPipeError):
            pass
    return answer


def post(body: bytes) -> bytes:
    """A request with that body."""
    return f"{POST}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "body",
    [
        b"\x80\x04cos\nsystem\n(S'touch canary'\ntR.",
        bytes(range(256)),
        b'{"prompt": "a',
        b'{"prompt": "\xff"}',
        b'{"prompt":' + b"[" * 60_000,
        b'{"zzz":' + b"[" * 20_000 + b"]" * 20_000 + b', "prompt": "a"}',
        b"",
        b"null",
        b"[]",
        b'\xef\xbb\xbf{"prompt": "a"}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "max_tokens": 1.5}',
    ],
    ids=range(14),
)
def test_a_body_that_is_no_request_is_refused(server: Server, body: bytes):
    """Rows 1 to 4, 19, 21, 29 and 39: 400, in the API's error object, with nothing of our inside."""
    answer = exchange(server, post(body))
    head, _, text = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(text)["error"]["type"] == "invalid_request_error"
    assert b"Traceback" not in text
    assert b"0x" not in text


def test_a_body_over_the_limit_is_refused_before_it_is_held(server: Server):
    """Row 5: 80 MB, announced or not, and the server never grows by as much."""
    before = server.front.memory_info().rss
    announced = exchange(server, post(b" " * (80 * MIB)))
    chunk = b"%x\r\n%b\r\n" % (MIB, b" " * MIB)
    streamed = exchange(
        server, f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 80 + b"0\r\n\r\n"
    )
    assert announced.startswith(b"HTTP/1.1 413 ")
    assert streamed.startswith(b"HTTP/1.1 413 ")
    assert server.front.memory_info().rss - before < 160 * MIB


def test_a_body_in_chunks_of_a_byte_is_read(server: Server):
    """Row 14: a hundred thousand of them, and memory stays flat."""
    before = server.front.memory_info().rss
    head = f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode()
    answer = exchange(server, head + b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")  # it was blank
    assert server.front.memory_info().rss - before < 10 * MIB


@pytest.mark.slow
def test_a_slow_body_is_not_waited_for(server: Server):
    """Row 13: a byte a second gets 408 within thirty."""
    started = time.monotonic()
    with connect(server) as connection:
        connection.sendall(f"{POST}Content-Length: 1000\r\n\r\n".encode())
        connection.settimeout(1)
        answer = b""
        while not answer and time.monotonic() - started < 40:
            connection.sendall(b" ")
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert is_within(time.monotonic() - started, 30)


@pytest.mark.parametrize(
    "data",
    [
        f"{POST}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n".encode(),
        f"{POST}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}".encode(),
        f"{POST}Content-Length: -2\r\n\r\n{{}}".encode(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["both", "two", "negative", "tls", "http2"],
)
def test_what_is_not_a_plain_request_is_refused_and_hung_up_on(server: Server, data: bytes):
    """Rows 12 and 15."""
    assert exchange(server, data).startswith(b"HTTP/1.1 400 ")


def test_idle_connections_cost_a_descriptor_only(server: Server, reference: str):
    """Row 16: five hundred, and each is given back when it is closed."""
    before = server.front.num_fds()
    with ExitStack() as stack:
        for number in range(500):
            connection = stack.enter_context(closing(connect(server)))
            connection.sendall(POST.encode()[: number % 50])
        until(lambda: server.front.num_fds() >= before + 450)
        assert canary(server) == reference
    until(lambda: server.front.num_fds() <= before + 5)


@pytest.mark.parametrize("stream", [True, False])
def test_callers_who_vanish_leave_nothing(server: Server, stream: bool):
    """Fifty hang up in the midst of an answer; the fixture sees that the engine is idle."""
    body = json.dumps({**CANARY, "max_tokens": 240, "stream": stream}).encode()
    for _ in range(50):
        with connect(server) as connection:
            connection.sendall(post(body))
            time.sleep(0.002 if not stream else 0)
            if stream:
                connection.recv(100)


@pytest.mark.slow
def test_open_streams_finish_when_the_server_is_asked_to_end():
    """Row 63: readiness falls first, what is new gets 503, and what is open is whole."""
    with running("embedded:echo?itl_ms=20", "--no-grpc") as server, connect(server) as connection:
        # Five seconds, in which the server is seen to end.
        request = {"prompt": list(range(100, 150)) * 5, "max_tokens": 250, "stream": True}
        connection.sendall(post(json.dumps(request).encode()))
        answer = connection.recv(65536)
        server.send(signal.SIGTERM)
        until(lambda: get(f"{server.http}/readyz")[0] == 503)
        assert get(f"{server.http}/livez")[0] == 200
        assert get(f"{server.http}/v1/completions", CANARY)[0] == 503
        while part := connection.recv(65536):
            answer += part
        assert server.wait()[0] == 0
    assert b"data: [DONE]" in answer


@pytest.mark.slow
def test_streams_that_are_cut_say_so():
    """After its time, or after a second signal: an error event, no [DONE], and soon."""
    with (
        running("embedded:echo?itl_ms=20", "--no-grpc", "--shutdown-timeout", "0.3") as server,
        connect(server) as connection,
    ):
        request = {"prompt": list(range(100, 160)), "max_tokens": 2000, "ignore_eos": True}
        connection.sendall(post(json.dumps({**request, "stream": True}).encode()))
        answer = connection.recv(65536)
        server.send(signal.SIGTERM)
        while part := connection.recv(65536):
            answer += part
        status, err = server.wait()
    assert status == 0
    assert b'"error"' in answer
    assert b"[DONE]" not in answer
    assert "Traceback" not in err


def test_the_death_of_the_engine_ends_open_streams():
    """Row 68: within two seconds, each with an error, and the process with a status."""
    with running("embedded:echo?itl_ms=20", "--no-grpc") as server, connect(server) as connection:
        request = {"prompt": list(range(100, 160)), "max_tokens": 2000, "ignore_eos": True}
        connection.sendall(post(json.dumps({**request, "stream": True}).encode()))
        answer = connection.recv(65536)
        killed_at = time.monotonic()
        server.engine.kill()
        while part := connection.recv(65536):
            answer += part
        took_s = time.monotonic() - killed_at
        status, _ = server.wait()
    assert is_within(took_s, 2)
    assert status == 1
    assert b"the engine process ended unexpectedly" in answer
    assert b"[DONE]" not in answer
