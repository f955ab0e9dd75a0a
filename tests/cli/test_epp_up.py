"""`weft up`: one command, and all of it answers; one Ctrl-C, and none of it is left."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import psutil
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, started, weft
from tests.ports import free_port
from weft.cli.up.up import Worker
from weft.core.errors import ConfigError
from weft.core.values.types import SamplingParams
from weft.rpc.client import RpcClient


class Up:
    """A running `weft up`."""

    def __init__(self, process: "subprocess.Popen[str]", lines: list[str], port: int) -> None:
        self.process = process
        self.lines = lines
        self.address = f"127.0.0.1:{port}"
        self.children = psutil.Process(process.pid).children(recursive=True)

    def client(self) -> httpx2.Client:
        """Of its HTTP API."""
        return httpx2.Client(base_url=f"http://{self.address}", timeout=PATIENCE_S)


@contextmanager
def up(*argv: str, model: str | None = SMALL) -> Iterator[Up]:
    """`weft up MODEL ARGV` on free ports, from its last ready line."""
    port = free_port()
    ports = ("--port", str(port), "--metrics-port", str(free_port()))
    words = ["up", *([model] if model else []), *ports, *argv]
    with started(*words, last="  try") as (process, lines):
        yield Up(process, lines, port)


def test_one_command_starts_all_and_one_signal_ends_it():
    """Progress while it starts, an answer when it is ready, no process when it is over."""
    with up() as stack:
        text = "".join(stack.lines)
        for words in ("starting 2 workers", "worker 2 of 2 is ready", "the picker is ready"):
            assert words in text
        answer = weft("complete", "hello", "--address", stack.address, "--max-tokens", "3")
        assert answer.returncode == 0, answer.stderr
        with stack.client() as client:
            model = client.get("/v1/models").json()["data"][0]["id"]
            body = {"model": model, "prompt": "hello", "max_tokens": 3, "ignore_eos": True}
            answer = client.post("/v1/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == 3
        assert f"HTTP     http://{stack.address} (for a browser; /v1)" in text
        stack.process.send_signal(signal.SIGINT)
        stack.process.communicate(timeout=PATIENCE_S)
        assert stack.process.returncode == 0
        assert psutil.wait_procs(stack.children, timeout=PATIENCE_S)[1] == []


@pytest.mark.slow
def test_strange_names_get_nothing():
    """A web page may have its own name looked up as this machine's; Envoy refuses it, and has no admin port."""
    with up("--workers=1", "--allowed-hosts=llm.example") as stack, stack.client() as client:
        foreign = client.get("/v1/models", headers={"host": "evil.example:8080"})
        error = foreign.json()["error"]
        assert (foreign.status_code, error["type"]) == (403, "permission_error")
        assert "--allowed-hosts" in error["message"]
        assert foreign.headers["content-type"] == "application/json"
        for host in ("llm.example", "localhost:8080"):
            assert client.get("/v1/models", headers={"host": host}).status_code == 200
        envoy = next(child for child in stack.children if "envoy" in child.cmdline()[0])
        ports = {at.laddr.port for at in envoy.net_connections("tcp") if at.status == "LISTEN"}
        assert ports == {int(stack.address.rpartition(":")[2])}


@pytest.mark.slow
def test_long_prompts_are_computed_by_workers_of_their_own():
    """The picker names one, and the worker that answers has it compute the prompt, over HTTP and over gRPC."""
    with up("--prefill=1", "--decode=1", "--worker-args=--enable-prompt-tokens-details") as stack:
        body = {"model": SMALL, "prompt": [*range(5, 105)] * 4, "max_tokens": 3, "temperature": 0}
        short = {**body, "prompt": [*range(105, 155)]}
        with stack.client() as client:
            answers = [client.post("/v1/completions", json=each).json() for each in (body, short)]
        other = asyncio.run(num_cached_over_grpc(stack.address, [*range(155, 255)] * 4))
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
    assert [*cached, other] == [384, 0, 384]


async def num_cached_over_grpc(address: str, token_ids: list[int]) -> int:
    client = await RpcClient.connect(address, has_tokenizer=False)
    params = SamplingParams(max_tokens=3, detokenize=False)
    try:
        prompt = {"prompt_token_ids": token_ids}
        outputs = [output async for output in client.generate(prompt, params, "r")]
    finally:
        await client.close()
    return outputs[-1].num_cached_tokens


@pytest.mark.slow
def test_nothing_outlives_it_even_when_it_is_killed():
    """Not even SIGKILL leaves a worker or an Envoy behind."""
    with up("--workers=1") as stack:
        stack.process.kill()
        stack.process.wait()
        assert psutil.wait_procs(stack.children, timeout=PATIENCE_S)[1] == []


@pytest.mark.slow
def test_a_worker_may_die():
    """The others go on, and it is started again, where the picker and Envoy look for it."""
    with up() as stack:
        serves = [child for child in stack.children if "serve" in child.cmdline()]
        serves[0].kill()
        assert stack.process.stdout is not None
        assert "1 workers are left" in next(
            line for line in stack.process.stdout if "workers are left" in line
        )
        answer = weft("complete", "hello", "--address", stack.address, "--max-tokens", "3")
        assert answer.returncode == 0, answer.stderr
        line_with(stack, "worker 1 is back")
        stack.children += psutil.Process(stack.process.pid).children(recursive=True)
        again = next(each for each in stack.children[::-1] if "--grpc-port" in each.cmdline())
        assert "0" not in again.cmdline()
        stack.process.send_signal(signal.SIGINT)
        stack.process.communicate(timeout=PATIENCE_S)
        assert psutil.wait_procs(stack.children, timeout=PATIENCE_S)[1] == []


@pytest.mark.slow
def test_open_requests_are_answered_when_it_stops():
    """Workers end theirs first; the answers pass Envoy, which ends last."""
    with up("--workers=1") as stack, stack.client() as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": "hello", "max_tokens": 200, "ignore_eos": True}
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            stack.process.send_signal(signal.SIGINT)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        stack.process.communicate(timeout=PATIENCE_S)
        assert stack.process.returncode == 0


CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


def picker_of(stack: Up) -> psutil.Process:
    return next(child for child in stack.children if "epp" in child.cmdline())


def line_with(stack: Up, words: str) -> str:
    """The next line of its output with these words."""
    assert stack.process.stdout is not None
    return next(line for line in stack.process.stdout if words in line)


@pytest.mark.slow
def test_without_the_picker_requests_go_on_until_it_is_back():
    """Failing open is the default: it is started again, where Envoy looks for it."""
    with up("--explain-header") as stack, stack.client() as client:
        url = "/v1/chat/completions"
        body = CHAT | {"model": client.get("/v1/models").json()["data"][0]["id"]}
        for _ in range(2):
            before = psutil.Process(stack.process.pid).children(recursive=True)
            next(child for child in before if "epp" in child.cmdline()).kill()
            assert "picker ended with status -9" in line_with(stack, "round robin until it is back")
            statuses = [client.post(url, json=body).status_code for _ in range(20)]
            assert statuses.count(200) >= 18  # the first find it dead with their bodies on the way
            line_with(stack, "the picker is back")
            while "x-weft-decision" not in client.post(url, json=body).headers:
                pass  # until Envoy's health check has found it
        stack.children += psutil.Process(stack.process.pid).children(recursive=True)
        stack.process.send_signal(signal.SIGINT)
        stack.process.communicate(timeout=PATIENCE_S)
        assert psutil.wait_procs(stack.children, timeout=PATIENCE_S)[1] == []


@pytest.mark.slow
def test_a_picker_that_may_not_be_missing_is_the_end():
    """With --no-fail-open nothing could be answered without it."""
    with up("--workers=1", "--no-fail-open") as stack:
        picker_of(stack).kill()
        _, err = stack.process.communicate(timeout=PATIENCE_S)
        assert stack.process.returncode == 1
        assert "error: picker ended with status -9" in err


@pytest.mark.slow
def test_a_model_need_not_be_named():
    """There is but one; and a wrong body is told in the form that clients read."""
    with up("--workers=1") as stack, stack.client() as client:
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
        assert client.post("/v1/messages", json=CHAT).status_code == 200
        answer = client.post("/v1/chat/completions", json=[1])
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
        error = answer.json()["error"]
        assert "Expected `object`" in error.pop("message")
        assert error == {"type": "invalid_request_error", "param": None, "code": None}


@pytest.mark.slow
def test_envoy_may_hold_bodies():
    """The largest goes through, and through the picker; a larger one is refused."""
    with up("--workers=1", "--explain-header", "--buffered-body-bytes=5MiB") as stack:
        for num_spaces, status in ((5 * 2**20 - 1000, 200), (5 * 2**20, 413)):
            with stack.client() as client:
                body = json.dumps(CHAT) + " " * num_spaces
                headers = {"content-type": "application/json"}
                answer = client.post("/v1/chat/completions", content=body, headers=headers)
            assert answer.status_code == status
            assert ("x-weft-decision" in answer.headers) is (status == 200)


@pytest.mark.slow
def test_workers_may_speak_grpc_alone():
    """HTTP is then refused by Envoy itself, with the reason."""
    with up("--workers=1", "--worker-args=--no-http") as stack:
        with stack.client() as client:
            answer = client.get("/v1/models")
        assert (answer.status_code, "gRPC only" in answer.text) == (404, True)
        assert "HTTP" not in "".join(stack.lines)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["  HTTP    http://127.0.0.1:1 (no TLS)"], "must not contain --no-grpc"),
        (
            ["  HTTP    https://127.0.0.1:1 (TLS)", "  gRPC    127.0.0.1:2 (TLS)"],
            "must not turn on TLS",
        ),
    ],
)
def test_workers_that_nobody_behind_envoy_can_reach_are_refused(lines: list[str], words: str):
    """The picker asks for load over gRPC, and Envoy speaks to them without TLS."""
    with pytest.raises(ConfigError, match=words):
        Worker.from_banner(lines)


@pytest.mark.slow
def test_without_envoy_it_ends():
    """Nothing can be reached any more, so that is said."""
    with up("--workers=1") as stack:
        next(child for child in stack.children if child.name() == "envoy").kill()
        _, err = stack.process.communicate(timeout=PATIENCE_S)
        assert stack.process.returncode == 1
        assert "error: envoy ended with status -9" in err


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_the_end_with_its_words():
    """The last line says what the worker said; those before it are in the format that was asked for."""
    ports = ("--port", str(free_port()), "--metrics-port", str(free_port()))
    result = weft("up", "/no/such/model", *ports, "--log-format", "json")
    said = [json.loads(line) for line in result.stderr.splitlines()[:-1]]
    assert "/no/such/model" in next(one["message"] for one in said if one["process"] == "worker 1")
    assert result.returncode == 1
    assert "worker 1 ended with status 2" in result.stderr.splitlines()[-1]
    assert "/no/such/model" in result.stderr.splitlines()[-1]
