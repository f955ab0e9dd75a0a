"""A server whose descriptors run out: what needs one fails with the reason, and the rest goes on."""

import resource
import socket

import httpx2

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, running
from tests.faults.watching import until

NUM_STRANGERS = 60


def test_a_server_without_descriptors_lives_on():
    """Structured output that needs a process gets 503, other requests are answered, nothing leaks or spins."""
    with (
        running(SMALL) as server,
        httpx2.Client(base_url=server.http, timeout=PATIENCE_S) as client,
    ):
        port = int(server.http.rpartition(":")[2])
        body = {"prompt": "a", "max_tokens": 2, "model": _name_of_model(client)}
        structured = {**body, "structured_outputs": {"regex": "[ab]+"}}
        front = server.front
        before = front.num_fds()
        _, hard = front.rlimit(resource.RLIMIT_NOFILE)
        front.rlimit(resource.RLIMIT_NOFILE, (before + NUM_STRANGERS // 2, hard))
        strangers = [
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            for _ in range(NUM_STRANGERS)
        ]
        for stranger in strangers[NUM_STRANGERS // 2 :]:
            assert stranger.recv(1) == b""  # closed at once: it is not left to wait

        assert front.cpu_percent(interval=0.5) < 50
        refused = client.post("/v1/completions", json=structured)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "Too many open files" in refused.json()["error"]["message"]
        assert client.post("/v1/completions", json=body).status_code == 200
        assert client.get("/metrics").status_code == 200

        for stranger in strangers:
            stranger.close()
        until(lambda: front.num_fds() <= before, within_s=30)
        assert httpx2.get(f"{server.http}/health").status_code == 200
        answered = client.post("/v1/completions", json=structured)
        assert answered.status_code == 200
        assert set(answered.json()["choices"][0]["text"]) <= {"a", "b"}
        assert (
            front.num_fds() <= before + 2
        )  # the process that it has now, and the other connection


def _name_of_model(client: httpx2.Client) -> str:
    name: str = client.get("/v1/models").json()["data"][0]["id"]
    return name
