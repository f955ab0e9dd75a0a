"""Prompts as tokens, without an answer: what the engine would compute, and nothing that it does."""

import json

import msgspec
import pytest

from tests.web.serving import call_of
from weft.core.errors import BadRequest, NotFound
from weft.web.openai import ENDPOINTS as OPENAI
from weft.web.tokens import ENDPOINTS as TOKENS

_BY_PATH = {endpoint.path: endpoint for endpoint in (*OPENAI, *TOKENS)}
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
    (body,) = await ask(served, "/v1/completions/render", **wanted)
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
