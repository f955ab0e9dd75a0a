"""Schemas that no grammar can enforce in full: answered with a warning, refused where they or the server are strict."""

import pytest

from tests.web.http.serving import serving

HELLO = [{"role": "user", "content": "a"}]
CHAT = {"messages": HELLO, "max_tokens": 1}
HALF = {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "x"}}}}
WHOLE = {"type": "object", "properties": {"a": {"type": "string"}}, "required": None}


def in_chat(schema, **fields):
    """OpenAI's chat."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}
    return "/v1/chat/completions", {**CHAT, "response_format": form}, "response_format"


def in_responses(schema, **fields):
    """OpenAI's Responses API."""
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, **fields}}
    body = {"input": "a", "max_output_tokens": 1, "text": text}
    return "/v1/responses", body, "text.format"


def in_messages(schema):
    """Anthropic's messages, where nothing says whether a schema is strict."""
    form = {"format": {"type": "json_schema", "schema": schema}}
    body = {"model": "fake-model", **CHAT, "output_config": form}
    return "/v1/messages", body, "output_config.format"


def in_constraint(schema):
    """The engine's own parameters."""
    body = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"json": schema}}
    return "/v1/completions", body, "structured_outputs"


PLACES = [in_chat, in_responses, in_messages, in_constraint]


@pytest.mark.parametrize("place", PLACES)
async def test_what_no_grammar_holds_is_named_in_a_warning(place):
    """The answer is made under the rest; a strict server refuses it by the field's name."""
    path, body, name = place(HALF)
    async with serving() as site:
        warned = await site.http.post(path, json=body)
    async with serving(strict=True) as site:
        refused = await site.http.post(path, json=body)
    assert (warned.status_code, refused.status_code) == (200, 400), warned.text
    assert f"{name}: no grammar can enforce /properties/a/not" in warned.headers["warning"]
    assert "no grammar can enforce" in refused.text


@pytest.mark.parametrize("place", PLACES)
async def test_a_schema_that_is_held_has_no_warning(place):
    """Nor has one with Go's null in it."""
    path, body, _ = place(WHOLE)
    async with serving(strict=True) as site:
        answer = await site.http.post(path, json=body)
    assert (answer.status_code, "warning" in answer.headers) == (200, False), answer.text


@pytest.mark.parametrize("place", [in_chat, in_responses])
async def test_a_strict_schema_is_held_in_full_or_refused(site, place):
    """That is what strict promises."""
    path, body, name = place(HALF, strict=True)
    refused = await site.http.post(path, json=body)
    taken = await site.http.post(path, json=place(WHOLE, strict=True)[1])
    assert (refused.status_code, taken.status_code) == (400, 200)
    assert refused.json()["error"]["param"] == name
    assert "no grammar can enforce /properties/a/not" in refused.json()["error"]["message"]


async def test_a_count_that_no_answer_can_meet_is_refused(site):
    """The model would go on to the end of its context."""
    path, body, _ = in_chat({"type": "array", "minItems": 2**62})
    answer = await site.http.post(path, json=body)
    assert answer.status_code == 400
    assert "minItems must be at most" in answer.json()["error"]["message"]
