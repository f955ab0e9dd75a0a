"""Values that the picker reads whatever their type is, and JSON that other readers take: the server judges them."""

from typing import Any

import pytest

from tests.epp.request.test_parsers import parse, refusal

HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("fields", "is_streaming", "max_tokens"),
    [
        ({"stream": 1, "max_tokens": 12.0}, True, 12),
        ({"stream": "true", "max_tokens": "12"}, True, 12),
        ({"stream": "False", "max_tokens": 1.5}, False, None),
        ({"stream": [True], "max_tokens": {"a": 1}}, False, None),
        ({"stream": None, "max_tokens": -1}, False, None),
        ({"max_tokens": 1e300}, False, None),
        ({"max_tokens": "9" * 5000}, False, None),
        ({"max_completion_tokens": "x", "max_tokens": 7}, False, 7),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_values_are_read_whatever_their_type(
    path: str, fields: dict[str, Any], is_streaming: bool, max_tokens: int | None
):
    """What is no value of its field, the server refuses in its own words."""
    if "max_completion_tokens" in fields and path == "/v1/messages":
        pytest.skip("another API's name")
    request = parse(path, {"model": "m", "messages": HELLO, **fields})
    assert (request.is_streaming, request.max_tokens) == (is_streaming, max_tokens)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": None, "content": "hi"}],
        [{"role": 5, "content": "hi"}],
        [{"role": "user", "content": ["hi"]}],
        [{"role": "user", "content": [{"type": None, "text": "hi"}]}],
        [{"role": "user", "content": [1, None, [2]]}, {"role": "user", "content": {"a": 1}}],
        [{"role": "user", "content": 5, "arguments": 5, "tool_calls": 5}],
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_messages_that_only_the_server_can_judge_are_routed(path: str, messages: list[Any]):
    """Their text is near enough to compare prefixes by; the same messages always have the same."""
    body = {"model": "m", "messages": messages}
    assert parse(path, body).prompts == parse(path, body).prompts != ()


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "temperature": NaN, "messages": [{"role": "user", "content": "hi"}]}',
        b'{"model": "m", "logit_bias": {"5": -Infinity}, "messages": [{"content": "hi"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "a\\ud800b"}]}',
        b'{"model": "m", "messages": [{"content": [{"type": "text", "text": "\\udc00"}]}]}',
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_what_other_readers_take_for_json_is_routed(path: str, body: bytes):
    """Python writes NaN, and JavaScript half of a surrogate pair; the server answers them."""
    assert parse(path, body).model == "m"


def test_a_whole_pair_of_surrogates_stays_a_character():
    """Beside half of one; a backslash before a u is no escape."""
    body = rb'{"model": "m", "prompt": "\ud83d\ude00 \\ud800 \udfff"}'
    (prompt,) = parse("/v1/completions", body).prompts
    assert prompt.text == "\U0001f600 \\ud800 \ufffd"


def test_token_ids_may_be_written_with_a_point():
    """As readers that know no whole numbers write them."""
    (prompt,) = parse("/v1/completions", {"model": "m", "prompt": [5.0, 6]}).prompts
    assert prompt.token_ids == (5, 6)


def test_only_a_short_body_is_read_twice():
    """Reading one again takes time, in which nobody else is served."""
    text = b"x" * 2**18
    body = b'{"model": "m", "x": NaN, "messages": [{"content": "' + text + b'"}]}'
    assert "not valid JSON" in refusal("/v1/chat/completions", body)
