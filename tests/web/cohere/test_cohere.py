"""Cohere's API against real engines: answers, streams, conversations, embeddings, and what is refused."""

import base64
import json
from functools import partial

import httpx2
import msgspec
import numpy as np
import pytest

from tests.web.pooling.serving import http, post
from tests.web.serving import ECHO, QWEN, SCRIPT, call_of, http_serving, serving
from weft.core.config.engine import PoolerConfig
from weft.core.errors import BadRequest
from weft.core.values.types import PoolingKind
from weft.web.cohere import ENDPOINTS, POOLING
from weft.web.cohere.cohere_embed import prefix_of
from weft.web.http.endpoint import Events

BY_PATH = {endpoint.path: endpoint for endpoint in (*ENDPOINTS, *POOLING)}
make_call = partial(call_of, BY_PATH)
CHAT, RENDER, EMBED = "/cohere/v2/chat", "/cohere/v2/chat/render", "/v2/embed"
CALL = '<tool_call>\n{"name": "f", "arguments": {"unit": "c"}}\n</tool_call>'
TEXT = f"<think>Hm.</think>\n\nSure.{CALL}\n{CALL}"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SHOWN = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{{ documents | tojson }}\n"


@pytest.fixture
async def pooling():
    async with http() as client:
        yield client


def says(text, **fields):
    """A body whose answer is `text`, where the template is `SCRIPT`."""
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 300, "temperature": 0, **fields}


async def handled(served, body, path=CHAT):
    body = {"model": served.client.model_config.served_model_name, **body}
    return await BY_PATH[path].handler(make_call(served, path, body))


async def ask(served, **fields):
    """The answer in one piece, as a client would read it."""
    return json.loads(msgspec.json.encode(await handled(served, fields)))


async def events(served, **fields):
    """The data of a stream's events, without the end mark."""
    made = await handled(served, {**fields, "stream": True})
    assert isinstance(made, Events)
    *written, last = [event async for event in made.source]
    assert last == b"data: [DONE]\n\n"
    return [json.loads(event.removeprefix(b"data: ")) for event in written]


async def test_a_chat_has_thinking_text_and_calls_apart(scripted):
    """Arguments are JSON text, and usage has the tokens in both places."""
    made = await ask(scripted, **says(TEXT, tools=[TOOL]))
    thinking, text = made["message"]["content"]
    assert thinking == {"type": "thinking", "thinking": "Hm."}
    assert (text["type"], text["text"].strip()) == ("text", "Sure.")
    calls = made["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["f", "f"]
    assert json.loads(calls[1]["function"]["arguments"]) == {"unit": "c"}
    assert (made["finish_reason"], made["id"]) == ("TOOL_CALL", "r1")
    assert made["usage"]["tokens"] == made["usage"]["billed_units"]
    assert made["usage"]["tokens"]["output_tokens"] > len(TEXT) // 2


async def test_a_stream_adds_up_to_the_answer():
    """Blocks and calls begin, grow and end; the last event has the reason and the usage."""
    async with serving(ECHO, options=QWEN, template=SCRIPT, enable_prefix_caching=False) as served:
        whole = await ask(served, **says(TEXT, tools=[TOOL], logprobs=True))
        streamed = await events(served, **says(TEXT, tools=[TOOL], logprobs=True))
    kinds = [event["type"] for event in streamed]
    assert kinds[0] == "message-start"
    assert [kind for kind in kinds if not kind.endswith("-delta")] == [
        "message-start",
        *["content-start", "content-end"] * 2,
        *["tool-call-start", "tool-call-end"] * 2,
        "message-end",
    ]
    deltas = [event for event in streamed if event["type"] == "content-delta"]
    texts = ["", ""]
    for event in deltas:
        texts[event["index"]] += "".join(event["delta"]["message"]["content"].values())
    assert texts == [next(b[k] for k in ("thinking", "text") if k in b)
                     for b in whole["message"]["content"]]  # fmt: skip
    arguments = ["", ""]
    for event in streamed:
        if event["type"] == "tool-call-delta":
            function = event["delta"]["message"]["tool_calls"]["function"]
            arguments[event["index"]] += function["arguments"]
    calls = whole["message"]["tool_calls"]
    assert arguments == [call["function"]["arguments"] for call in calls]
    assert streamed[-1]["delta"]["finish_reason"] == whole["finish_reason"]
    assert streamed[-1]["delta"]["usage"] == whole["usage"]
    ids = [i for event in deltas if "logprobs" in event for i in event["logprobs"]["token_ids"]]
    of_whole = [i for one in whole["logprobs"] for i in one["token_ids"]]
    assert ids == of_whole[: len(ids)]
    assert len(ids) > len("Hm.Sure.")


async def test_logprobs_come_with_the_ids_of_their_tokens(scripted):
    """An item has the text, the id and the log-probability of a token."""
    made = await ask(scripted, **says("hello", logprobs=True, stop_sequences=["lo"]))
    assert made["finish_reason"] == "STOP_SEQUENCE"
    assert "".join(one["text"] for one in made["logprobs"]).startswith("hel")
    assert all(value <= 0 for one in made["logprobs"] for value in one["logprobs"])


async def test_an_answer_at_its_limit_says_so(scripted):
    """An answer without text has an empty block: clients read the first one."""
    assert (await ask(scripted, **says("hello", max_tokens=2)))["finish_reason"] == "MAX_TOKENS"
    empty = await ask(scripted, **says("hello", stop_sequences=["h"]))
    assert empty["message"]["content"] == [{"type": "text", "text": ""}]


async def test_the_next_turn_has_reasoning_calls_results_and_documents():
    """`tool_plan` and thinking are the reasoning; documents of results are JSON."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    thinking = {"type": "thinking", "thinking": "Hm."}
    result = [{"type": "text", "text": "21"}, {"type": "document", "document": {"data": {"b": 2}}}]
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [thinking], "tool_plan": "Plan.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": result},
    ]
    documents = ["one", {"id": "d", "data": {"title": "two"}}]
    async with serving(ECHO, options=QWEN, template=SHOWN) as served:
        made = await ask(served, messages=messages, documents=documents, max_tokens=500)
    text = made["message"]["content"][-1]["text"]
    sent = [json.loads(line) for line in text.splitlines()[:4]]
    assert sent[1].get("reasoning_content", sent[1].get("reasoning")) == "Hm.\nPlan."
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == "c1"
    assert sent[2]["content"] == '21\n{"b": 2}'
    assert sent[3] == [{"text": "one"}, {"id": "d", "title": "two"}]


async def test_thinking_and_safety_are_variables_of_the_template():
    """`chat_template_kwargs` wins over both."""
    template = "{{ enable_thinking }}{{ safety_mode }}."
    body = says("x", stop_sequences=["."], thinking={"type": "disabled"}, safety_mode="STRICT")
    async with serving(ECHO, template=template) as served:
        texts = [
            (await ask(served, **body, chat_template_kwargs=kwargs))["message"]["content"][0][
                "text"
            ]
            for kwargs in (None, {"safety_mode": "x"})
        ]
    assert texts == ["FalseSTRICT", "Falsex"]


async def test_a_schema_and_a_required_tool_hold_the_answer(tiny):
    """As with the other APIs."""
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_object", "json_schema": schema}
    made = await ask(tiny, **says("hi", response_format=form))
    assert json.loads(made["message"]["content"][0]["text"]) == {"a": 1}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    made = await ask(tiny, **says("hi", tools=[tool], tool_choice="REQUIRED", strict_tools=True))
    called = made["message"]["tool_calls"][0]["function"]  # the toy calls it until the limit
    assert json.loads(called["arguments"]) == {"a": 1}


async def test_render_gives_a_body_of_tokens(scripted):
    """Token ids of the prompt and the parameters of the answer."""
    made = await handled(scripted, says("hello", k=3), RENDER)
    assert bytes(made.token_ids).decode() == "hello"
    assert (made.sampling_params.max_tokens, made.sampling_params.top_k) == (300, 3)


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "tool_plan": "y"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "messages"),
        ({"tool_choice": "REQUIRED"}, "tool_choice"),
        ({"citation_options": {"mode": "FAST"}}, "citation_options"),
        ({"response_format": {"type": "text", "json_schema": {}}}, "response_format"),
        ({"thinking": {"type": "enabled", "token_budget": 0}}, "thinking"),
        ({"k": -2}, "k"),
        ({"p": 2}, "p"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
    ],
)  # fmt: skip
async def test_a_field_that_is_wrong_is_named(scripted, fields, parameter):
    """By the name that Cohere's API has for it."""
    with pytest.raises(BadRequest) as caught:
        await handled(scripted, says("x") | fields)
    assert caught.value.parameter == parameter


async def test_errors_have_a_message_and_an_id(scripted):
    """Before and outside of handlers too; both paths of a chat answer."""
    async with http_serving(scripted) as base, httpx2.AsyncClient(base_url=base) as client:
        for path, body, status in (
            (CHAT, {"model": "nobody", **says("x")}, 404),
            ("/v2/chat", {"model": ECHO}, 400),
            (EMBED, {"model": ECHO, "texts": ["x"]}, 400),
            ("/cohere/v2/nothing", {}, 404),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == status
            assert answer.json().keys() == {"message", "id"}
        answer = await client.post("/v2/chat", json={"model": ECHO, **says("hello")})
        assert answer.json()["message"]["content"][0]["text"].startswith("hello")


async def test_embeddings_have_every_type_that_is_asked_for():
    """The same numbers as floats, as base64 and as bits, signed and unsigned."""
    types = ["float", "base64", "binary", "ubinary"]
    async with http() as client:
        made = await post(client, EMBED, model="", texts=["hello", "more words"],
                          input_type="search_query", embedding_types=types)  # fmt: skip
        plain = await post(client, "/v1/embeddings", input=["hello", "more words"])
        inputs = [{"content": [{"type": "text", "text": "hello"}]}]
        other = await post(client, EMBED, model="", inputs=inputs)
    vectors = [item["embedding"] for item in plain["data"]]
    shown = made["embeddings"]
    assert shown.keys() == set(types)
    assert shown["float"] == vectors
    assert other["embeddings"] == {"float": vectors[:1]}
    assert np.frombuffer(base64.b64decode(shown["base64"][0]), "<f4").tolist() == vectors[0]
    bits = [[number >= 0 for number in vector] for vector in vectors]
    assert np.unpackbits(np.array(shown["ubinary"], np.uint8), axis=1).astype(bool).tolist() == bits
    assert [[byte + 128 for byte in row] for row in shown["binary"]] == shown["ubinary"]
    assert made["meta"]["tokens"] == {"input_tokens": 15}
    assert made["texts"] == ["hello", "more words"]


async def test_long_texts_are_cut_at_the_side_that_the_body_names():
    """Without `truncate` the end is lost; NONE refuses a text that is too long."""
    long = "abcdefgh" * 20
    async with http() as client:
        ask_for = partial(post, client, EMBED, model="")
        cut = {
            side: (await ask_for(texts=[long], truncate=side, max_tokens=4))["embeddings"]
            for side in ("START", "END")
        }
        ends = (await ask_for(texts=["efgh", "abcd"]))["embeddings"]["float"]
        assert [cut["START"]["float"][0], cut["END"]["float"][0]] == ends
        for fields in ({"texts": [long]}, {"texts": ["abcdef"], "max_tokens": 4}):
            refused = await ask_for(status=400, truncate="NONE", **fields)
            assert refused["message"]


def test_the_use_of_a_text_chooses_the_models_prompt():
    """By its own name or Cohere's; without prompts Cohere's names have no effect."""
    bare = PoolerConfig(kinds={"embed": PoolingKind.LAST}, normalize=True, embedding_size=8)
    own = msgspec.structs.replace(bare, prompts={"query": "q: ", "document": ""})
    assert prefix_of(own, "search_query") == prefix_of(own, "query") == "q: "
    assert prefix_of(own, "search_document") == prefix_of(own, None) == ""
    assert prefix_of(bare, "search_query") == ""
    usual = msgspec.structs.replace(own, prompt="q: ")
    assert prefix_of(usual, "query") == ""
    for pooler, name in ((own, "clustering"), (bare, "stranger"), (usual, "document")):
        with pytest.raises(BadRequest, match=r"input_type|leave it out"):
            prefix_of(pooler, name)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"texts": ["a"], "embedding_types": ["int8"]}, "int8"),
        ({"texts": ["a"], "embedding_types": ["x"]}, "embedding_types"),
        ({"images": ["data:"]}, "images"),
        ({"texts": ["a"], "inputs": []}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a"], "max_tokens": 0}, "max_tokens"),
        ({"texts": ["a"], "output_dimension": 0}, "output_dimension"),
        ({"inputs": [{"content": [{"type": "image_url"}]}]}, "image_url"),
        ({"texts": ["a"], "input_type": "x"}, "input_type"),
    ],
)
async def test_an_embedding_that_is_not_offered_is_refused_by_name(pooling, fields, name):
    """The field, and what is allowed."""
    refused = await post(pooling, EMBED, status=400, model="", **fields)
    assert name in refused["message"]
