"""Streamed or whole, an answer is the same: for every family of parsers, every API, wherever pieces end."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.doubles.scripted_client import ScriptedClient
from tests.text.parsers.test_round_trip import WRITERS
from tests.web.openai.calls import HELLO, flat_chat, flat_texts, folded_chat, folded_texts
from tests.web.serving import call_of
from weft.core.config.engine_options import EngineOptions
from weft.engine.start.configure import resolve
from weft.model.open import open_model
from weft.text.parsers.table import REASONING_PARSERS
from weft.text.templates.chat import ChatTemplate
from weft.text.tokenizer import Tokenizer
from weft.web.chat.partial_json import completed
from weft.web.http.endpoint import Events
from weft.web.http.state import ServerState
from weft.web.options import ApiOptions
from weft.web.routes import all_endpoints
from weft.web.served import Served

CHAT, COMPLETIONS, MESSAGES, RESPONSES = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
)  # fmt: skip
ENDPOINT_BY_PATH = {
    endpoint.path: endpoint
    for endpoint in all_endpoints(ServerState(CollectorRegistry()))
    if endpoint.method == "POST"
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
# Made up anew in each answer, or of its moment.
OWN = {"id", "created", "created_at", "completed_at", "call_id", "request_id"}


@dataclass(slots=True)
class Site:
    """What handlers are given, and the loop that they run on."""

    runner: asyncio.Runner
    client: ScriptedClient
    served: Served

    def ask(self, path: str, body: dict[str, Any], options: ApiOptions) -> Any:
        """The answer as a client reads it: an object, or the data of all events."""
        return self.runner.run(self._ask(path, body, options))

    async def _ask(self, path: str, body: dict[str, Any], options: ApiOptions) -> Any:
        call = call_of(ENDPOINT_BY_PATH, replace(self.served, options=options), path, body)
        made = await ENDPOINT_BY_PATH[path].handler(call)
        if not isinstance(made, Events):
            return json.loads(msgspec.json.encode(made))
        lines = b"".join([event async for event in made.source]).decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """The tokens of embedded:echo are bytes, so that pieces may end inside of characters."""
    checkpoint = open_model("embedded:echo")
    asked = EngineOptions(model="embedded:echo", max_model_len=8192, num_gpu_blocks_override=512)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer_files)

    async def made() -> ScriptedClient:
        return ScriptedClient(resolve(asked, checkpoint.card, 1 << 30), tokenizer)

    with (
        asyncio.Runner() as runner,
        ChatTemplate(checkpoint.chat_template, tokenizer.special_tokens) as template,
    ):
        client = runner.run(made())
        yield Site(runner, client, Served(
            client=client, tokenizer=tokenizer, chat_template=template, started_at=0,
        ))  # fmt: skip


# -- what an API's stream adds up to --------------------------------------------------------------


def of_stream(fold: Callable[[list[dict]], list[dict]]) -> Callable[[list[dict]], Any]:
    """Choices by `fold`, and the usage at the end."""
    return lambda chunks: (fold(chunks), chunks[-1]["usage"])


def of_answer(flatten: Callable[[dict], list[dict]]) -> Callable[[dict], Any]:
    """The same of an answer that came in one piece."""
    return lambda whole: (flatten(whole), whole["usage"])


def from_messages_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A message."""
    message: dict[str, Any] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
            case "content_block_delta":
                _add_to_block(message["content"][event["index"]], event["delta"])
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    for block in message["content"]:
        if "json" in block:
            block["input"] = json.loads(completed(block.pop("json")))  # a limit may have cut it
    return without_own(message)


def _add_to_block(block: dict[str, Any], delta: dict[str, Any]) -> None:
    names = {"partial_json": "json", "text": "text", "thinking": "thinking"}
    for told, kept in names.items():
        if told in delta:
            block[kept] = block.get(kept, "") + delta[told]
    if "signature" in delta:
        block["signature"] = delta["signature"]


def from_response_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A response: what its last event says, which has to be what the others told."""
    texts: dict[tuple[str, int], str] = {}
    for event in events:
        kind, _, part = event["type"].rpartition(".")
        key = kind, event.get("output_index", 0)
        if part == "delta":
            texts[key] = texts.get(key, "") + event["delta"]
        elif part == "done" and (told := event.get("text", event.get("arguments"))) is not None:
            assert texts.pop(key, "") == told
    assert not texts
    return without_own(events[-1]["response"])


def without_own(value: Any) -> Any:
    """A value without what is made up anew in each answer."""
    if isinstance(value, dict):
        return {name: without_own(inner) for name, inner in value.items() if name not in OWN}
    return [without_own(inner) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Api:
    """What to ask, and how to read what comes; `limit` is the field for the longest answer."""

    body: dict[str, Any]
    limit: str
    streaming: dict[str, Any]
    of_events: Callable[[list[dict[str, Any]]], Any]
    of_whole: Callable[[dict[str, Any]], Any]


_OFFERED = {"name": "get_weather", "description": "The weather."}
_WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
APIS = {
    CHAT: Api(
        {"messages": HELLO, "tools": [{"type": "function", "function": {**_OFFERED, "parameters": SCHEMA}}],
         "n": 2, "return_token_ids": True, "logprobs": True, "top_logprobs": 2},
        "max_tokens", _WITH_USAGE, of_stream(folded_chat), of_answer(flat_chat),
    ),
    COMPLETIONS: Api(
        {"prompt": "hello", "n": 2, "return_token_ids": True, "logprobs": 2},
        "max_tokens", _WITH_USAGE, of_stream(folded_texts), of_answer(flat_texts),
    ),
    MESSAGES: Api(
        {"model": "embedded:echo", "messages": HELLO, "tools": [{**_OFFERED, "input_schema": SCHEMA}]},
        "max_tokens", {"stream": True}, from_messages_events, without_own,
    ),
    RESPONSES: Api(
        {"input": "hello", "tools": [{"type": "function", **_OFFERED, "parameters": SCHEMA}],
         "store": False},
        "max_output_tokens", {"stream": True}, from_response_events, without_own,
    ),
}  # fmt: skip
# Names of a family of thoughts and of one of calls.
FAMILIES = [
    (None, None),
    *((None, tool) for tool in WRITERS if tool != "openai"),
    *((name, "hermes") for name, family in REASONING_PARSERS.items() if not family.is_harmony),
    ("openai_gptoss", "openai"),
]
# Nobody takes the text of a text completion apart.
CASES = [
    (path, *names)
    for path in APIS
    for names in FAMILIES
    if path != COMPLETIONS or names == FAMILIES[0]
]
TEXTS = st.text(st.sampled_from("aé{}[]<>/\n \"'|中🎉"), max_size=12)


def _thoughts(name: str | None, text: str) -> str:
    """Thoughts as a family writes them."""
    if name is None:
        return ""
    family = REASONING_PARSERS[name]
    if family.is_harmony:
        return f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"
    start = family.starts[0] if family.starts else ""
    return f"{start}{text}{family.ends[0] if family.ends else ''}"


@settings(
    max_examples=4,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
@pytest.mark.parametrize(("path", "reasoning", "tool"), CASES)
def test_a_stream_adds_up_to_the_answer_in_one_piece(site, path, reasoning, tool, data):
    """Text, thoughts, calls, log-probabilities, usage and reason, however the pieces are cut."""
    calls = [("get_weather", {"city": data.draw(TEXTS), "days": 3})] * data.draw(st.integers(0, 2))
    text = _thoughts(reasoning, data.draw(TEXTS)) + data.draw(TEXTS)
    if tool is not None and calls:
        text += WRITERS[tool](calls)
    text += data.draw(TEXTS)
    site.client.script = site.served.tokenizer.encode(text or "x", add_special_tokens=False)
    size = len(site.client.script)
    api = APIS[path]
    limit = size if data.draw(st.booleans()) else data.draw(st.integers(1, size))
    body = {**api.body, api.limit: limit}
    if tool is None:
        body.pop("tools", None)
    options = ApiOptions(tool_call_parser=tool, reasoning_parser=reasoning)
    site.client.borders = ()
    whole = site.ask(path, body, options)
    site.client.borders = data.draw(
        st.lists(st.integers(1, size), max_size=size) | st.just(range(size))
    )
    site.client.is_hasty = data.draw(st.booleans())
    events = site.ask(path, {**body, **api.streaming}, options)
    assert api.of_events(events) == api.of_whole(whole)
