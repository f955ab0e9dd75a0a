"""What a start shows on a terminal: a first line at once, and bytes that move."""

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.busy import PATIENCE_S
from tests.cli.terminal import Terminal
from tests.cli.test_serve_http import get
from tests.faults.watching import until
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from tests.model.hub_server import serving_hub
from tests.ports import free_port

# Who shows, or looks, may be stopped for as long as all of it takes.
TRIES = 3
ENTRY = (sys.executable, "-m", "weft.cli.entry")
LARGE = {
    **CONFIG,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
}


def test_the_first_line_comes_before_anything_is_imported():
    """What takes long is imported behind it; here the import of it fails, and the line is there."""
    argv = ("serve", "--no-such-flag")
    with closing(Terminal(*argv, program=ENTRY, PYTHONPROFILEIMPORTTIME="1")) as terminal:
        before, after = terminal.read_until(b"Weft 0.2.0 is starting"), terminal.read_rest()
    assert b"cyclopts" not in before
    assert b"numpy" not in before
    assert b"cyclopts" in after


@pytest.mark.parametrize("argv", [("serve", "--help"), ("ps", "--help"), ("--version",)])
def test_what_starts_nothing_says_nothing_of_a_start(argv: tuple[str, ...]):
    """Help is help alone."""
    with closing(Terminal(*argv, program=ENTRY)) as terminal:
        assert b"is starting" not in terminal.read_rest()


@contextmanager
def probed(address: str) -> Iterator[list[dict[str, Any]]]:
    """What /startupz of that server answers, again and again."""
    probes: list[dict[str, Any]] = []
    is_over = threading.Event()

    def probe() -> None:
        while not is_over.wait(0.02):
            status, text = get(f"http://{address}/startupz")
            if status == 200:
                probes.append(json.loads(text))

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield probes
    finally:
        is_over.set()
        thread.join()


def start(model: str, address: str, probes: list[dict[str, Any]], **environment: str) -> bytes:
    """What the terminal shows of a start, up to the end of the ready block, when a probe has found it ready."""
    argv = ("serve", model, "--no-grpc", "--port", address.rpartition(":")[2])
    settings = {"TERM": "xterm", **environment}
    with closing(Terminal(*argv, program=ENTRY, columns=100, **settings)) as terminal:
        shown = terminal.read_until(b"  next")
        until(lambda: bool(probes) and probes[-1]["phase"] == "ready", PATIENCE_S)
        return shown


@pytest.mark.slow
def test_bytes_move_on_the_terminal_and_in_startupz(tmp_path: Path):
    """Of a checkpoint of 800 MB: how many are loaded, at what pace, and how long it will still take."""
    path = write_checkpoint(tmp_path / "large", LARGE, tensors_of(LARGE, np.float32))
    for _ in range(TRIES):
        address = f"127.0.0.1:{free_port()}"
        with probed(address) as probes:
            shown = start(str(path), address, probes)
        amounts = re.findall(rb"loading the weights, ([\d.]+) MiB of (\d+) MiB, (\d+) %", shown)
        loading = [probe["loading"] for probe in probes if "loading" in probe]
        loaded = [amount["loaded_bytes"] for amount in loading]
        if min(len(set(loaded)), len({amount[0] for amount in amounts})) > 2:
            break
    assert len({amount[0] for amount in amounts}) > 2
    assert re.search(rb"[MG]iB/s, \d+ s left", shown)
    assert loaded == sorted(loaded)
    assert len(set(loaded)) > 2
    assert any("seconds_left" in amount for amount in loading)


@pytest.mark.slow
def test_a_download_shows_its_bytes_too(tmp_path: Path):
    """Of a model of the Hub, before its weights are loaded; the Hub's client draws no bars beside it."""
    small = {**LARGE, "num_hidden_layers": 1}
    model = write_checkpoint(tmp_path / "model", small, tensors_of(small, np.float32))
    for number in range(TRIES):
        address, home = f"127.0.0.1:{free_port()}", str(tmp_path / f"home{number}")
        with (
            serving_hub("someone/new", model.iterdir(), piece_s=0.02) as hub,
            probed(address) as probes,
        ):
            shown = start("someone/new", address, probes, HF_HOME=home, **hub)
        amounts = re.findall(
            rb"reading the model's files, ([\d.]+) MiB of [\d.]+ MiB, \d+ %", shown
        )
        files = [probe for probe in probes if probe["phase"] == "reading the model's files"]
        loaded = {probe["loading"]["loaded_bytes"] for probe in files if "loading" in probe}
        if min(len(loaded), len(set(amounts))) > 2:
            break
    assert len(set(amounts)) > 2
    assert b"Reconstruct" not in shown
    assert len(loaded) > 2
    assert max(probe["fraction"] for probe in files) > 0.1
