"""`weft batch`: every request of a file is answered once, whatever happens on the way."""

import base64
import json
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import msgspec
import psutil
import pytest
from PIL import Image

from tests.busy import PATIENCE_S
from tests.cli.running import WEFT, clean_environment, here, running, weft
from weft.cli.batch.batch import wanted_pause_s
from weft.cli.batch.file import AnswerFile, BatchResponse
from weft.cli.main import run as run_command
from weft.core.errors import ConfigError

CHAT = "/v1/chat/completions"


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """A body."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 8} | fields


def line(custom_id: str, url: str = CHAT, **fields: Any) -> str:
    """A request."""
    body = fields.pop("body", chat(custom_id))
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body} | fields)


def write(path: Path, *lines: str) -> Path:
    """A file of these lines."""
    path.write_text("".join(f"{one}\n" for one in lines))
    return path


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The response of each request; none is there twice."""
    answers = [json.loads(one) for one in path.read_text().splitlines()]
    responses = {answer["custom_id"]: answer["response"] for answer in answers}
    assert len(responses) == len(answers)
    assert all(answer["error"] is None for answer in answers)
    assert len({answer["id"] for answer in answers}) == len(answers)
    return responses


def run(source: Path, target: Path, *argv: str, **environment: str) -> Any:
    """The command, to its end; with an engine of its own it is a process of its own."""
    command = here if "--url" in argv else weft
    return command("batch", *argv, "-i", str(source), "-o", str(target), **environment)


def test_an_engine_answers_each_request_as_a_server_would(tmp_path: Path):
    """Wrong ones too; endpoints that are no inference are not there."""
    source = write(
        tmp_path / "in.jsonl",
        line("said"),
        "",
        line("text", "/v1/completions", body={"model": "m", "prompt": "abc", "max_tokens": 2}),
        line("wrong", body=chat("x", temperature=-1)),
        line("closed", "/sleep", body={}),
    )
    target = tmp_path / "out.jsonl"

    result = run(source, target, "embedded:echo", "--served-model-name", "m")

    assert (result.returncode, result.stdout) == (0, "")
    assert "4 of 4 answered, 2 of them refused" in result.stderr
    found = read(target)
    assert {name: one["status_code"] for name, one in found.items()} == {
        "said": 200,
        "text": 200,
        "wrong": 400,
        "closed": 404,
    }
    assert found["said"]["body"]["choices"][0]["finish_reason"] == "length"
    assert found["text"]["body"]["choices"][0]["text"] == "ab"
    assert found["wrong"]["body"]["error"]["param"] == "temperature"
    assert all(one["request_id"] for one in found.values())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that repeats what it is sent."""
    with running("embedded:echo", "--served-model-name", "m", "--no-grpc") as server:
        yield server.http


def test_a_batch_that_was_cut_off_goes_on(tmp_path: Path, url: str):
    """What is in the file is not asked for again; half a line is."""
    names = [f"r{number}" for number in range(6)]
    source = write(tmp_path / "in.jsonl", *map(line, names))
    target = tmp_path / "out.jsonl"

    whole = run(source, target, "--url", url)
    lines = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    again = run(source, target, "--url", url, "--max-concurrency", "1")
    grown = target.read_bytes()
    nothing = run(source, target, "--url", "http://127.0.0.1:1")

    assert [one.returncode for one in (whole, again, nothing)] == [0, 0, 0]
    assert grown.startswith(b"".join(lines[:3]))
    assert target.read_bytes() == grown
    assert set(read(target)) == set(names)
    assert nothing.stderr == "6 of 6 answered; 0 tokens in, 0 out\n"


class Busy(BaseHTTPRequestHandler):
    """Answers what it is told to, in turn: a status, or None to hang up."""

    statuses: ClassVar[list[int | None]]
    seen: ClassVar[list[tuple[str | None, bytes]]]

    def do_POST(self) -> None:
        """One request."""
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.headers["authorization"], body))
        status = self.statuses.pop(0)
        if status is None:
            return
        self.send_response(status)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Not here."""


@contextmanager
def busy(*statuses: int | None) -> Iterator[tuple[str, list[tuple[str | None, bytes]]]]:
    """Where one listens, and what it has seen."""
    handler = type("Handler", (Busy,), {"statuses": list(statuses), "seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.seen
        finally:
            server.shutdown()


def test_a_busy_server_is_asked_again(tmp_path: Path):
    """With the same bytes and the key; what it refuses for good is not."""
    source = write(tmp_path / "in.jsonl", line("a"))
    target = tmp_path / "out.jsonl"
    with busy(503, None, 422) as (where, seen):
        result = run(source, target, "--url", where, "--api-key", "sesame")
    assert result.returncode == 0
    assert read(target)["a"] == {"status_code": 422, "request_id": "", "body": {}}
    assert seen == [("Bearer sesame", json.dumps(chat("a")).encode())] * 3


@pytest.mark.parametrize(
    ("said", "pause_s"), [("7", 7), ("9" * 400, 600), ("soon", 0), ("-1", 0), ("", 0)]
)
def test_a_server_says_how_long_to_wait(said: str, pause_s: float):
    """Within reason: a batch does not sleep for ever."""
    assert wanted_pause_s(httpx2.Response(503, headers={"retry-after": said})) == pause_s


def test_requests_of_a_batch_may_have_pictures(tmp_path: Path):
    """In the line as data: URLs, or as files of a directory that the command allows; a bad one is refused alone."""
    Image.new("RGB", (60, 40), "red").save(tmp_path / "red.png")
    data = base64.b64encode((tmp_path / "red.png").read_bytes()).decode()
    urls = {
        "data": f"data:image/png;base64,{data}",
        "file": f"file://{tmp_path}/red.png",
        "bad": "data:image/png;base64,AAAA",
        "elsewhere": "file:///etc/passwd",
    }
    text = {"type": "text", "text": "What colour is the background?"}
    lines = [
        line(name, body=chat("", messages=[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": url}}, text]}]))
        for name, url in urls.items()
    ]  # fmt: skip
    source = write(tmp_path / "in.jsonl", *lines)
    flags = ("embedded:tiny-vision", "--served-model-name", "m", "--allowed-local-media-path")
    assert run(source, tmp_path / "out.jsonl", *flags, str(tmp_path)).returncode == 0
    answers = read(tmp_path / "out.jsonl")
    assert {name: answers[name]["status_code"] for name in urls} == {
        "data": 200,
        "file": 200,
        "bad": 400,
        "elsewhere": 400,
    }
    said = [answers[name]["body"]["choices"][0]["message"]["content"] for name in ("data", "file")]
    assert said == ["Red."] * 2


def test_what_stays_without_an_answer_is_no_line(tmp_path: Path):
    """The exit status says so, and the same command goes on."""
    source = write(tmp_path / "in.jsonl", line("a"), line("b"))
    target = tmp_path / "out.jsonl"
    one_at_a_time = ("--max-tries", "1", "--max-concurrency", "1")
    with busy(429, 200) as (where, _):
        first = run(source, target, "--url", where, *one_at_a_time)
    left = set(read(target))
    with busy(200) as (where, seen):
        second = run(source, target, "--url", where, *one_at_a_time)
    assert (first.returncode, left, second.returncode) == (1, {"b"}, 0)
    assert "requests without an answer: 1;" in first.stderr
    assert len(seen) == 1
    assert set(read(target)) == {"a", "b"}


def test_a_full_disk_ends_the_batch_and_the_next_one_goes_on(tmp_path: Path):
    """The error names the file; what was written before is kept, and half a line is not."""
    path, names = tmp_path / "out.jsonl", {f"r{number}" for number in range(100)}
    answers = AnswerFile(path, names)
    answer = BatchResponse(status_code=200, request_id="r", body=msgspec.Raw(b'"answered"'))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ConfigError, match=f"cannot write to {path}: File too large"):
            [answers.write(name, answer) for name in names]
        answers.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    again = AnswerFile(path, names)
    assert 0 < len(again.answered) < len(names)
    again.close()
    assert read(path).keys() == again.answered


def test_a_refused_key_ends_the_batch(tmp_path: Path):
    """It is no answer to any request."""
    source = write(tmp_path / "in.jsonl", line("a"), line("b"))
    target = tmp_path / "out.jsonl"
    with busy(401, 401) as (where, _):
        result = run(source, target, "--url", where, WEFT_API_KEY="wrong")
    assert result.returncode == 1
    assert "rejected the API key: set --api-key KEY" in result.stderr
    assert target.read_bytes() == b""


def test_a_dead_engine_ends_the_batch(tmp_path: Path):
    """At once, with what was answered before in whole lines."""
    names = [f"r{number}" for number in range(200)]
    source = write(tmp_path / "in.jsonl", *map(line, names))
    target = tmp_path / "out.jsonl"
    command = [*WEFT, "batch", "embedded:echo?itl_ms=20", "--served-model-name=m"]
    process = subprocess.Popen(
        [*command, "--max-concurrency=4", "-i", str(source), "-o", str(target)],
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    deadline = time.monotonic() + PATIENCE_S
    while not (target.exists() and target.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # The renderer of chat templates is started with the first request.
    engine = min(psutil.Process(process.pid).children(), key=lambda child: child.create_time())
    engine.send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "error: " in err
    assert 0 < len(read(target)) < len(names)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param([line("a"), "{"], "line 2: Input data was truncated", id="no JSON"),
        pytest.param([line("a"), line("a")], "duplicate custom_id 'a'", id="twice"),
        pytest.param([line("a", "v1/x")], "line 1: url must be a path", id="no path"),
        pytest.param([line("a", method="GET")], 'line 1: method must be "POST"', id="no POST"),
        pytest.param([line("")], "custom_id must have 1 to 512 characters", id="no id"),
        pytest.param([line("a", body=[])], "line 1: Expected `object`", id="no object"),
        pytest.param([line("a", body=chat("a", stream=True))], "stream must be", id="a stream"),
        pytest.param([line("a", priority=1)], "unknown field `priority`", id="unknown"),
    ],
)
def test_a_wrong_input_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], message: str
):
    """With the line's number, and nothing is written."""
    source = write(tmp_path / "in.jsonl", *lines)
    assert run_command(["batch", "-i", str(source), "-o", str(tmp_path / "out.jsonl")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_bad_lines_can_be_reported_and_the_others_answered(tmp_path: Path, url: str):
    """Each with its number; the exit status says that something was left out. The same command skips them again."""
    long = " " * (13 * 2**20 + 1)
    lines = ["{", line("a"), line("a"), line("b", method="GET"), long + "x", line("c")]
    source, target = write(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl"
    for _ in range(2):
        ended = here("batch", "-a", url, "-i", str(source), "-o", str(target), "--skip-bad-lines")
        assert ended.returncode == 1
        reported = [one for one in ended.stderr.splitlines() if one.startswith("skipped: ")]
        assert [one.split(": ")[1].rpartition(" ")[2] for one in reported] == ["1", "3", "4", "5"]
        assert "2 of 2 answered" in ended.stderr
    assert read(target).keys() == {"a", "c"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["--api-key", "k"], "--api-key needs --url", id="key"),
        pytest.param(["--url", "localhost:1"], "--url must be http://HOST:PORT", id="address"),
        pytest.param(["m", "--url", "http://localhost:1"], "exclude each other", id="model"),
        pytest.param(
            ["--url", "http://localhost:1", "--max-model-len", "64"],
            "--max-model-len does nothing with --url",
            id="engine",
        ),
        pytest.param(["--max-concurrency", "0"], "--max-concurrency must be", id="concurrency"),
        pytest.param(["--max-tries", "0"], "--max-tries must be", id="tries"),
    ],
)
def test_flags_that_do_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
):
    """By name."""
    source = write(tmp_path / "in.jsonl", line("a"))
    given = ["batch", *argv, "-i", str(source), "-o", str(tmp_path / "out.jsonl")]
    assert run_command(given) == 2
    assert message in capsys.readouterr().err


def test_an_output_of_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Another batch's, one that is no batch's, or one that is being written."""
    source = write(tmp_path / "in.jsonl", line("a"))
    answer = {"id": "x", "custom_id": "z", "response": {"status_code": 200, "request_id": ""}}
    answer["response"]["body"] = {}
    cases = [
        (json.dumps(answer), "answers 'z', which is not in the input"),
        ("text", "line 1: not an answer"),
    ]
    for text, message in cases:
        target = write(tmp_path / "out.jsonl", text)
        assert run_command(["batch", "-i", str(source), "-o", str(target)]) == 2
        assert message in capsys.readouterr().err
        assert target.read_text() == f"{text}\n"
    held = AnswerFile(tmp_path / "held.jsonl", {"a"})
    assert run_command(["batch", "-i", str(source), "-o", str(tmp_path / "held.jsonl")]) == 2
    held.close()
    assert "is being written by another batch" in capsys.readouterr().err
