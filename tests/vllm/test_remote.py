"""`weft serve --remote` before vLLM's own gRPC server, until its engine is killed."""

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from pathlib import Path

import grpc
import psutil
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import clean_environment, running
from tests.model.checkpoints import write_checkpoint, write_json
from tests.vllm.conftest import SMALL
from tests.vllm.served import START_TIMEOUT_S, VARIABLES, fetched, opened, refused
from weft.core.errors import BadRequest, Unsupported
from weft.core.values.types import SamplingParams, StructuredOutputsParams
from weft.model.embedded.byte_tokenizer import CHATML
from weft.rpc.client import RpcClient

pytestmark = pytest.mark.vllm

OPEN, END = 398, 399  # the tokens around reasoning
PROMPT = list(range(100, 140))
BODY = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
SCHEMA = {
    "type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"],
    "additionalProperties": False,
}  # fmt: skip
THINKS = (
    "{% if add_generation_prompt %}<think>\n"
    "{% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}"
)
COMPACT = {"backend": "xgrammar", "disable_any_whitespace": True}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A checkpoint whose template opens a thought."""
    directory = write_checkpoint(tmp_path_factory.mktemp("remote") / "llama", SMALL)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    for token_id, content in ((OPEN, "<think>"), (END, "</think>")):
        del tokenizer["model"]["vocab"][f"Ġw{token_id}"]
        added = {
            **tokenizer["added_tokens"][0],
            "id": token_id,
            "content": content,
            "special": False,
        }
        tokenizer["added_tokens"].append(added)
    write_json(directory / "tokenizer.json", tokenizer)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    write_json(directory / "tokenizer_config.json", {**config, "chat_template": CHATML + THINKS})
    return directory


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture(scope="module")
def worker(thinker):
    """vLLM's own server, and its address."""
    port = free_port()
    command = [
        str(Path(sys.executable).parent / "vllm"), "serve", str(thinker), "--grpc",
        "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "small",
        "--enforce-eager", "--dtype", "float32", "--max-model-len", "512",
        "--reasoning-parser", "qwen3", "--structured-outputs-config", json.dumps(COMPACT),
    ]  # fmt: skip
    process = subprocess.Popen(command, env=clean_environment(**VARIABLES))
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=START_TIMEOUT_S)
        yield psutil.Process(process.pid), f"127.0.0.1:{port}"
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        for one in (process, *family):
            one.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(worker):
    """Ours before it."""
    _, address = worker
    with running("--remote", f"grpc://{address}", "--reasoning-parser", "qwen3") as started:
        yield started


def chat(server, **changes):
    """The first choice's message."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "temperature": 0.0}
    answer = json.loads(fetched(server, "/v1/chat/completions", {**body, **changes}))
    return answer["choices"][0]["message"]


FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
CALL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}
ENDS_THOUGHT = {"logit_bias": {str(END): 100}}  # with the first token; a grammar takes it out later


async def test_the_server_says_what_it_is(worker):
    """As far as its protocol goes."""
    client = await RpcClient.connect(worker[1])
    try:
        report = await client.get_server_info()
        (load,) = await client.get_loads()
        await client.check_health()
        config = client.model_config
    finally:
        await client.close()
    assert (report.is_ours, report.reasoning_parser) == (False, "qwen3")
    assert not report.constrains_reasoning
    assert (config.max_model_len, config.vocab_size, config.dtype) == (512, 400, "float32")
    assert (config.served_model_name, load.num_running) == ("small", 0)
    assert load.max_total_tokens > 0


def test_text_comes_whole_and_in_pieces(server):
    """The same of both, with echo, usage and the ends of streams."""
    whole = json.loads(fetched(server, "/v1/completions", {**BODY, "return_token_ids": True}))
    stream = fetched(server, "/v1/completions", {**BODY, "stream": True})
    events = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    assert text == whole["choices"][0]["text"]
    assert len(whole["choices"][0]["token_ids"]) == whole["usage"]["completion_tokens"] == 8
    echoed = json.loads(fetched(server, "/v1/completions", {**BODY, "echo": True}))
    assert echoed["choices"][0]["text"].endswith(text)
    stopped = json.loads(fetched(server, "/v1/completions", {**BODY, "stop": text[3:5]}))
    assert stopped["choices"][0]["text"] == text.partition(text[3:5])[0]


def test_ranks_that_the_wire_does_not_have_are_unknown(server):
    """And the best are all there."""
    body = {**BODY, "max_tokens": 3, "prompt_logprobs": 2, "logprobs": 2}
    choice = json.loads(fetched(server, "/v1/completions", body))["choices"][0]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for token_id, row in zip(PROMPT[1:], others, strict=True):
        ranks = {int(i): entry["rank"] for i, entry in row.items()}
        best = max(row, key=lambda i, row=row: row[i]["logprob"])
        assert ranks[int(best)] == 1
        assert ranks[token_id] == 1 if int(best) == token_id else ranks[token_id] in (None, 2)
    assert len(choice["logprobs"]["tokens"]) == 3


@pytest.mark.parametrize("thought", [NO_THOUGHT, ENDS_THOUGHT], ids=["none", "ends"])
def test_a_schema_is_followed_behind_the_thought(server, thought):
    """Whether the prompt has ended it or the answer does; without white space."""
    assert chat(server, response_format=FORM, **thought)["content"] == '{"a":1}'


@pytest.mark.parametrize("thought", [NO_THOUGHT, ENDS_THOUGHT], ids=["none", "ends"])
def test_a_call_is_forced_behind_the_thought(server, thought):
    """By its name and any."""
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        message = chat(server, tools=[CALL], tool_choice=choice, **thought)
        (call,) = message["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"a":1}'}


def test_every_form_of_constraint_is_carried(server):
    """Of a plain completion, with the thought ended by its prompt."""
    ended = [*PROMPT, OPEN, END]
    for form, expected in (
        ({"guided_regex": "[ab]{3}"}, {"aaa", "aab", "aba", "abb", "baa", "bab", "bba", "bbb"}),
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"guided_grammar": 'root ::= "x" | "y"'}, {"x", "y"}),
        ({"guided_json": SCHEMA}, {'{"a":1}'}),
    ):
        body = {"prompt": ended, "max_tokens": 20, "temperature": 0.0, **form}
        answer = json.loads(fetched(server, "/v1/completions", body))
        assert answer["choices"][0]["text"] in expected, form


async def test_a_thought_that_the_prompt_does_not_end_is_not_said_to_have_ended(worker):
    """vLLM's server would wait for its end, and hold the constraint back."""
    client = await RpcClient.connect(worker[1])
    constraint = StructuredOutputsParams(regex="[ab]{3}")
    params = SamplingParams(temperature=0.0, max_tokens=9, structured_outputs=constraint)

    async def ask(prompt):
        given = {"prompt_token_ids": prompt}
        outputs = client.generate(given, params, "r", reasoning_ended=True)
        return [output async for output in outputs][-1].outputs[0].text

    try:
        with pytest.raises(BadRequest, match="</think>"):
            await ask(PROMPT)
        assert set(await ask([*PROMPT, OPEN, END])) <= set("ab")
    finally:
        await client.close()


async def test_what_the_wire_has_no_field_for_is_refused_by_name(worker):
    """Before anything is sent."""
    client = await RpcClient.connect(worker[1])

    async def ask(params, prompt=None, **options):
        given = prompt or {"prompt_token_ids": PROMPT}
        return [output async for output in client.generate(given, params, "r", **options)]

    try:
        for name, value in (
            ("bad_words", ["a"]), ("allowed_token_ids", [5]), ("thinking_token_budget", 3),
        ):  # fmt: skip
            with pytest.raises(BadRequest, match=name):
                await ask(SamplingParams(max_tokens=2, **{name: value}))
        with pytest.raises(BadRequest, match="priority"):
            await ask(SamplingParams(max_tokens=2), priority=1)
        with pytest.raises(BadRequest, match="cache_salt"):
            await ask(SamplingParams(), {"prompt_token_ids": PROMPT, "cache_salt": "s"})
        with pytest.raises(Unsupported):
            await client.sleep()
    finally:
        await client.close()


def test_what_vllm_refuses_is_a_client_error(server):
    """With its own words."""
    code, error = refused(server, "/v1/completions", {**BODY, "guided_regex": "(a"})
    assert code == 400
    assert "parenthesis" in error["message"]
    code, error = refused(server, "/v1/completions", {**BODY, "max_tokens": 1000})
    assert code == 400


def test_a_stream_that_is_left_is_aborted(server):
    """The server's own load says so."""
    with opened(server, "/v1/completions", {**BODY, "max_tokens": 450, "stream": True}) as stream:
        stream.readline()
    deadline = time.monotonic() + PATIENCE_S
    while json.loads(fetched(server, "/load"))["loads"][0]["num_running"]:
        assert time.monotonic() < deadline
    assert "vllm:prompt_tokens_total{" in fetched(server, "/metrics")


def test_a_dead_engine_is_told(server, worker):
    """To the stream that is open, to the next request and to who asks for health. The last test here."""
    process, _ = worker
    engine = next(
        child for child in process.children(recursive=True) if "EngineCore" in child.name()
    )
    with opened(server, "/v1/completions", {**BODY, "max_tokens": 450, "stream": True}) as stream:
        stream.readline()
        killer = threading.Thread(target=engine.kill)
        killer.start()
        rest = stream.read().decode()
    killer.join()
    assert "has stopped" in rest
    for path, body in (("/v1/completions", BODY), ("/health", None)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            opened(server, path, body)
        assert caught.value.code == 503
