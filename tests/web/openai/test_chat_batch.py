"""Several conversations in one call: each is answered as if it had come alone."""

import json

import msgspec
import pytest

from tests.web.serving import call_of
from weft.core.errors import BadRequest
from weft.web.openai import ENDPOINTS

_BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
CHAT, BATCH = "/v1/chat/completions", "/v1/chat/completions/batch"
TEXTS = ("hello there", "one two three", "a")
MESSAGES = [[{"role": "user", "content": text}] for text in TEXTS]


async def ask(served, path: str, **body):
    """The answer as a client reads it."""
    call = call_of(_BY_PATH, served, path, body, label="theirs")
    return json.loads(msgspec.json.encode(await _BY_PATH[path].handler(call)))


async def test_each_conversation_has_the_choice_that_it_would_have_alone(templated):
    """In their order, with the sum of the usages; parameters are for all of them."""
    given = {"max_tokens": 4, "temperature": 0.9, "seed": 3, "logprobs": True, "top_logprobs": 2}
    batch = await ask(templated, BATCH, messages=MESSAGES, return_token_ids=True, **given)
    alone = [
        await ask(templated, CHAT, messages=one, return_token_ids=True, **given) for one in MESSAGES
    ]
    assert [choice.pop("index") for choice in batch["choices"]] == [0, 1, 2]
    for each in alone:
        each["choices"][0].pop("index")
    assert batch["choices"] == [each["choices"][0] for each in alone]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert batch["usage"][name] == sum(each["usage"][name] for each in alone)
    assert (batch["id"], batch["object"]) == ("chatcmpl-theirs", "chat.completion")
    assert batch["prompt_token_ids"] is None


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("messages", {"messages": []}),
        ("messages", {"messages": [[]]}),
        ("messages", {"messages": MESSAGES * 100}),
        ("n", {"n": 2}),
        ("stream", {"stream": True}),
        ("use_beam_search", {"use_beam_search": True}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("tool_choice", {"tool_choice": "auto"}),
        ("prompt_logprobs", {"prompt_logprobs": 1}),
        ("kv_transfer_params", {"kv_transfer_params": {"do_remote_decode": True}}),
        ("return_prompt_text", {"return_prompt_text": True}),
        ("temperature", {"temperature": -1}),
    ],
)
async def test_what_a_batch_cannot_have_is_refused_by_name(templated, field: str, body: dict):
    """Before any of the conversations has begun."""
    with pytest.raises(BadRequest) as refused:
        await ask(templated, BATCH, **{"messages": MESSAGES, **body})
    assert refused.value.parameter == field


async def test_a_chat_returns_the_text_of_its_prompt_on_request(templated):
    """As the template rendered it: what the model reads."""
    answer = await ask(templated, CHAT, messages=MESSAGES[0], return_prompt_text=True, max_tokens=2)
    assert answer["prompt_text"] == TEXTS[0]
    plain = await ask(templated, CHAT, messages=MESSAGES[0], max_tokens=2)
    assert "prompt_text" not in plain


async def test_a_stream_has_the_text_of_its_prompt_once(templated):
    """In the first chunk of the first answer."""
    body = {"messages": MESSAGES[0], "max_tokens": 2, "n": 2, "stream": True}
    call = call_of(_BY_PATH, templated, CHAT, {**body, "return_prompt_text": True})
    events = await _BY_PATH[CHAT].handler(call)
    written = b"".join([event async for event in events.source]).decode()
    chunks = [json.loads(line[6:]) for line in written.splitlines() if line.startswith("data: {")]
    assert [chunk["prompt_text"] for chunk in chunks if "prompt_text" in chunk] == [TEXTS[0]]
    assert "prompt_text" in chunks[0]
