"""`weft serve --remote`: HTTP before gRPC servers; the same tokens as from the servers themselves."""

import json
import signal

import grpc
import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, running, weft
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

pytestmark = pytest.mark.slow  # three servers each

PROMPT = [5, 9, 17, 30]
KEY = {"authorization": "Bearer front"}


def post(server, body):
    """A completion."""
    return server.post("/v1/completions", body, **KEY)


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
    answers = [post(front, {**body, "return_token_ids": True}) for _ in range(4)]
    chosen = [[choice["token_ids"] for choice in answer["choices"]] for answer in answers]
    assert all(tokens == chosen[0] for tokens in chosen)
    with running(SMALL, "--max-model-len", "512") as direct:
        expected = post(direct, {**body, "return_token_ids": True})
    assert [choice["token_ids"] for choice in expected["choices"]] == chosen[0]
    assert expected["choices"][0]["text"] == answers[0]["choices"][0]["text"]


def test_the_block_names_model_and_servers(two):
    """What is printed is where to ask, and who answers."""
    front, first, second = two
    assert f"  engines {first.address}, {second.address}" in front.banner
    assert front.address == ""
    assert "random" in front.get("/v1/models", **KEY)
    assert "vllm:time_to_first_token_seconds" in front.get("/metrics", **KEY)


def test_a_dead_server_is_done_without(two):
    """One of two may go; requests and health are then the other's."""
    front, first, _ = two
    first.process.kill()
    first.process.wait()
    for seed in range(6):
        answer = post(front, {"prompt": PROMPT, "max_tokens": 2, "seed": seed})
        assert answer["usage"]["completion_tokens"] == 2
    assert front.get("/health", **KEY) == ""
    front.send(signal.SIGTERM)
    assert front.wait()[0] == 0


def test_the_stream_of_a_killed_server_continues_at_the_other():
    """Bit for bit what it would have been; usage is counted once."""
    worker = (SMALL, "--no-http", "--max-model-len", "4096", "--num-threads", "1")
    body = {"prompt": PROMPT, "max_tokens": 3000, "seed": 7, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    with running(*worker) as first, running(*worker) as second:
        targets = f"grpc://{first.address},{second.address}"
        with running("--remote", targets) as front:
            whole, usage = read_stream(front, body, [])
            found, found_usage = read_stream(front, body, [first, second])
    assert found == whole
    assert len(found) == 3000
    assert found_usage["completion_tokens"] == usage["completion_tokens"] == 3000


def read_stream(front, body, workers):
    """The tokens and the usage of a stream; after the first tokens, the worker that runs it is killed."""
    token_ids, usage = [], None
    with httpx2.stream(
        "POST", f"{front.http}/v1/completions", json=body, timeout=PATIENCE_S
    ) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            token_ids += [t for choice in event["choices"] for t in choice["token_ids"]]
            if workers:
                busy(workers).process.kill()
                workers = []
    return token_ids, usage


def busy(workers):
    """The worker that runs a request."""
    for worker in workers:
        with grpc.insecure_channel(worker.address) as channel:
            info = VllmEngineStub(channel).GetServerInfo(pb.GetServerInfoRequest())
        if info.active_requests:
            return worker
    raise AssertionError("no worker runs the request")


def test_a_server_that_does_not_answer_is_named():
    """The start ends, with the address."""
    ended = weft("serve", "--remote", "grpc://127.0.0.1:1", "--port", "0")
    assert ended.returncode == 1
    assert "127.0.0.1:1" in ended.stderr
