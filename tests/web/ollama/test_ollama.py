"""Ollama's API against real engines: answers, streams, embeddings, facts of the model, and what is refused."""

import json
from functools import partial

import httpx2
import msgspec
import pytest

from tests.busy import PATIENCE_S
from tests.web.serving import ECHO, QWEN, RANDOM, SCRIPT, call_of, http_serving, serving
from weft.core.errors import BadRequest, NotFound
from weft.web.http.endpoint import Events
from weft.web.ollama import ENDPOINTS

BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
make_call = partial(call_of, BY_PATH)
CALL = '<tool_call>\n{"name": "f", "arguments": {"unit": "c"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"unit": {"type": "string"}}},
    },
}
SUMS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def filled(served, fields):
    """A body with the model's name."""
    return {"model": served.client.model_config.served_model_name, **fields}


async def ask(served, path, **fields):
    """The answer in one piece, as a client would read it."""
    body = filled(served, {"stream": False, **fields})
    made = await BY_PATH[path].handler(make_call(served, path, body))
    assert not isinstance(made, Events)
    return json.loads(msgspec.json.encode(made))


async def lines(served, path, **fields):
    """The lines of a stream, which a body without `stream` asks for."""
    made = await BY_PATH[path].handler(make_call(served, path, filled(served, fields)))
    assert isinstance(made, Events)
    assert made.is_lines
    written = [line async for line in made.source]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in written)
    return list(map(json.loads, written))


def says(text, **fields):
    """A body whose answer is `text`, where the template is `SCRIPT`."""
    options = {"num_predict": 300, "temperature": 0}
    return {"messages": [{"role": "user", "content": text}], "options": options, **fields}


def without_times(answer):
    """An answer without what differs from one run to the next."""
    calls = answer.get("message", {}).get("tool_calls", [])
    for call in calls:
        del call["id"]
    return {key: value for key, value in answer.items() if key not in {*SUMS, "created_at"}}


async def test_a_chat_has_thinking_content_and_calls_apart(scripted):
    """Arguments are an object, and the end has counts and durations."""
    text = f"<think>Hm.</think>\n\nSure.{CALL}\n{CALL}"
    made = await ask(scripted, "/api/chat", **says(text, tools=[TOOL]))
    message = made["message"]
    assert message["thinking"] == "Hm."
    assert message["content"].strip() == "Sure."
    assert [call["function"] for call in message["tool_calls"]] == [
        {"index": index, "name": "f", "arguments": {"unit": "c"}} for index in range(2)
    ]
    assert (made["done"], made["done_reason"], made["model"]) == (True, "stop", ECHO)
    assert made["eval_count"] > len(text) // 2
    assert made["prompt_eval_count"] > 0
    assert made["total_duration"] >= made["prompt_eval_duration"] > 0


async def test_a_stream_adds_up_to_the_answer():
    """A call comes in one line, once it is whole; the last line alone is done."""
    body = says(f"<think>Hm.</think>\n\nSure.{CALL}", tools=[TOOL])
    async with serving(ECHO, options=QWEN, template=SCRIPT, enable_prefix_caching=False) as served:
        whole = await ask(served, "/api/chat", **body)
        streamed = await lines(served, "/api/chat", **body)
    assert [line["done"] for line in streamed] == [False] * (len(streamed) - 1) + [True]
    messages = [line["message"] for line in streamed]
    assert len([message for message in messages if message["content"]]) > 2
    assert len([message for message in messages if message.get("tool_calls")]) == 1
    last = streamed[-1]
    last["message"] = {
        "role": "assistant",
        "content": "".join(message["content"] for message in messages),
        "thinking": "".join(message.get("thinking", "") for message in messages),
        "tool_calls": [call for message in messages for call in message.get("tool_calls", [])],
    }
    assert without_times(last) == without_times(whole)


async def test_a_call_that_is_cut_off_has_an_object_as_arguments(scripted):
    """The answer says that a limit ended it."""
    cut = CALL[: CALL.index('"c"')]
    options = {"num_predict": len(cut), "temperature": 0}
    made = await ask(scripted, "/api/chat", **says(CALL, tools=[TOOL], options=options))
    assert made["done_reason"] == "length"
    assert made["message"]["tool_calls"][0]["function"]["arguments"] in ({}, {"unit": None})


async def test_the_next_turn_has_calls_and_results_in_the_templates_form():
    """Results are matched to calls by id, by the tool's name, or in order."""
    template = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
    calls = [{"function": {"name": name, "arguments": {"a": 1}}} for name in ("f", "g")]
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": calls},
        {"role": "tool", "content": "second", "tool_name": "g"},
        {"role": "tool", "content": "first"},
    ]
    async with serving(ECHO, options=QWEN, template=template) as served:
        made = await ask(served, "/api/chat", messages=messages, options={"num_predict": 500})
    sent = [json.loads(line) for line in made["message"]["content"].splitlines()[:4]]
    by_name = {call["function"]["name"]: call for call in sent[1]["tool_calls"]}
    assert by_name["f"]["function"]["arguments"] in ({"a": 1}, '{"a": 1}')
    assert [(m["tool_call_id"], m["name"]) for m in sent[2:]] == [
        (by_name["g"]["id"], "g"),
        (by_name["f"]["id"], "f"),
    ]


async def test_think_is_the_templates_switch():
    """Without it the template's own default stays."""
    template = "{{ enable_thinking is defined }}{{ enable_thinking }}{{ reasoning_effort }}."
    body = {**says("x"), "options": {"num_predict": 30, "stop": "."}}
    async with serving(ECHO, template=template) as served:
        texts = [
            (await ask(served, "/api/chat", **body, think=think))["message"]["content"]
            for think in (None, False, "high")
        ]
    assert texts == ["False", "TrueFalse", "TrueTruehigh"]


async def test_generate_wraps_the_prompt_unless_it_is_raw():
    """With `raw` the text is continued as it is; `system` is the first message."""
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    options = {"num_predict": 16, "temperature": 0}
    async with serving(ECHO, template=template) as served:
        made = await ask(served, "/api/generate", prompt="hi", system="be brief", options=options)
        raw = await ask(served, "/api/generate", prompt="hello", raw=True, options=options)
        streamed = await lines(served, "/api/generate", prompt="hello", raw=True, options=options)
    assert made["response"] == "[system]be brief"
    assert raw["response"].startswith("hello")
    assert "".join(line["response"] for line in streamed) == raw["response"]
    assert streamed[-1]["eval_count"] == raw["eval_count"] > 4


async def test_a_format_holds_the_answer():
    """A schema, or any JSON object."""
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [7]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    body = {"messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 200}}
    async with serving(RANDOM) as served:
        made = await ask(served, "/api/chat", **body, format=schema)
        text = await ask(served, "/api/generate", prompt="x", format=schema)
    assert json.loads(made["message"]["content"]) == {"a": 7}
    assert json.loads(text["response"]) == {"a": 7}


async def test_logprobs_come_with_their_tokens(scripted):
    """All of the answer's, in a stream as in one piece."""
    body = says("hello", logprobs=True, top_logprobs=2)
    whole = await ask(scripted, "/api/chat", **body)
    streamed = await lines(scripted, "/api/chat", **body)
    rows = [row for line in streamed for row in line.get("logprobs", [])]
    assert rows == whole["logprobs"]
    assert len(rows) == whole["eval_count"]
    assert len(rows[0]["top_logprobs"]) == 2


async def test_a_body_without_a_prompt_loads_the_model(echoing):
    """It is loaded already; to unload it is refused by name."""
    chat = await ask(echoing, "/api/chat", keep_alive="5m")
    text = await ask(echoing, "/api/generate", keep_alive=-1)
    assert (chat["done_reason"], chat["message"]["content"]) == ("load", "")
    assert (text["done_reason"], text["response"]) == ("load", "")
    for keep_alive in ("1.5h2.5m", "-1s", 0.5):
        assert (await ask(echoing, "/api/chat", keep_alive=keep_alive))["done_reason"] == "load"
    for keep_alive in (0, "0s", "0h0m"):
        with pytest.raises(BadRequest, match="keep_alive 0"):
            await ask(echoing, "/api/generate", keep_alive=keep_alive)


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"options": {"num_predict": 10**6}}, "options.num_predict"),
        ({"format": "yaml"}, "format"),
        ({"think": "a lot"}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "x", "function": {"name": "f"}}]}, "tools"),
        ({"messages": [{"role": "user", "content": "a", "images": ["AAAA"]}]}, "messages"),
    ],
    ids=str,
)
async def test_a_field_that_is_wrong_is_named(scripted, fields, parameter):
    """By the name that this API has for it."""
    with pytest.raises(BadRequest) as caught:
        await ask(scripted, "/api/chat", **{**says("x"), **fields})
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1, 2]}, "context"),
        ({"raw": True, "system": "x"}, "system"),
    ],
    ids=str,
)
async def test_a_field_of_generate_that_is_not_offered_is_named(echoing, fields, parameter):
    """With what to use instead."""
    with pytest.raises(BadRequest) as caught:
        await ask(echoing, "/api/generate", prompt="x", **fields)
    assert caught.value.parameter == parameter


async def test_names_may_have_the_default_tag(echoing):
    """Other tags are other models."""
    body = {**says("hi"), "stream": False}
    call = make_call(echoing, "/api/chat", {**body, "model": f"{ECHO}:latest"})
    assert (await BY_PATH["/api/chat"].handler(call)).model == f"{ECHO}:latest"
    with pytest.raises(NotFound):
        await BY_PATH["/api/chat"].handler(
            make_call(echoing, "/api/chat", {**body, "model": "llama3:8b"})
        )


async def test_embeddings_have_length_one_in_both_forms():
    """Long inputs are cut unless the body forbids it."""
    async with serving(RANDOM, runner="pooling", max_model_len=16) as served:
        made = await ask(served, "/api/embed", input=["a", "b " * 100])
        older = await ask(served, "/api/embeddings", prompt="a")
        none = await ask(served, "/api/embed", input=[])
        with pytest.raises(BadRequest) as caught:
            await ask(served, "/api/embed", input="b " * 100, truncate=False)
    assert [sum(x * x for x in vector) for vector in made["embeddings"]] == pytest.approx([1, 1])
    assert older["embedding"] == made["embeddings"][0]
    assert none["embeddings"] == []
    assert caught.value.parameter == "input"


async def test_facts_of_the_model_are_shown(scripted):
    """Its names, its template, and what requests may use."""
    name = scripted.client.model_config.served_model_name
    tags = msgspec.to_builtins(
        await BY_PATH["/api/tags"].handler(make_call(scripted, "/api/tags", None))
    )
    running = msgspec.to_builtins(
        await BY_PATH["/api/ps"].handler(make_call(scripted, "/api/ps", None))
    )
    shown = await ask(scripted, "/api/show", model=name)
    assert [model["name"] for model in tags["models"]] == [name]
    assert running == tags
    assert shown["template"] == SCRIPT
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["general.architecture"] == shown["details"]["family"]
    with pytest.raises(NotFound):
        await ask(scripted, "/api/show", model="nobody")


async def test_on_the_wire_a_stream_is_lines_and_an_error_is_a_text(scripted):
    """Errors have the status of their kind; paths of the API that are not there are 404 in its form."""
    name = scripted.client.model_config.served_model_name
    async with (
        http_serving(scripted) as address,
        httpx2.AsyncClient(base_url=address, timeout=PATIENCE_S) as client,
    ):
        streamed = await client.post("/api/chat", json={"model": name, **says("hello")})
        whole = await client.post(
            "/api/chat", json={"model": name, **says("hello"), "stream": False}
        )
        unknown = await client.post("/api/chat", json={"model": "llama3", **says("hello")})
        wrong = await client.post("/api/chat", json={"model": name, **says("x"), "think": "x"})
        pulled = await client.post("/api/pull", json={"model": name})
        nowhere = await client.get("/api/nothing")
    assert streamed.headers["content-type"] == "application/x-ndjson"
    assert (
        "".join(json.loads(line)["message"]["content"] for line in streamed.text.splitlines())
        == (whole.json()["message"]["content"])
    )
    assert [made.status_code for made in (unknown, wrong, pulled, nowhere)] == [404, 400, 404, 404]
    for made in (unknown, wrong, pulled, nowhere):
        assert list(made.json()) == ["error"]
        assert isinstance(made.json()["error"], str)


async def test_options_without_the_same_effect_are_told(scripted):
    """In a Warning header: they are taken, because clients send them with every request."""
    name = scripted.client.model_config.served_model_name
    options = {"num_ctx": 4096, "num_thread": 2, "mystery": 1, "num_predict": 3}
    async with (
        http_serving(scripted) as address,
        httpx2.AsyncClient(base_url=address, timeout=PATIENCE_S) as client,
    ):
        body = {"model": name, **says("hello"), "stream": False, "options": options}
        made = await client.post("/api/chat", json=body)
    assert made.status_code == 200
    assert "options.num_ctx" in made.headers["warning"]
    assert "options.mystery" in made.headers["warning"]
    assert "num_thread" not in made.headers["warning"]
