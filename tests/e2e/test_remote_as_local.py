"""`--remote` before a server of ours: every HTTP API answers field by field as it does beside the engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from tests.web.serving import ECHO, RANDOM, SCRIPT, TINY, http_serving, serving, weather_tool
from weft.core.client import EngineClient
from weft.model.open import open_model
from weft.rpc.fleet import Fleet
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer
from weft.text.tokenizer import Tokenizer
from weft.web.options import ApiOptions
from weft.web.served import Served

KEY = "control"
VISION = "embedded:tiny-vision"
# Made up anew in each answer, or of its moment.
OWN = {
    "call_id", "completed_at", "created", "created_at", "id", "item_id", "request_id", "response_id",
    "sequence_number",
}  # fmt: skip
# What stands in the pieces of one text, wherever they end.
GROWING = {
    "arguments",
    "content",
    "delta",
    "partial_json",
    "reasoning",
    "reasoning_content",
    "text",
    "thinking",
}
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES, TOKENS, EMBEDDINGS = "/v1/responses", "/inference/v1/generate", "/v1/embeddings"
IDS = [5, 9, 17, 30]
HELLO = [{"role": "user", "content": "Hello there"}]
SHAPE = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SHAPE}}
SETTINGS = {
    "random": (RANDOM, {}),
    "pooling": (RANDOM, {"runner": "pooling"}),
    "vision": (VISION, {"max_model_len": 512}),
    "tiny": (TINY, {"options": ApiOptions(reasoning_parser="qwen3", tool_call_parser="hermes")}),
    # Says what the first message says, whose reasoning is open from its beginning.
    "echo": (ECHO, {"options": ApiOptions(reasoning_parser="deepseek_r1"), "template": SCRIPT}),
}


@dataclass(frozen=True, slots=True)
class Site:
    """One engine behind two HTTP servers: beside it, and over gRPC."""

    runner: asyncio.Runner
    engine: EngineClient
    local: str
    remote: str

    def ask(self, address: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        """Status and content, from an engine that has nothing cached."""
        return self.runner.run(self._ask(address, path, body))

    async def _ask(self, address: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        await self.engine.reset_prefix_cache()
        async with httpx2.AsyncClient(base_url=address, timeout=60) as http:
            headers = {"authorization": f"Bearer {KEY}"}
            method = "GET" if body is None else "POST"
            answer = await http.request(method, path, json=body, headers=headers)
        if "event-stream" in answer.headers.get("content-type", ""):
            return answer.status_code, folded(answer.text)
        return answer.status_code, plain(answer.json() if answer.text else None)


@asynccontextmanager
async def joined(name: str, runner: asyncio.Runner) -> AsyncIterator[Site]:
    """Both servers, while they run."""
    model, settings = SETTINGS[name]
    async with serving(model, **settings) as beside:
        files = open_model(model, runner=settings.get("runner", "auto")).tokenizer_files
        server = RpcServer(beside.client, files, RpcOptions(port=0))
        fleet = await Fleet.connect([f"127.0.0.1:{await server.start()}"])
        try:
            before = await over_grpc(beside, fleet)
            async with (
                http_serving(beside, control_api_keys=(KEY,)) as local,
                http_serving(before, control_api_keys=(KEY,)) as remote,
            ):
                yield Site(runner, beside.client, local, remote)
        finally:
            fleet.shutdown()
            await fleet.wait_closed()
            await server.stop()


async def over_grpc(beside: Served, fleet: Fleet) -> Served:
    """What `weft serve --remote` makes of a fleet."""
    tokenizer = Tokenizer.from_files(await fleet.get_tokenizer_files())
    return replace(beside, client=fleet, tokenizer=tokenizer)


def site_of(name: str) -> Iterator[Site]:
    """For a fixture of a module's length."""
    with asyncio.Runner() as runner:
        stack = joined(name, runner)
        site = runner.run(stack.__aenter__())
        try:
            yield site
        finally:
            runner.run(stack.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def random() -> Iterator[Site]:
    """A model that writes anything."""
    yield from site_of("random")


@pytest.fixture(scope="module")
def pooling() -> Iterator[Site]:
    """The same as a model that embeds."""
    yield from site_of("pooling")


@pytest.fixture(scope="module")
def tiny() -> Iterator[Site]:
    """A model with a chat template, tools and reasoning."""
    yield from site_of("tiny")


@pytest.fixture(scope="module")
def echo() -> Iterator[Site]:
    """A model whose reasoning a test writes."""
    yield from site_of("echo")


def plain(value: Any) -> Any:
    """`value` without what is each answer's own."""
    match value:
        case dict():
            return {name: "" if name in OWN else plain(one) for name, one in value.items()}
        case list():
            return [plain(one) for one in value]
    return value


def folded(text: str) -> dict[str, Any]:
    """What the events of each kind add up to: which tokens travel together is a matter of time."""
    kinds: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith("data: {"):
            event = plain(json.loads(line[6:]))
            kind = event.get("type", "chunk")
            kinds[kind] = merged(kinds.get(kind), event)
    return kinds


def merged(old: Any, new: Any, name: str = "") -> Any:
    """`old` and what came after it."""
    if old is None or new is None:
        return old if new is None else new
    match new:
        case dict():
            return old | {key: merged(old.get(key), one, key) for key, one in new.items()}
        case list() if new and isinstance(new[0], dict) and "index" in new[0]:
            by_index = {one["index"]: one for one in old}
            for one in new:
                by_index[one["index"]] = merged(by_index.get(one["index"]), one)
            return [by_index[index] for index in sorted(by_index)]
        case list():
            return old + new
        case str() if name in GROWING:
            return old + new
    return new


def completion(**body: Any) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"prompt": IDS, "temperature": 0, "max_tokens": 6, **body}


def chat(**body: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": HELLO, "temperature": 0, "max_tokens": 30, **body}


def says(text: str, **body: Any) -> tuple[str, dict[str, Any]]:
    return chat(messages=[{"role": "user", "content": text}], max_tokens=80, **body)


def message(text: str = "Hello there", **body: Any) -> tuple[str, dict[str, Any]]:
    written = [{"role": "user", "content": text}]
    return MESSAGES, {
        "model": ECHO,
        "messages": written,
        "max_tokens": 60,
        "temperature": 0,
        **body,
    }


def response(said: str = "Hi", **body: Any) -> tuple[str, dict[str, Any]]:
    return RESPONSES, {"input": said, "max_output_tokens": 60, "temperature": 0, **body}


def tokens(**params: Any) -> tuple[str, dict[str, Any]]:
    return TOKENS, {
        "token_ids": IDS,
        "sampling_params": {"temperature": 0, "max_tokens": 3, **params},
    }


def embedding(**body: Any) -> tuple[str, dict[str, Any]]:
    return EMBEDDINGS, {"input": "hello there", **body}


def check_same(site: Site, path: str, body: dict[str, Any] | None) -> None:
    """Both servers answer alike, but for ranks that do not travel: those have a test of their own."""
    theirs, ours = site.ask(site.remote, path, body), site.ask(site.local, path, body)
    assert without_ranks(theirs) == without_ranks(ours)


def without_ranks(value: Any) -> Any:
    """The same, with no rank of a token anywhere in it."""
    if isinstance(value, dict):
        return {key: without_ranks(item) for key, item in value.items() if key != "rank"}
    if isinstance(value, list | tuple):
        return [without_ranks(item) for item in value]
    return value


SAMPLED = {
    "temperature": 0.9, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": -5,
    "presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1,
}  # fmt: skip
TOOLS = {"tools": [weather_tool()]}
THOUGHTFUL = 'hm, so</think>{"a":true}'
FORCED = 'hm</think>[{"name":"get_weather","parameters":{"unit":"c","days":2}}]'
FOR_RANDOM = {
    "plain": completion(),
    "text": completion(prompt="some text"),
    "several prompts": completion(prompt=[IDS, [8, 9]]),
    "several answers": completion(n=3, **SAMPLED),
    "sampled": completion(**SAMPLED),
    "logprobs": completion(logprobs=3),
    "no alternatives": completion(logprobs=0),
    "ids for tokens": completion(logprobs=2, return_tokens_as_token_ids=True),
    "echo": completion(echo=True, logprobs=2),
    "echo alone": completion(echo=True, logprobs=1, max_tokens=0),
    "stop": completion(stop=["a", "e"]),
    "stop included": completion(stop=["a", "e"], include_stop_str_in_output=True),
    "stop ids": completion(stop_token_ids=list(range(100, 400))),
    "bias": completion(logit_bias={"7": 50}),
    "least tokens": completion(ignore_eos=True, min_tokens=3),
    "token ids": completion(return_token_ids=True),
    "truncated": completion(
        prompt=list(range(5, 60)), truncate_prompt_tokens=4, echo=True, return_token_ids=True
    ),
    "special tokens": completion(prompt=[1, 2, 3], skip_special_tokens=False),
    "spaces": completion(spaces_between_special_tokens=False),
    "regex": completion(structured_outputs={"regex": "[ab]{3}"}),
    "schema": completion(structured_outputs={"json": SHAPE}),
    "choice": completion(structured_outputs={"choice": ["yes", "no"]}),
    "grammar": completion(structured_outputs={"grammar": 'root ::= "x" | "yz"'}),
    "rank": completion(data_parallel_rank=0),
    "stream": completion(stream=True, stream_options={"include_usage": True}),
    "stream of several": completion(stream=True, logprobs=2, n=2, temperature=0.7, seed=1),
    "echoed stream": completion(stream=True, echo=True, logprobs=1),
    "tokens": tokens(),
    "tokens with logprobs": tokens(logprobs=2),
    "streamed tokens": (tokens()[0], {**tokens()[1], "stream": True}),
    # Refused, by the front server or the one behind it.
    "beyond the context": completion(prompt=[5] * 2000),
    "more than fits": completion(max_tokens=5000),
    "bad temperature": completion(temperature=-1),
    "no answers": completion(n=0),
    "no prompt": completion(prompt=""),
    "unknown token": completion(prompt=[99999]),
    "too many logprobs": completion(logprobs=300),
    "too many of the prompt": completion(prompt_logprobs=300),
    "bad regex": completion(structured_outputs={"regex": "["}),
    "bad tag": completion(structured_outputs={"structural_tag": "{}"}),
    "unknown model": completion(model="nope"),
    "priority": completion(priority=3),
    "embeddings": embedding(),
}
FOR_TINY = {
    "plain": chat(),
    "several": chat(n=2, temperature=0.7, seed=4),
    "logprobs": chat(logprobs=True, top_logprobs=2),
    "schema": chat(response_format=FORMAT),
    "object": chat(response_format={"type": "json_object"}),
    "bad schema": chat(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "y"}}}
    ),
    "no reasoning": chat(response_format=FORMAT, chat_template_kwargs={"enable_thinking": False}),
    "tools": chat(**TOOLS),
    "forced": chat(**TOOLS, tool_choice="required"),
    "named": chat(**TOOLS, tool_choice={"type": "function", "function": {"name": "get_weather"}}),
    "stream": chat(stream=True, stream_options={"include_usage": True}),
    "streamed schema": chat(stream=True, response_format=FORMAT),
    "streamed call": chat(stream=True, **TOOLS, tool_choice="required"),
    "token ids": chat(return_token_ids=True),
    "response": response(),
    "streamed response": response(stream=True),
    "response with schema": response(
        text={"format": {"type": "json_schema", "name": "x", "schema": SHAPE}}
    ),
    "response with call": response(
        tools=[{"type": "function", "name": "get", "parameters": SHAPE}], tool_choice="required"
    ),
    "response with logprobs": response(
        include=["message.output_text.logprobs"], top_logprobs=2
    ),
    "generate": ("/generate", {"prompt": "hello", "max_tokens": 3, "temperature": 0}),
    "tokenize": ("/tokenize", {"prompt": "hello world"}),
    "tokenize chat": ("/tokenize", {"messages": HELLO}),
    "detokenize": ("/detokenize", {"tokens": [5, 6]}),
    "models": ("/v1/models", None),
    "health": ("/health", None),
    "pause": ("/is_paused", None),
    "abort": ("/abort_requests", {"request_ids": ["x"]}),
}  # fmt: skip
FOR_ECHO = {
    "reasoning": says("hm</think>yes"),
    "schema behind reasoning": says(THOUGHTFUL, response_format=FORMAT),
    "object behind reasoning": says(THOUGHTFUL, response_format={"type": "json_object"}),
    "call behind reasoning": says(FORCED, **TOOLS, tool_choice="required"),
    "stream": says(THOUGHTFUL, response_format=FORMAT, stream=True),
    "message": message("hm</think>yes"),
    "streamed message": message("hm</think>yes", stream=True),
    "message with stop": message("hm</think>yes", stop_sequences=["e"]),
    "message with schema": message(
        THOUGHTFUL, output_config={"format": {"type": "json_schema", "schema": SHAPE}}
    ),
    "message with call": message(
        tools=[{"name": "get", "input_schema": SHAPE}], tool_choice={"type": "any"}
    ),
    "counted": ("/v1/messages/count_tokens", {"model": ECHO, "messages": HELLO}),
    "response": response(
        THOUGHTFUL, text={"format": {"type": "json_schema", "name": "x", "schema": SHAPE}}
    ),
}
FOR_POOLING = {
    "text": embedding(),
    "several": embedding(input=["a b", "c"]),
    "ids": embedding(input=IDS),
    "base64": embedding(encoding_format="base64"),
    "truncated": embedding(truncate_prompt_tokens=3),
    "score": ("/score", {"text_1": "a", "text_2": "b"}),
    "rerank": ("/rerank", {"query": "a", "documents": ["b", "c"]}),
    "one vector": ("/pooling", {"input": "hello", "task": "embed"}),
    # Refused.
    "dimensions": embedding(dimensions=8),
    "nothing": embedding(input=""),
    "beyond the context": embedding(input=[5] * 3000),
    "unknown token": embedding(input=[999999]),
    "chat": chat(),
    "completion": completion(),
}


@pytest.mark.parametrize("name", FOR_RANDOM)
def test_completions_are_the_same(random: Site, name: str):
    """Tokens, texts, log-probabilities, usage, reasons and refusals."""
    check_same(random, *FOR_RANDOM[name])


@pytest.mark.parametrize("name", FOR_TINY)
def test_conversations_are_the_same(tiny: Site, name: str):
    """Chat, Responses, tools, structured output and what stands around them."""
    check_same(tiny, *FOR_TINY[name])


@pytest.mark.parametrize("name", FOR_ECHO)
def test_answers_behind_reasoning_are_the_same(echo: Site, name: str):
    """What rules an answer begins where the reasoning ends, though no parser was named behind the wire."""
    check_same(echo, *FOR_ECHO[name])


@pytest.mark.parametrize("name", FOR_POOLING)
def test_embeddings_are_the_same(pooling: Site, name: str):
    """Numbers to the last bit, and refusals."""
    check_same(pooling, *FOR_POOLING[name])


# The protocol has no field for these; the engine beside the server takes them.
NOT_SENT = {
    "allowed_token_ids": completion(allowed_token_ids=[7, 8]),
    "bad_words": completion(bad_words=["a"]),
    "cache_salt": completion(cache_salt="x"),
    "logprob_token_ids": tokens(logprob_token_ids=[5, 6]),
    "repetition_detection": completion(
        repetition_detection={"max_pattern_size": 4, "min_count": 3}
    ),
    "seed": completion(seed=2**40),
    "whitespace_pattern": completion(
        structured_outputs={"json_object": True, "whitespace_pattern": " ?"}
    ),
    "reset_running_requests": ("/reset_prefix_cache?reset_running_requests=true", {}),
}


@pytest.mark.parametrize("name", NOT_SENT)
def test_what_the_wire_cannot_carry_is_refused_by_name(random: Site, name: str):
    """Never dropped: the answer would be to another question."""
    assert random.ask(random.local, *NOT_SENT[name])[0] == 200

    status, answer = random.ask(random.remote, *NOT_SENT[name])

    assert (status, answer["error"]["param"]) == (400, name)
    assert name in answer["error"]["message"]


def test_control_that_has_no_call_is_refused(random: Site):
    """Pausing has none."""
    assert random.ask(random.remote, "/pause", {})[0] == 400


def test_ranks_that_do_not_travel_are_null(random: Site):
    """All else of the prompt's log-probabilities is the same."""
    path, body = completion(prompt_logprobs=2)
    _, local = random.ask(random.local, path, body)
    _, remote = random.ask(random.remote, path, body)
    rows = remote["choices"][0]["prompt_logprobs"][1:]
    expected = local["choices"][0]["prompt_logprobs"][1:]

    ranks = [[entry.pop("rank") for entry in row.values()] for row in rows]
    known = [[entry.pop("rank") for entry in row.values()] for row in expected]

    assert rows == expected
    assert ranks == [[rank if rank <= 2 else None for rank in row] for row in known]
