"""What cannot be served is refused: soon, in one line that names the cause, and leaving nothing behind."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.busy import PATIENCE_S, is_within
from tests.cli.running import WEFT, clean_environment, running
from tests.faults.watching import answer_of, generate_request, is_listening, stub_of, until
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint, write_json
from tests.ports import free_port


def processes_of_session(session_id: int) -> list[psutil.Process]:
    """Everything that was started from a process that leads a session of its own."""

    def belongs(process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) == session_id
        except ProcessLookupError:
            return False

    return [process for process in psutil.process_iter() if belongs(process)]


def refusal(*argv: str, limits: str = "") -> str:
    """The one line that a start-up ends in. `limits` are shell commands that come before it."""
    port = free_port()
    started = time.monotonic()
    process = subprocess.Popen(
        ["/bin/sh", "-c", f'{limits}\nexec "$@"', "sh", *WEFT, "serve", *argv, "--port", "0", "--grpc-port", str(port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=clean_environment(HF_HUB_OFFLINE="1"), start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
        took_s = time.monotonic() - started
        left = processes_of_session(process.pid)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode in (1, 2)
    assert is_within(took_s, 10)
    assert out == ""
    assert "Traceback" not in err
    assert left == []
    assert not is_listening(f"127.0.0.1:{port}")
    *others, line = err.splitlines()
    # Where it takes long, the log says how far the start is.
    unusual = [other for other in others if not ("WARNING" in other or "INFO loading" in other)]
    assert unusual == []
    assert line.startswith("error: ")
    return line


def config_with(**changes: object) -> Callable[[Path], None]:
    """Spoils config.json."""

    def spoil(directory: Path) -> None:
        write_json(directory / "config.json", CONFIG | changes)

    return spoil


def file_with(name: str, data: bytes) -> Callable[[Path], None]:
    """Replaces a file."""

    def spoil(directory: Path) -> None:
        (directory / name).write_bytes(data)

    return spoil


def without(name: str) -> Callable[[Path], None]:
    """Removes a file."""

    def spoil(directory: Path) -> None:
        (directory / name).unlink()

    return spoil


def cut(directory: Path) -> None:
    """Half of the weights."""
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def unreadable(directory: Path) -> None:
    """A directory where a file should be: not even root can read that."""
    (directory / "config.json").unlink()
    (directory / "config.json").mkdir()


def tensors_with(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    """Changes the weights."""

    def spoil(directory: Path) -> None:
        tensors = tensors_of()
        change(tensors)
        write_checkpoint(directory, tensors=tensors)

    return spoil


def chat_template(text: str) -> Callable[[Path], None]:
    """A template of the checkpoint's own."""
    return file_with("chat_template.jinja", text.encode())


CHECKPOINTS = [
    pytest.param(unreadable, "config.json", id="72-unreadable"),
    pytest.param(file_with("config.json", b"{not"), "config.json", id="73-not-json"),
    pytest.param(cut, "model.safetensors", id="74-truncated"),
    pytest.param(
        tensors_with(lambda t: t.pop("model.norm.weight")), "model.norm.weight", id="76-missing"
    ),
    pytest.param(
        tensors_with(lambda t: t["model.norm.weight"].fill(np.nan)),
        "model.norm.weight",
        id="77-nan",
    ),
    pytest.param(file_with("tokenizer.json", b"{}"), "tokenizer", id="79-tokenizer-broken"),
    pytest.param(chat_template("{% if %}"), "chat", id="80-template"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("spoil", "words"), CHECKPOINTS)
def test_a_spoilt_checkpoint_is_refused(tmp_path: Path, spoil: Callable[[Path], None], words: str):
    """Rows 71 to 80: the line names the file or the field."""
    directory = write_checkpoint(tmp_path / "model")
    spoil(directory)
    assert words in refusal(str(directory))


def test_the_sound_checkpoint_is_served(tmp_path: Path):
    """What the others spoil; `auto_map` in it is ignored, and nothing of it is imported."""
    directory = write_checkpoint(tmp_path / "model", CONFIG | {"auto_map": {"AutoModel": "x.Y"}})
    (directory / "x.py").write_text("raise SystemExit('imported')\n")
    with running(str(directory)) as server, stub_of(server.address) as stub:
        assert len(answer_of(stub, generate_request([1, 2, 3], max_tokens=4))) == 4


SMALL = "embedded:random?layers=1&hidden=32&max_len=256"
SLOW_TO_LOAD = "embedded:random?layers=24&hidden=1024&vocab=32000&max_len=1024"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        pytest.param(("nobody/nothing",), "nobody/nothing", id="71-hub-offline"),
        pytest.param(
            (SMALL, "--num-gpu-blocks-override", "2"), "--num-gpu-blocks-override", id="81-pool"
        ),
        pytest.param(
            (SMALL, "--kv-cache-bytes", "900TiB"), "of memory are free", id="81-beyond-memory"
        ),
        pytest.param((SMALL, "--host", "203.0.113.7"), "203.0.113.7", id="70-address"),
        pytest.param(
            (SMALL, "--grpc-tls-cert", "/none", "--grpc-tls-key", "/none"),
            "cannot read /none",
            id="81-certificate",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(argv: tuple[str, ...], words: str):
    """Rows 70, 71 and 81: the line names the flag, or the model."""
    assert words in refusal(*argv)


def test_too_little_memory_is_refused():
    """A limit on the process's memory that the model does not fit: one line, not a traceback."""
    model = "embedded:random?layers=4&hidden=4096&max_len=256"
    line = refusal(model, "--num-gpu-blocks-override", "16", limits="ulimit -v 1500000")
    assert "memory" in line


@pytest.mark.slow
def test_too_few_open_files_are_refused():
    """Row 83."""
    assert "64 open files" in refusal(SMALL, limits="ulimit -n 64")


@pytest.mark.slow
def test_a_second_server_on_the_port_is_refused():
    """Row 70: and the first one is not disturbed."""
    with running(SMALL) as first, stub_of(first.address) as stub:
        expected = answer_of(stub, generate_request([5, 6, 7]))
        port = first.address.rpartition(":")[2]
        result = subprocess.run(
            [*WEFT, "serve", SMALL, "--port", "0", "--grpc-port", str(port)],
            capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environment(), check=False,
        )  # fmt: skip
        assert result.returncode == 2
        assert f"cannot listen on {first.address}" in result.stderr
        assert answer_of(stub, generate_request([5, 6, 7])) == expected


def test_an_engine_that_dies_while_it_starts_is_reported():
    """As by the system when memory runs out: no ready block, and the cause."""
    with subprocess.Popen(
        [*WEFT, "serve", SLOW_TO_LOAD, "--num-gpu-blocks-override", "64", "--grpc-port", "0", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    ) as process:  # fmt: skip
        try:
            front = psutil.Process(process.pid)
            until(lambda: bool(front.children()))
            front.children()[0].kill()
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 1
    assert out == ""
    assert "Traceback" not in err
    assert "the engine process ended unexpectedly (signal 9)" in err.splitlines()[-1]
