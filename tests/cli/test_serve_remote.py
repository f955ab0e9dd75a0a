"""`weft serve --remote`: HTTP before gRPC servers; the same tokens as from the servers themselves."""

import json
import signal
import urllib.request

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, running, weft

pytestmark = pytest.mark.slow  # three servers each

PROMPT = [5, 9, 17, 30]


def post(server, path, body):
    """The answer to a JSON body."""
    request = urllib.request.Request(
        f"{server.http}{path}",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", "authorization": "Bearer front"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def get(server, path):
    """The text at a path."""
    request = urllib.request.Request(
        f"{server.http}{path}", headers={"authorization": "Bearer front"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def two():
    """Two workers that want a key, and HTTP before both with a key of its own."""
    worker = (SMALL, "--no-http", "--api-key", "inner", "--max-model-len", "512")
    with running(*worker) as first, running(*worker) as second:
        targets = f"grpc://{first.address},{second.address}"
        with running(
            "--remote", targets, "--remote-api-key", "inner", "--api-key", "front"
        ) as front:
            yield front, first, second


def test_tokens_are_those_of_the_servers(two):
    """Whichever server answers, a seeded request has one answer, and text comes with the fetched tokenizer."""
    front, _, _ = two
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0.8, "seed": 7, "n": 2}
    answers = [post(front, "/v1/completions", {**body, "return_token_ids": True}) for _ in range(4)]
    chosen = [[choice["token_ids"] for choice in answer["choices"]] for answer in answers]
    assert all(tokens == chosen[0] for tokens in chosen)
    with running(SMALL, "--max-model-len", "512") as direct:
        expected = post(direct, "/v1/completions", {**body, "return_token_ids": True})
    assert [choice["token_ids"] for choice in expected["choices"]] == chosen[0]
    assert expected["choices"][0]["text"] == answers[0]["choices"][0]["text"]


def test_the_block_names_model_and_servers(two):
    """What is printed is where to ask, and who answers."""
    front, first, second = two
    assert f"  engines {first.address}, {second.address}" in front.banner
    assert front.address == ""
    assert "random" in get(front, "/v1/models")
    assert "vllm:time_to_first_token_seconds" in get(front, "/metrics")


def test_a_dead_server_is_done_without(two):
    """One of two may go; requests and health are then the other's."""
    front, first, _ = two
    first.process.kill()
    first.process.wait()
    for seed in range(6):
        answer = post(front, "/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "seed": seed})
        assert answer["usage"]["completion_tokens"] == 2
    assert get(front, "/health") == ""
    front.send(signal.SIGTERM)
    assert front.wait()[0] == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["embedded:tiny", "--remote", "grpc://127.0.0.1:1"], "MODEL"),
        (["--remote", "http://127.0.0.1:1"], "must be grpc://HOST:PORT"),
        (["--remote", "grpc://127.0.0.1"], "must be grpc://HOST:PORT"),
        (["--remote", "grpcs://127.0.0.1:1"], "--remote-tls-ca"),
        (["--remote", "grpc://a:1,grpc://a:1"], "twice"),
        (["--remote", "grpc://127.0.0.1:1", "--max-model-len", "64"], "--max-model-len"),
        (["--remote", "grpc://127.0.0.1:1", "--grpc-port", "6000"], "--grpc-port"),
        (["--remote", "grpc://127.0.0.1:1", "--no-http"], "nothing to serve"),
        (["--remote-api-key", "k"], "needs --remote"),
        (["--remote", "grpc://127.0.0.1:1", "--remote-api-key", ""], "must not be empty"),
    ],
)
def test_what_makes_no_sense_together_is_refused(argv, message):
    """No flag is taken and ignored; the line names it."""
    ended = weft("serve", *argv, "--port", "0")
    assert ended.returncode == 2
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_server_that_does_not_answer_is_named():
    """The start ends, with the address."""
    ended = weft("serve", "--remote", "grpc://127.0.0.1:1", "--port", "0")
    assert ended.returncode == 1
    assert "127.0.0.1:1" in ended.stderr
