"""The examples for Ray, with the real one where it is installed: `pip install "ray[data,serve]"`."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import clean_environment
from tests.examples.test_examples import EXAMPLES
from tests.ports import free_port

pytest.importorskip("ray", reason='Ray is not installed: pip install "ray[data,serve]"')
pytestmark = pytest.mark.slow  # Ray's own processes take half a minute to start
QUIETLY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}


def test_every_prompt_of_a_data_set_is_answered(tmp_path: Path):
    """Each once, beside its prompt, by engines in processes of Ray's."""
    prompts = [f"Number {number} is" for number in range(24)]
    given = tmp_path / "prompts.jsonl"
    given.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    subprocess.run(
        [sys.executable, str(EXAMPLES / "ray/batch.py"), "--prompts", str(given),
         "--answers", str(tmp_path / "answers"), "--batch-size", "8", "--max-engines", "1"],
        env=clean_environment(**QUIETLY), check=True, timeout=4 * PATIENCE_S,
    )  # fmt: skip
    lines = [
        json.loads(line)
        for path in (tmp_path / "answers").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert sorted(line["prompt"] for line in lines) == sorted(prompts)
    assert all(line["answer"] for line in lines)


@contextmanager
def serving(port: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    argv = [sys.executable, str(EXAMPLES / "ray/serving.py"), "--port", port]
    process = subprocess.Popen(argv, env=clean_environment(**QUIETLY))
    try:
        yield f"http://127.0.0.1:{port}/", process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)


def ask(url: str, body: object) -> tuple[int, dict]:
    request = urllib.request.Request(url, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_deployment_answers_and_refuses():
    """Through Ray Serve's proxy; what the engine refuses is a 400 with its reason."""
    with serving(str(free_port())) as (url, process):
        end = time.monotonic() + 4 * PATIENCE_S
        while True:
            try:
                status, answer = ask(url, {"prompt": "The capital of France is"})
                break
            except (OSError, ValueError):
                assert process.poll() is None, "Ray Serve has ended"
                assert time.monotonic() < end, "Ray Serve did not start"
                time.sleep(0.5)
        assert (status, "Paris" in answer["text"]) == (200, True)
        status, answer = ask(url, {"prompt": "x", "max_tokens": -1})
        assert (status, "max_tokens" in answer["error"]) == (400, True)
