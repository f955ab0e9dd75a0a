"""Prompts as tokens, without an answer: what the engine would compute, and nothing that it does."""

import json

import msgspec
import pytest

from tests.web.serving import call_of
from weft.core.errors import BadRequest, NotFound
from weft.web.anthropic import ENDPOINTS as ANTHROPIC
from weft.web.openai import ENDPOINTS as OPENAI
from weft.web.tokens import ENDPOINTS as TOKENS

_BY_PATH = {endpoint.path: endpoint for endpoint in (*ANTHROPIC, *OPENAI, *TOKENS)}
CHAT = {"messages": [{"role": "user", "content": "hello there"}]}


async def ask(served, path: str, **body):
    """The answer as a client reads it."""
    call = call_of(_BY_PATH, served, path, body, label="theirs", request_id="ours")
    answer = await _BY_PATH[path].handler(call)
    return json.loads(getattr(answer, "body", None) or msgspec.json.encode(answer))


async def test_a_chat_has_the_tokens_that_its_answer_begins_with(templated):
    """Template and tokenizer are the server's own."""
    made = await ask(templated, "/v1/chat/completions/render", **CHAT, max_tokens=3)
    answer = await ask(templated, "/v1/chat/completions", **CHAT, max_tokens=3)
    assert templated.tokenizer.decode(made["token_ids"]) == "hello there"
    assert templated.client.info is not None
    assert len(made["token_ids"]) == answer["usage"]["prompt_tokens"]
    assert made["request_id"] == "chatcmpl-theirs"
    assert made["sampling_params"]["max_tokens"] == 3


async def test_each_prompt_of_a_completion_has_its_own_body(served):
    """In a list, as in vLLM, even where there is one; ids stay what they are."""
    two = await ask(served, "/v1/completions/render", prompt=["a b", "c"])
    (ids,) = await ask(served, "/v1/completions/render", prompt=[5, 9], cache_salt="s")
    assert [each["token_ids"] for each in two] == [
        served.tokenizer.encode("a b"), served.tokenizer.encode("c"),
    ]  # fmt: skip
    assert (ids["token_ids"], ids["cache_salt"]) == ([5, 9], "s")


async def test_what_is_rendered_can_be_generated(served):
    """The answer is a body of /inference/v1/generate, and leads to the same tokens."""
    wanted = {"prompt": "a b c", "max_tokens": 5, "temperature": 0.8, "seed": 4}
    (body,) = await ask(served, "/v1/completions/render", **wanted, return_token_offsets=True)
    made = await ask(served, "/inference/v1/generate", **body)
    whole = await ask(served, "/v1/completions", **wanted, return_token_ids=True)
    assert made["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/v1/completions/render", {"prompt": []}, BadRequest),
        ("/v1/completions/render", {"prompt": "a", "model": "no"}, NotFound),
        ("/v1/chat/completions/render", {"messages": []}, BadRequest),
        ("/v1/chat/completions/render", {**CHAT, "n": 10**6}, BadRequest),
    ],
)
async def test_what_an_answer_is_refused_for_is_refused_here(
    templated, path: str, body: dict, error: type
):
    """A router is not to be told of tokens that no server would take."""
    with pytest.raises(error):
        await ask(templated, path, **body)


async def test_offsets_say_which_characters_a_token_stands_for(templated):
    """Of the rendered text; nobody who does not ask for them has any, nor has a prompt of ids."""
    chat = await ask(templated, "/v1/chat/completions/render", **CHAT, return_token_offsets=True)
    text = "hello there"
    pieces = [text[start:end] for start, end in chat["token_offsets"]]
    assert len(pieces) == len(chat["token_ids"])
    assert "".join(pieces) == text

    prompts = {"prompt": ["a b", "c"], "return_token_offsets": True}
    two = await ask(templated, "/v1/completions/render", **prompts)
    assert [len(each["token_offsets"]) for each in two] == [len(each["token_ids"]) for each in two]
    (ids,) = await ask(templated, "/v1/completions/render", prompt=[5], return_token_offsets=True)
    assert ids["token_offsets"] is None
    plain = await ask(templated, "/v1/chat/completions/render", **CHAT)
    assert plain["token_offsets"] is None


async def test_a_truncated_prompt_has_no_offsets(templated):
    """They would count characters of a text that was cut."""
    body = {"prompt": "a b c d e f", "truncate_prompt_tokens": 2, "return_token_offsets": True}
    (cut,) = await ask(templated, "/v1/completions/render", **body)
    assert len(cut["token_ids"]) == 2
    assert cut["token_offsets"] is None


async def test_a_message_has_the_tokens_that_its_answer_begins_with(templated):
    """Anthropic's conversation, in the same body."""
    body = {**CHAT, "model": "embedded:echo", "max_tokens": 3, "stop_sequences": ["z"]}
    made = await ask(templated, "/v1/messages/render", **body)
    chat = await ask(templated, "/v1/chat/completions/render", **CHAT)
    assert made["token_ids"] == chat["token_ids"]
    assert made["request_id"] == "msg_theirs"
    assert made["sampling_params"]["stop"] == ["z"]
    with pytest.raises(BadRequest, match="messages"):
        await ask(templated, "/v1/messages/render", **{**body, "messages": []})
