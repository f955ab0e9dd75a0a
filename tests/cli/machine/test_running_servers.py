"""Servers that run, from outside: weft.cli.machine.top and weft.cli.machine.processes."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, WEFT, Server, clean_environment, here, running, streaming, weft
from tests.cli.terminal import Terminal
from tests.faults.watching import until
from weft.cli.machine.processes import command_of
from weft.cli.machine.serve_line import model_in


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("--num-gpu-blocks-override", "40", "--max-model-len=256", SMALL) as started:
        yield started


def test_one_sample_for_scripts(server: Server):
    """What the engine did so far, and its rates over the interval."""
    argv = ("complete", "hello", "--temperature", "0")
    assert here(*argv, "--address", server.address).returncode == 0
    argv = ("--once", "--interval", "50ms", "--url", server.http)
    until(lambda: idle_in(sampled(*argv)), PATIENCE_S)  # the last step may be told late
    sample = sampled(*argv)
    assert (sample["model"], sample["engine"]) == (SMALL, "0")
    assert (sample["running"], sample["waiting"], sample["kv_usage"]) == (0, 0, 0)
    assert (sample["block_size"], sample["num_blocks"]) == (16, 40)
    assert sample["steps"] > 100
    assert (sample["steps_per_s"], sample["generated_per_s"]) == (0, 0)


def sampled(*argv: str) -> dict[str, Any]:
    """What `weft top` finds."""
    (sample,) = json.loads(here("top", "--json", *argv).stdout)
    return sample


def idle_in(sample: dict[str, Any]) -> bool:
    """Whether nothing runs, and nothing was done in its interval."""
    return not any(
        sample[name] for name in ("running", "waiting", "steps_per_s", "generated_per_s")
    )


def test_rates_are_those_of_the_interval(server: Server):
    """A request that comes between two samples is in the second's rates, prompt and answer."""
    argv = [*WEFT, "top", "--json", "--interval", "20ms", "--url", server.http]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=clean_environment()) as top:
        assert top.stdout is not None
        top.stdout.readline()
        with streaming(server.address, "hello", "--max-tokens", "100") as (client, _):
            client.wait(timeout=PATIENCE_S)
        samples = iter(json.loads(line)[0] for line in top.stdout)
        busy = next(sample for sample in samples if sample["generated_per_s"] > 0)
        idle = next(sample for sample in samples if sample["generated_per_s"] == 0)
        top.send_signal(signal.SIGINT)
        top.communicate(timeout=PATIENCE_S)
    assert busy["steps_per_s"] > 0
    assert idle["steps"] >= busy["steps"]
    assert top.returncode == 0


def test_one_sample_for_people(server: Server):
    """The same in words, without anything that moves a cursor."""
    text = here("top", "--once", "--interval", "50ms", "-a", server.http).stdout
    assert "0 running, 0 waiting" in text
    assert "0% of 640 tokens" in text
    assert "\x1b" not in text


def test_a_terminal_shows_one_picture(server: Server):
    """There, and only there, the picture before is cleared."""
    with closing(Terminal("top", "--interval", "10ms", "--url", server.http)) as top:
        first, _ = top.read_until(b"requests"), top.read_until(b"requests")
        top.process.send_signal(signal.SIGINT)
        assert top.wait() == 0
    assert first.startswith(b"\x1b[H\x1b[J")


def test_a_server_with_keys_wants_one():
    """The line says which flag and which variable."""
    with running("--api-key", "right", SMALL) as guarded:
        argv = ("top", "--once", "--interval", "10ms", "--url", guarded.http)
        refused, taken = here(*argv), here(*argv, WEFT_API_KEY="right")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "--api-key KEY or WEFT_API_KEY" in refused.stderr
    assert taken.returncode == 0


def test_a_server_that_is_not_there_is_status_1():
    """And a line that says so."""
    result = here("top", "--once", "--url", "http://127.0.0.1:1")
    assert (result.returncode, result.stdout) == (1, "")
    assert "no server answers at http://127.0.0.1:1" in result.stderr


@pytest.mark.parametrize("argv", [("--interval", "0"), ("--url", "127.0.0.1:8000")])
def test_what_cannot_be_watched_is_refused(argv: tuple[str, str]):
    """No pause would take a processor for itself, and an address is a URL."""
    result = here("top", *argv)
    assert (result.returncode, argv[0] in result.stderr) == (2, True)


def test_a_running_server_is_found(server: Server):
    """By its process, with its model and where it listens; its engine's process is a part of it."""
    found = {one["pid"]: one for one in json.loads(weft("ps", "--json").stdout)}
    ours = found[server.process.pid]
    assert (ours["command"], ours["model"]) == ("serve", SMALL)
    http = server.http.removeprefix("http://")
    assert sorted(ours["addresses"]) == sorted([server.address, http])
    assert ours["memory_bytes"] > 50 << 20
    assert server.engine.pid not in found


def test_servers_are_listed_for_people(server: Server):
    """A row each."""
    rows = here("ps").stdout.splitlines()
    assert rows[0].split()[:3] == ["pid", "command", "model"]
    assert any(row.split()[:3] == [str(server.process.pid), "serve", SMALL] for row in rows[1:])


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("python /opt/venv/bin/weft serve --port 3 m", ["serve", "--port", "3", "m"]),
        ("/usr/bin/python3 -m weft.cli.main epp", ["epp"]),
        ("weft up --workers 2", ["up", "--workers", "2"]),
        ("weft chat", None),
        ("weft", None),
        ("vim weft serve.py", None),
        ("cat /tmp/weft.cli.main serve", None),
        ("python -m http.server serve", None),
    ],
)
def test_command_lines_of_servers_are_known(line: str, command: list[str] | None):
    """By the program and its command, wherever it is installed."""
    assert command_of(line.split()) == command


@pytest.mark.parametrize(
    ("line", "environment", "model"),
    [
        ("serve --port 3", {}, "embedded:tiny"),
        ("serve -m m", {"WEFT_MODEL": "other"}, "m"),
        ("serve", {"WEFT_MODEL": "m"}, "m"),
        ("serve --config weft.toml", {}, None),
        ("serve", {"WEFT_REMOTE": "grpc://a:1"}, None),
        ("serve --no-such-flag", {}, None),
        ("up --workers 2", {}, "embedded:tiny"),
        ("epp", {}, None),
    ],
)
def test_models_are_those_of_the_process(line: str, environment: dict[str, str], model: str | None):
    """Also the one that nobody named; what a file says is not guessed."""
    command, *arguments = line.split()
    assert model_in(command, arguments, environment) == model
