"""`weft serve` with a part of the ranks: one server a rank, one a node, and a head with its nodes."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx2
import psutil
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, WEFT, Server, clean_environment, running
from tests.doubles.secret_file import secret_file
from tests.ports import free_port

MODEL = f"{SMALL}&max_len=16384"
ROOM = ("--max-model-len", "16384", "--num-gpu-blocks-override", "2048", "--num-threads", "2")
BODY = {"prompt": [5, 6, 7], "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def ask(server: Server, rank: int | None = None, **fields: object) -> httpx2.Response:
    headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    body = {**BODY, **fields}
    return httpx2.post(
        f"{server.http}/v1/completions", json=body, headers=headers, timeout=PATIENCE_S
    )


def ranks_of(server: Server) -> list[int]:
    loads = httpx2.get(f"{server.http}/load", timeout=PATIENCE_S).json()["loads"]
    return [load["data_parallel_rank"] for load in loads]


def labels_of(server: Server) -> set[str]:
    """Of the engines that its metrics know."""
    lines = httpx2.get(f"{server.http}/metrics", timeout=PATIENCE_S).text.splitlines()
    found = [line for line in lines if line.startswith("vllm:num_requests_running{")]
    return {line.partition('engine="')[2].partition('"')[0] for line in found}


def test_a_server_of_one_rank_says_which_it_is():
    """Metrics, loads and events have its rank, and another's requests are refused."""
    events = free_port(4)
    config = {"enable_kv_cache_events": True, "endpoint": f"tcp://lo:{events}"}
    with running(
        *(MODEL, *ROOM, "--data-parallel-size", "4", "--data-parallel-rank", "2"),
        *("--kv-events-config", json.dumps(config), "--no-grpc"),
    ) as server:
        assert ranks_of(server) == [2]
        assert labels_of(server) == {"2"}
        own = ask(server, rank=2)
        assert own.status_code == 200
        assert ask(server).json()["choices"] == own.json()["choices"]
        refused = ask(server, rank=1)
        assert refused.status_code == 400
        assert "data_parallel_rank 1 is another server's: this one has rank 2 of 4" in refused.text
        assert "must be at most 3" in ask(server, rank=4).text
        ports = {each.laddr.port for each in server.front.net_connections() if not each.raddr}
        assert ports & set(range(events, events + 4)) == {events + 2}


@pytest.mark.slow
def test_a_server_of_some_ranks_has_those():
    """Behind one port, from its first rank on."""
    with running(
        *(MODEL, *ROOM, "--data-parallel-size", "4", "--data-parallel-size-local", "2"),
        *("--data-parallel-start-rank", "2", "--data-parallel-hybrid-lb"),
    ) as server:
        assert ranks_of(server) == [2, 3]
        assert labels_of(server) == {"2", "3"}
        assert len(server.front.children()) == 2
        answers = [ask(server, rank=rank).json()["choices"] for rank in (2, 3)]
        assert answers[0] == answers[1]
        assert "this one has ranks 2 to 3 of 4" in ask(server, rank=0).text


@contextmanager
def headless(port: int, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A node with rank 1 of 2, and none of its processes behind it."""
    process = subprocess.Popen(
        [*WEFT, "serve", MODEL, *ROOM, "--headless", *_ranks(port), *argv],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _ranks(port: int, first: int = 1) -> tuple[str, ...]:
    start = ("--data-parallel-start-rank", str(first)) if first else ()
    return ("--data-parallel-size", "2", "--data-parallel-size-local", "1",
            "--data-parallel-rpc-port", str(port), "--data-parallel-secret-file", secret_file(), *start)  # fmt: skip


def until_health(server: Server, body: str) -> None:
    """Wait for a state that nobody is notified of."""
    with httpx2.Client(base_url=server.http, timeout=PATIENCE_S) as client:
        for _ in range(100_000):
            if client.get("/health").text.strip() == body:
                return
    raise AssertionError(f"health never was {body!r}")


@pytest.mark.slow
def test_a_node_that_is_killed_comes_back():
    """Its requests continue at another engine; the head says degraded, and takes the next node."""
    port = free_port()
    with ExitStack() as stack:
        node = stack.enter_context(headless(port))
        server = stack.enter_context(running(MODEL, *ROOM, *_ranks(port, first=0)))
        assert ranks_of(server) == [0, 1]
        assert labels_of(server) == {"0", "1"}
        expected = [ask(server, rank=rank).json()["choices"] for rank in (0, 1)]
        assert expected[0] == expected[1]
        with httpx2.stream(
            "POST",
            f"{server.http}/v1/completions",
            json={**BODY, "max_tokens": 4_000, "stream": True},
            headers={"X-data-parallel-rank": "1"},
            timeout=PATIENCE_S,
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            engines = psutil.Process(node.pid).children()
            node.kill()
            rest = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            assert not [event for event in rest if "error" in event]
            assert rest[-1]["choices"][0]["finish_reason"] == "length"
        _, alive = psutil.wait_procs(engines, PATIENCE_S)
        assert not alive
        until_health(server, "degraded")
        assert ask(server).status_code == 200
        assert ask(server, rank=1).status_code == 503
        stack.enter_context(headless(port))
        until_health(server, "")
        assert ask(server, rank=1).json()["choices"] == expected[1]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["node", "head"])
def test_either_side_ends_on_a_signal(first):
    """With status 0, and no engine is left; a node waits for another head."""
    port = free_port()
    with ExitStack() as stack:
        node = stack.enter_context(headless(port))
        server = stack.enter_context(running(MODEL, *ROOM, *_ranks(port, first=0)))
        engines = [*psutil.Process(node.pid).children(), *server.front.children()]
        if first == "head":
            server.send(signal.SIGTERM)
            assert server.wait()[0] == 0
            assert node.poll() is None
        node.send_signal(signal.SIGTERM)
        _, log = node.communicate(timeout=PATIENCE_S)
        assert node.returncode == 0, log
        if first == "node":
            assert ask(server).status_code == 200
            server.send(signal.SIGTERM)
            assert server.wait()[0] == 0
        _, alive = psutil.wait_procs(engines, PATIENCE_S)
        assert not alive


@pytest.mark.slow
def test_a_node_with_other_settings_ends_and_says_why():
    """The head goes on waiting for one that is like it."""
    port = free_port()
    with ExitStack() as stack:
        other = stack.enter_context(headless(port, "--block-size", "32"))
        head = stack.enter_context(ExitStack())
        head.enter_context(_starting(port))
        _, log = other.communicate(timeout=PATIENCE_S)
        assert other.returncode == 2
        assert "engine 1 cannot join: the head refuses: cache_config.block_bytes is" in log


@contextmanager
def _starting(port: int) -> Iterator[None]:
    """A head that is not ready before its node has joined."""
    process = subprocess.Popen(
        [*WEFT, "serve", MODEL, *ROOM, *_ranks(port, first=0), "--port", "0", "--grpc-port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
