"""`weft serve` as a process: ready block, signals, the engine's death, and start-ups that fail."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.busy import PATIENCE_S, is_within
from tests.cli.running import SMALL, WEFT, Server, clean_environment, running, streaming, weft
from tests.ports import free_port
from weft.cli.process.limits import check_port
from weft.core.errors import ConfigError

SLOW_ECHO = "embedded:echo?itl_ms=50"


def is_serving(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        answer = check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_ready_block_is_last_and_its_commands_work():
    """A user copies each line that says "try", as it is, and gets an answer."""
    with running(SMALL, "--served-model-name", "small") as server:
        assert server.banner.startswith("Weft 0.2.0 serves small, loaded in ")
        commands = tried(server)
        chat, curl = (
            subprocess.run(
                command, shell=True, input="hi\n", capture_output=True, text=True,
                timeout=PATIENCE_S, env=clean_environment(), check=True,
            ).stdout
            for command in commands
        )  # fmt: skip
    assert f" chat --address {server.address}" in commands[0]
    assert chat.strip()
    assert json.loads(curl)["choices"][0]["message"]["content"]


def tried(server: Server) -> list[str]:
    """What the block offers to try."""
    lines = server.banner.splitlines()
    return [line.removeprefix("  try").strip() for line in lines if line.startswith("  try")]


def test_the_ready_block_shows_what_was_decided():
    """Pool, limits and context with their numbers."""
    with running(SMALL, "--max-model-len=256", "--num-gpu-blocks-override=40") as server:
        assert "context 256 tokens" in server.banner
        assert "40 blocks of 16 = 640 tokens" in server.banner
        assert "128 sequences at once, 512 tokens a step" in server.banner


def test_a_start_is_little_more_than_its_imports():
    """Processor time of both processes, beside that of Python with two packages on the same machine."""

    def start_s() -> float:
        with running() as server:
            times = [process.cpu_times() for process in (server.front, server.engine)]
        return sum(time.user + time.system for time in times)

    def imports_s() -> float:
        before = psutil.Process().cpu_times()
        subprocess.run([sys.executable, "-c", "import numpy, grpc.aio"], check=True)
        after = psutil.Process().cpu_times()
        return sum(
            getattr(after, name) - getattr(before, name)
            for name in ("children_user", "children_system")
        )

    # 8 to 10 times; two seconds on a quiet core.
    assert any(start_s() < 15 * imports_s() for _ in range(3))


@pytest.mark.slow
def test_few_lines_come_before_the_ready_block():
    """A dozen lines at most, so that the block is what one sees."""
    with running(SMALL) as server:
        server.send(signal.SIGTERM)
        _, err = server.wait()
        assert len(err.splitlines()) <= 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_server_with_status_0(number: signal.Signals):
    """And nothing of it is left."""
    with running(SMALL) as server:
        engine = server.engine
        server.send(number)
        assert server.wait()[0] == 0
        assert psutil.wait_procs([engine], timeout=PATIENCE_S)[1] == []


@pytest.mark.slow
def test_a_signal_lets_open_requests_finish():
    """The answer is whole, and the status 0."""
    prompt = "one two three four five six seven eight nine ten"
    with running(SLOW_ECHO) as server, streaming(server.address, prompt) as (client, first):
        server.send(signal.SIGTERM)
        status, _ = server.wait()
        rest, _ = client.communicate(timeout=PATIENCE_S)
    assert (first + rest).decode().strip() == prompt
    assert (client.returncode, status) == (0, 0)


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_open_requests():
    """Somebody who asks twice is in a hurry."""
    with running(SLOW_ECHO) as server, streaming(server.address, "word " * 100) as (client, _):
        server.send(signal.SIGTERM)
        server.read_log_until("open requests get 30 s to finish")
        before = time.monotonic()
        server.send(signal.SIGTERM)
        status, _ = server.wait()
        took_s = time.monotonic() - before
        client.communicate(timeout=PATIENCE_S)
    assert status == 0
    assert is_within(took_s, 5)
    assert client.returncode != 0


@pytest.mark.slow
def test_the_death_of_the_engine_ends_the_server_with_the_cause_last():
    """A supervisor sees a non-zero status, and a reader sees why."""
    with running(SMALL) as server:
        assert is_serving(server.address)
        server.engine.kill()
        status, err = server.wait()
    assert status == 1
    assert err.splitlines()[-1].startswith(
        "error: the engine process ended unexpectedly (signal 9)"
    )


@pytest.mark.slow
def test_no_engine_outlives_a_server_that_was_killed():
    """Not even SIGKILL leaves an orphan."""
    with running(SMALL) as server:
        engine = server.engine
        server.process.kill()
        server.process.wait()
        assert psutil.wait_procs([engine], timeout=PATIENCE_S)[1] == []


@pytest.mark.slow
def test_a_signal_during_start_leaves_nothing_behind():
    """A model that loads for seconds: the engine is ended with the server, and the status tells."""
    for _ in range(5):
        process, out, family = ended_during_start()
        if not out:  # else it was ready before the signal came
            break
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    assert psutil.wait_procs(family, timeout=PATIENCE_S)[1] == []


def ended_during_start() -> tuple[subprocess.Popen[str], str, list[psutil.Process]]:
    """A server that got a signal as soon as it had a process of its own, what it said, and that process."""
    large = "embedded:random?layers=16&hidden=1024&heads=8&kv_heads=8&head_dim=128&intermediate=4096&vocab=1000"
    process = subprocess.Popen(
        [*WEFT, "serve", large, "--grpc-port", "0", "--port", "0", "--max-model-len", "256"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    )  # fmt: skip
    front = psutil.Process(process.pid)
    while not (family := front.children()):
        time.sleep(0.01)  # nothing is printed before the ready block
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    return process, out, family


def refused(*argv: str, **environment: str) -> str:
    """The one line a start-up that fails ends in, long before `weft` would give up waiting."""
    result = weft("serve", *argv, "--port", "0", **environment)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_a_port_in_use_is_refused_before_the_model_is_read():
    """The model named here does not exist, and it is the port that is complained about."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("/no/such/model", "--grpc-port", str(port))
    assert f"cannot listen on 127.0.0.1:{port}" in line


def test_a_port_whose_last_connections_linger_is_free():
    """A server that is restarted gets its port back at once."""
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port)) as old,
        socket.create_connection(("127.0.0.1", port)),
        old.accept()[0] as accepted,
    ):
        accepted.close()  # the side that closes first is the one that lingers
    check_port("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused():
    """One can listen on one's own addresses only."""
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0"):
        check_port("192.0.2.1", 0)


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_refused_with_flags_that_would():
    """And those flags work."""
    line = refused(SMALL, "--max-model-len", "256", "--num-gpu-blocks-override", "4")
    first = line.split('"')[1]
    with running(SMALL, *first.split()) as server:
        assert "4 blocks of 16" in server.banner


@pytest.mark.slow
def test_too_few_open_files_are_refused(tmp_path: Path):
    """With 64 the first clients would get connection errors that nobody understands."""
    script = tmp_path / "few.sh"
    script.write_text('ulimit -n 64; exec "$@"\n')
    result = subprocess.run(
        ["/bin/sh", str(script), *WEFT, "serve", SMALL, "--grpc-port", "0", "--port", "0"],
        capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environment(), check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "only 64 open files are allowed" in result.stderr


@pytest.mark.slow
def test_the_cause_is_shown_with_debug_logging():
    """The traceback is there for whoever asks for it."""
    result = weft(
        "serve", "/no/such/model", "--log-level", "debug", "--grpc-port", "0", "--port", "0"
    )
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.slow
def test_a_busy_server_logs_its_load():
    """One line about what it does, a few seconds after it began."""
    with running("embedded:echo") as server:
        assert weft("complete", "hello", "--address", server.address).returncode == 0
        server.read_log_until("tok/s, running 0, waiting 0, KV usage 0.0%")
