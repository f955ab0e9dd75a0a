"""`weft serve --engine vllm` as a process: HTTP and gRPC before one engine, and what happens when that dies."""

import json
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.vllm.served import START_TIMEOUT_S, fetched, opened, refused, serving
from weft.core.values.types import SamplingParams
from weft.rpc.client import RpcClient

pytestmark = pytest.mark.vllm

PROMPT = list(range(100, 140))
BODY = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0.0, "ignore_eos": True}


CONTROL = {"authorization": "Bearer c"}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Where profiles go."""
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def server(checkpoint, traces):
    """Started with flags of ours, one of vLLM's and arguments in JSON."""
    ours = ("-c", "512", "--served-model-name", "small", "--control-api-key", "c")
    profiler = json.dumps({"profiler": "torch", "torch_profiler_dir": str(traces)})
    theirs = ("--profiler-config", profiler, "--engine-args", json.dumps({"max_num_seqs": 16}))
    with serving(checkpoint, *ours, *theirs) as started:
        yield started


def test_the_block_names_the_engine(server):
    """With its version and what it was started with."""
    assert re.search(r"engine  vLLM 0\.32\..*16 sequences at once", server.banner)


async def test_both_wires_give_the_same_tokens(server):
    """And are those of one engine."""
    over_http = json.loads(fetched(server, "/v1/completions", {**BODY, "return_token_ids": True}))[
        "choices"
    ][0]
    client = await RpcClient.connect(server.address)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    try:
        outputs = [o async for o in client.generate({"prompt_token_ids": PROMPT}, params, "g")]
        (load,) = await client.get_loads()
    finally:
        await client.close()
    assert outputs[-1].outputs[0].token_ids == over_http["token_ids"]
    assert outputs[-1].outputs[0].text == over_http["text"]
    assert load.max_running == 16
    assert client.model_config.max_model_len == 512


def test_a_conversation_streams(server):
    """Text in pieces, then the end and the counts."""
    body = {
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    lines = fetched(server, "/v1/chat/completions", body).split("\n\n")
    events = [
        json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")
    ]
    assert events[-1]["usage"]["completion_tokens"] == 6
    assert events[-2]["choices"][0]["finish_reason"] == "length"


def test_a_schema_is_followed(server):
    """Without white space."""
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    }
    answer = json.loads(fetched(server, "/v1/chat/completions", body))
    assert answer["choices"][0]["message"]["content"] == '{"a":1}'


def test_every_series_is_there_once(server):
    """vLLM's, with what the picker reads, beside those of our HTTP server."""
    text = fetched(server, "/metrics")
    families = Counter(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert [name for name, count in families.items() if count > 1] == []
    needed = {
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info", "vllm:prompt_tokens_total", "http_requests_total",
    }  # fmt: skip
    assert needed <= families.keys()


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/completions", {**BODY, "top_p": 3}, 400, "top_p"),
        ("/v1/completions", {**BODY, "model": "other"}, 404, "other"),
        ("/v1/completions", {**BODY, "guided_regex": "(a"}, 400, "regex"),
    ],
)
def test_what_cannot_be_done_is_refused(server, path, body, status, words):
    """With the status that it has from our engine."""
    code, error = refused(server, path, body)
    assert code == status
    assert words in error["message"]


def test_a_profile_is_written(server, traces):
    """Of engine and server, with stacks, twice; one at a time, and the server lives on."""
    for prefix in ("first", "second"):
        path = f"/start_profile?profile_prefix={prefix}"
        fetched(server, path, {}, **CONTROL)
        code, error = refused(server, path, {}, **CONTROL)
        assert (code, "profil" in error["message"]) == (409, True)
        bodies = [{**BODY, "prompt": PROMPT[i:], "max_tokens": 2} for i in range(4)]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda body: fetched(server, "/v1/completions", body), bodies))
        # torch sums up what it saw: half a minute of processor time.
        fetched(server, "/stop_profile", {}, timeout_s=START_TIMEOUT_S, **CONTROL)
        written = [path.name for path in traces.glob(f"{prefix}*.json.gz")]
        assert len(written) == 2, written
        assert any("async_llm" in name for name in written)
    assert json.loads(fetched(server, "/v1/completions", BODY))["choices"]


def test_the_death_of_the_engine_ends_the_server(server):
    """The stream that is open gets an error, and the process a status that says so. The last test here."""
    engine = next(child for child in server.front.children() if "EngineCore" in child.name())
    body = {**BODY, "max_tokens": 400, "stream": True}
    with opened(server, "/v1/completions", body) as stream:
        stream.readline()
        killer = threading.Thread(target=engine.kill)
        killer.start()
        rest = stream.read().decode()
    killer.join()
    assert "the engine has stopped" in rest
    status, err = server.wait()
    assert status == 1
    assert "error: the engine has stopped" in err
