"""`examples/push_weights.py`, run as its first lines say, beside clients that go on asking."""

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import clean_environment, running

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "push_weights.py"


class Asker(threading.Thread):
    """Asks the same thing again and again, and keeps what was answered."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url, self.answers, self.failure = url, [], None
        self.is_over = threading.Event()

    def run(self):
        """Until told to end."""
        body = {"prompt": "Hello", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        data = json.dumps({"model": "embedded:tiny", **body}).encode()
        request = Request(self.url + "/v1/completions", data, {"Content-Type": "application/json"})
        try:
            while not self.is_over.is_set():
                with urlopen(request, timeout=PATIENCE_S) as answer:
                    self.answers.append(json.load(answer)["choices"][0])
        except OSError as failure:
            self.failure = failure


@pytest.mark.slow
def test_a_model_is_trained_into_a_server_that_answers():
    """The loss falls and the server says the sentence; every request meanwhile is answered in full.

    What one set of weights says to a prompt is one answer: there are as many answers as sets, at most, and
    each comes in one run.
    """
    config = '{"backend": "shared_memory"}'
    argv = ("--control-api-key", "secret", "--weight-transfer-config", config)
    with running("embedded:tiny", *argv) as server:
        url = f"http://{server.http.removeprefix('http://').rstrip('/')}"
        asker = Asker(url)
        asker.start()
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), "--url", url, "--key", "secret", "--rounds", "3"],
            capture_output=True,
            text=True,
            timeout=600,
            env=clean_environment(),
            check=False,
        )
        asker.is_over.set()
        asker.join()
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+):", done.stdout)]
    assert losses == sorted(losses, reverse=True)
    assert "the pistons dream of the sea" in done.stdout.splitlines()[-1]
    assert asker.failure is None
    assert {choice["finish_reason"] for choice in asker.answers} == {"length"}
    texts = [choice["text"] for choice in asker.answers]
    runs = [text for last, text in zip([None, *texts], texts, strict=False) if text != last]
    assert len(runs) == len(set(runs))
    assert 2 <= len(runs) <= 4
