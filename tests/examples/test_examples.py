"""Each program of `examples` as its first lines say, as a process of its own, against a server.

`push_weights.py` has a file of its own: test_push_weights.py.
"""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, Server, clean_environment, running
from tests.model.checkpoints import write_checkpoint
from tests.ports import free_port

pytestmark = pytest.mark.slow  # each imports a client, for a second or more
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TOKENIZER = str(ROOT / "src/weft/model/embedded/tiny/tokenizer.json")
CALL = (
    'get_weather({"city": "Paris"}) = '
    '{"city": "Paris", "temperature": 21, "condition": "sunny"}\n'
    "In Paris it is 21 degrees and sunny.\n"
)
REASONING = (
    "> What is two plus three?\nreasoning: I need to add. 2 + 3 = 5.\nanswer: Two plus three is five.\n"
    "> And four plus four?\nreasoning: I need to add. 4 + 4 = 8.\nanswer: Four plus four is eight.\n"
)
# Every file, its arguments, and what it prints: a regular expression over all of it.
RUNS = [
    ("chat.py", [], r"> What is the capital of France\?\n.+\n> What can you do\?\n.+\n"),
    ("chat.py", ["--stream"], r"> What is the capital of France\?\n.+\n> What can you do\?\n.+\n"),
    ("completion.py", [], r"(?s)0: '.+'\n +-\d+\.\d{3}  '.*\n1: '.+\n"),
    ("completion.py", ["--stream"], r"(?s)(?=.*^0: ')(?=.*^1: ').+"),
    ("tools.py", [], re.escape(CALL)),
    ("tools.py", ["--required", "--stream"], re.escape(CALL)),
    ("tools.py", ["--thinking", "--stream"], r"(reasoning: (.|\n)*)?" + re.escape(CALL)),
    ("reasoning.py", [], re.escape(REASONING)),
    ("reasoning.py", ["--stream"], re.escape(REASONING)),
    ("responses.py", [], re.escape(CALL)),
    (
        "structured_outputs.py",
        [],
        (
            r"choice: (yes|no)\n"
            r"regex: [a-z]{3,8}@[a-z]{3,8}\.(com|org)\n"
            r'json: \{\n  "brand": ".*",\n  "kind": "(sedan|truck|coupe)"\n\}\n'
            r"grammar: \d+ \+ \d+\n"
            r"structural_tag: (.|\n)+\n"
        ),
    ),
    ("engine.py", [], r"((The capital of (France|Italy) is|Two and two is).*\n){3}"),
    (
        "engine.py",
        ["--engines", "2"],
        r"((The capital of (France|Italy) is|Two and two is).*\n){3}",
    ),
    ("resuming_offline.py", [], r"\d+ requests continued\nthe same answers\n"),
    (
        "resuming_offline.py",
        ["--engines", "2"],
        r"\d+ requests continued\nthe same answers\n",
    ),
    ("generate.py", [], r"The capital of France is .+\n"),
    # Two texts for each step; a slow client may receive the text of several steps as one.
    ("generate.py", ["--stream", "--n", "2"], r"((The capital of France is.*\n){2})+"),
    ("gradio_chat.py", ["--once", "What is the capital of France?"], r"(.*\n)+.*Paris.*\n"),
    (
        "gradio_completion.py",
        ["--once", "The capital of France is"],
        r"(The capital of France is.*\n)+",
    ),
    (
        "streamlit_chat.py",
        ["--once", "What is two plus three?"],
        r"(reasoning: '.*'\n)+(content: ['\"].*['\"]\n)+",
    ),
    ("tokens.py", ["--tokenizer", TOKENIZER], r"\[\d+(, \d+)*\]\n' Paris.+'\n"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def run(name: str, *argv: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *argv],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    ).stdout


@pytest.mark.parametrize(("name", "argv", "expected"), RUNS)
def test_the_example_runs(server: Server, name: str, argv: list[str], expected: str):
    """And prints what it is there to show."""
    if "--url" in (EXAMPLES / name).read_text(encoding="utf-8"):
        argv = [*argv, "--url", server.http]
    shown = run(name, *argv, OPENAI_BASE_URL=f"{server.http}/v1")
    assert re.fullmatch(expected, shown, re.MULTILINE), shown


def test_answers_come_from_the_nearest_document(server: Server):
    """Found by one server, read by another."""
    with running("--runner", "pooling", "--no-grpc") as embedder:
        shown = run(
            "retrieval.py", "--embeddings", f"{embedder.http}/v1", "--chat", f"{server.http}/v1"
        )
    read, document, answer = shown.split("\n", 2)
    assert (read, document[:2]) == ("read:", "  ")
    assert answer.strip()


def test_embeddings_are_continued_as_their_text_is(tmp_path: Path):
    """Looked up in the files of the model that is served."""
    write_checkpoint(tmp_path)
    with running(str(tmp_path), "--no-grpc", "--enable-prompt-embeds") as server:
        asked = ("--model", str(tmp_path), "--prompt", "ab cd")
        shown = run("prompt_embeds.py", *asked, OPENAI_BASE_URL=f"{server.http}/v1")
    match = re.fullmatch(r"embeddings: (.+)\ntext: (.+)\n", shown)
    assert match, shown
    assert match[1] == match[2]


def test_a_model_may_call_nothing():
    """Then there is nothing to run, and nothing to give back to it."""
    with running(
        SMALL, "--no-grpc", "--tool-call-parser", "hermes", "--max-model-len", "512"
    ) as server:
        shown = run("tools.py", OPENAI_BASE_URL=f"{server.http}/v1")
    assert shown == "the model called nothing\n"


def test_tools_of_another_server_are_called():
    """The example is both: who has the tool, and who asks."""
    port = free_port()
    argv = [sys.executable, str(EXAMPLES / "responses_mcp.py")]
    tools = subprocess.Popen([*argv, "serve", "--port", str(port)])
    try:
        _wait_for(f"http://127.0.0.1:{port}/mcp")
        with running(
            "--no-grpc", "--tool-server", f"weather=http://127.0.0.1:{port}/mcp"
        ) as server:
            assert run("responses_mcp.py", "ask", OPENAI_BASE_URL=f"{server.http}/v1") == CALL
    finally:
        tools.terminate()
        tools.wait()


def _wait_for(url: str) -> None:
    """Until somebody answers there, whatever it is."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=PATIENCE_S).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nobody answers at {url}")


def test_the_cache_is_followed(tmp_path: Path):
    """What was stored before it subscribed is replayed."""
    live, replay = (f"ipc://{tmp_path / name}" for name in ("live", "replay"))
    config = (
        f'{{"enable_kv_cache_events": true, "endpoint": "{live}", "replay_endpoint": "{replay}"}}'
    )
    with running("--no-grpc", "--kv-events-config", config) as server:
        ask(server, "A text that is there before anybody follows. " * 8)
        argv = [sys.executable, str(EXAMPLES / "kv_events.py"), "--batches", "1"]
        with subprocess.Popen(
            [*argv, "--endpoint", live, "--replay", replay], stdout=subprocess.PIPE, text=True
        ) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "subscribed\n"
            end = time.monotonic() + PATIENCE_S
            number = 0
            while follower.poll() is None and time.monotonic() < end:  # it may not be connected yet
                number += 1
                ask(
                    server,
                    f"Text {number}: this one is long enough to fill a block or two as well.",
                )
            shown = follower.stdout.read()
    match = re.fullmatch(r"batch (\d+): (\d+) blocks\n", shown)
    assert match, shown
    assert int(match[1]) > 0
    assert int(match[2]) > 4  # of which the later text has one or two


def ask(server: Server, prompt: str) -> None:
    request = urllib.request.Request(
        f"{server.http}/generate",
        json.dumps({"prompt": prompt, "max_tokens": 1}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=PATIENCE_S).close()


def test_every_example_is_run():
    """A file that nobody runs fails here."""
    elsewhere = {
        "README.md", "kv_events.py", "media.py", "prompt_embeds.py", "push_weights.py", "ray", "responses_mcp.py",
        "resuming.py", "resuming_grpc.py", "retrieval.py",
        "transcription.py", "translation.py",
    }  # fmt: skip
    assert {path.name for path in EXAMPLES.iterdir()} == {run[0] for run in RUNS} | elsewhere
