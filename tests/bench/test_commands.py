"""`weft bench` as people run it: processes, a real server, and an engine of its own."""

import json
import re
import shlex
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, WEFT, clean_environment, here, running, weft
from tests.faults.watching import until
from weft.cli.main import make_app

SHORT = ("--num-prompts", "8", "--input-len", "40", "--output-len", "6", "--max-concurrency", "4")


@pytest.fixture(scope="module")
def server():
    with running("embedded:tiny", "--stream-interval-ms", "0") as started:
        yield started


def place(server, backend):
    if backend == "grpc":
        return ("--backend", backend, "--base-url", f"grpc://{server.address}")
    return ("--backend", backend, "--base-url", server.http)


def num_served(server):
    """Requests that the server has answered, as it says."""
    with urllib.request.urlopen(f"{server.http}/metrics", timeout=PATIENCE_S) as page:
        lines = page.read().decode().splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("vllm:request_success_total"))


@pytest.mark.parametrize("backend", ["openai", "openai-chat", "grpc"])
def test_a_server_is_measured_over_each_of_its_wires(server, backend, tmp_path):
    """The answers have the length that was asked for, and every token its gap."""
    saving = ("--save-result", "--save-detailed", "--result-dir", str(tmp_path))
    done = here(
        "bench", "serve", *place(server, backend), *SHORT, *saving, "--result-filename", "r.json",
        "--goodput", "ttft:60000", "tpot:60000", "--metadata", "a=1", "b=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["completed"], found["failed"]) == (8, 0)
    assert found["output_lens"] == [6] * 8
    assert found["model_id"] == "embedded:tiny"
    assert (found["a"], found["b"]) == ("1", "2")
    assert found["request_goodput"] == found["request_throughput"]
    assert all(
        0 < ttft <= latency
        for ttft, latency in zip(found["ttfts"], found["latencies"], strict=True)
    )
    assert "Median TTFT (ms):" in done.stdout


def test_ids_over_grpc_have_the_exact_length(server, tmp_path):
    """No tokenizer comes between."""
    path = tmp_path / "r.json"
    here(
        "bench", "serve", *place(server, "grpc"), *SHORT, "--save-result", "--save-detailed",
        "--result-filename", str(path),
    )  # fmt: skip
    assert json.loads(path.read_text())["input_lens"] == [40] * 8


def test_an_engine_of_this_process_is_measured(tmp_path):
    """Without a server; vLLM's keys, and ours for the parts of the sum."""
    path = tmp_path / "t.json"
    done = weft(
        "bench", "throughput", "--num-prompts", "6", "--input-len", "20", "--output-len", "5",
        "--output-json", str(path), "--max-num-seqs", "2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert found["num_requests"] == 6
    assert found["total_num_tokens"] == 6 * 25
    assert found["tokens_per_second"] == pytest.approx(150 / found["elapsed_time"])
    assert found["requests_per_second"] == pytest.approx(6 / found["elapsed_time"])


@pytest.mark.parametrize("is_remote", [False, True])
def test_batches_are_timed_here_or_on_a_server(server, is_remote, tmp_path):
    """As many as were asked for, and the keys of vLLM."""
    path = tmp_path / "l.json"
    where = place(server, "openai") if is_remote else ()
    done = here(
        "bench", "latency", "--batch-size", "2", "--input-len", "20", "--output-len", "5",
        "--num-iters", "3", "--num-iters-warmup", "1", "--output-json", str(path), *where,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert len(found["latencies"]) == 3
    assert found["avg_latency"] == pytest.approx(sum(found["latencies"]) / 3)
    assert list(found["percentiles"]) == ["10", "25", "50", "75", "90", "99"]


@pytest.mark.slow
def test_a_sweep_measures_every_load_on_a_server_of_its_own(tmp_path):
    """One that it starts and stops; then a summary. What is there need not be measured again."""
    loads, servers = tmp_path / "loads.json", tmp_path / "servers.json"
    loads.write_text('[{"request_rate": 50, "burstiness": 0.5}, {"max_concurrency": 2}]')
    servers.write_text('{"one": {"max_num_seqs": 1}}')
    host = "127.0.0.6"  # where nobody else takes the port meanwhile
    with socket.socket() as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    there = f"--host {host} --port {port}"
    bench = f"weft bench serve {there} --num-prompts 4 --input-len 10 --output-len 3"
    argv = (
        "bench", "sweep", "serve", "--serve-cmd", f"weft serve {SMALL!r} --no-grpc {there}",
        "--serve-params", str(servers), "--bench-cmd", bench, "--bench-params", str(loads),
        "--num-runs", "1", "--output-dir", str(tmp_path), "--experiment-name", "e",
    )  # fmt: skip
    done = weft(*argv)
    assert done.returncode == 0, done.stderr
    names = {path.parent.name for path in (tmp_path / "e").glob("*/run=0.json")}
    assert names == {"one-request_rate=50,burstiness=0.5", "one-max_concurrency=2"}
    assert len((tmp_path / "e" / "summary.csv").read_text().splitlines()) == 3
    assert "<svg" in (tmp_path / "e" / "summary.html").read_text()
    again = weft(*argv, "--resume")
    assert again.returncode == 0
    assert bench not in again.stdout


def test_a_sweep_shows_what_it_would_run(tmp_path):
    """And runs nothing."""
    loads = tmp_path / "loads.json"
    loads.write_text(
        '[{"ignore_eos": true, "insecure": false, "model": null, "goodput": ["ttft:5"]}]'
    )
    done = here(
        "bench", "sweep", "serve", "--bench-params", str(loads), "--num-runs", "1", "--dry-run",
        "--output-dir", str(tmp_path),
    )  # fmt: skip
    assert (
        "weft bench serve --ignore-eos --no-insecure --goodput ttft:5 --save-result" in done.stdout
    )
    assert list(tmp_path.iterdir()) == [loads]


@pytest.mark.slow
def test_ctrl_c_prints_what_was_measured(server):
    """The first ends the run, and its status is that of an interrupted program."""
    num_before = num_served(server)
    process = subprocess.Popen(
        [*WEFT, "bench", "serve", *place(server, "openai"), "--num-prompts", "100000", "--request-rate", "5"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    )  # fmt: skip
    until(
        lambda: num_served(server) > num_before + 4, PATIENCE_S
    )  # two of them learn the lengths of words
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Successful requests:" in out
    assert "Traceback" not in err


def test_nobody_there_is_said_in_a_line():
    """With the address."""
    done = here("bench", "serve", "--port", "1", "--num-prompts", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: http://127.0.0.1:1: ")


BENCH_PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^weft (bench .*)$", BENCH_PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", SHOWN)
def test_the_commands_of_the_page_are_read(line):
    """Every flag that is shown exists."""
    command, _, _ = make_app().parse_args(shlex.split(line), exit_on_error=False, print_error=False)
    assert callable(command)
    assert len(SHOWN) > 5
