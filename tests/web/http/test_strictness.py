"""Fields that no API has, and values beyond OpenAI's limits: told to the caller, or refused."""

import logging

import msgspec
import pytest

from tests.web.http.serving import make_state, serving
from weft.web.http.body import BodyScan, unknown_fields
from weft.web.routes import all_endpoints

CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
TEXT = {"prompt": "a", "max_tokens": 1}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/messages": {"model": "fake-model", **CHAT},
    "/v1/messages/count_tokens": {"model": "fake-model", "messages": CHAT["messages"]},
    "/inference/v1/generate": {"token_ids": [5], "sampling_params": {"max_tokens": 1}},
    "/generate": TEXT,
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [97]},
    "/invocations": TEXT,
}
FIVE = ["1", "2", "3", "4", "5"]
BEYOND = [
    ("/v1/chat/completions", CHAT, {"stop": FIVE}, "stop"),
    ("/v1/completions", TEXT, {"stop": FIVE}, "stop"),
    ("/v1/completions", TEXT, {"logit_bias": {"5": 100.5}}, "logit_bias"),
    ("/v1/chat/completions", CHAT, {"logit_bias": {"5": -101}}, "logit_bias"),
    ("/v1/responses", BODIES["/v1/responses"], {"logit_bias": {"5": 101}}, "logit_bias"),
    ("/generate", TEXT, {"stop": FIVE}, "stop"),
    (
        "/inference/v1/generate",
        {"token_ids": [5]},
        {"sampling_params": {"max_tokens": 1, "logit_bias": {"5": 101}}},
        "logit_bias",
    ),
    ("/invocations", TEXT, {"stop": FIVE}, "stop"),
]


@pytest.mark.parametrize("path", BODIES)
async def test_a_misspelt_field_is_reported(site, path: str, caplog):
    """The answer is the same, and its header names the field; the log does once."""
    caplog.set_level(logging.WARNING, "weft.web")
    plain = await site.http.post(path, json=BODIES[path])
    for _ in range(2):
        warned = await site.http.post(path, json={**BODIES[path], "max_tokenz": 5})
    assert (plain.status_code, warned.status_code) == (200, 200)
    assert "warning" not in plain.headers
    assert warned.headers["warning"].startswith("299 - \"unknown field 'max_tokenz'")
    assert caplog.text.count("max_tokenz") == 1


@pytest.mark.parametrize("path", BODIES)
async def test_a_strict_server_refuses_a_misspelt_field(path: str):
    """By name, and takes the same body without it."""
    async with serving(strict=True) as site:
        plain = await site.http.post(path, json=BODIES[path])
        refused = await site.http.post(path, json={**BODIES[path], "max_tokenz": 5})
    assert (plain.status_code, refused.status_code) == (200, 400)
    assert "unknown field 'max_tokenz'" in refused.text


@pytest.mark.parametrize(("path", "body", "fields", "name"), BEYOND)
async def test_what_is_beyond_openais_limits_is_reported_or_refused(
    path: str, body: dict, fields: dict, name: str
):
    """Taken as other engines take it, with a header that says so; a strict server has those limits."""
    async with serving() as site:
        warned = await site.http.post(path, json={**body, **fields})
    async with serving(strict=True) as site:
        refused = await site.http.post(path, json={**body, **fields})
    assert (warned.status_code, refused.status_code) == (200, 400)
    assert warned.headers["warning"].startswith(f'299 - "{name} ')
    assert refused.json()["error"]["param"] == name


BY_VALUE = [
    {"max_tokens": 1.0},
    {"max_tokens": "1"},
    {"seed": 1.0},
    {"top_k": 5.0},
    {"temperature": "0.7"},
    {"stream": "false"},
    {"stream": 0},
    {"logit_bias": {"5": "1"}},
]
LOSSY = [
    {"max_tokens": 1.5},
    {"max_tokens": ""},
    {"max_tokens": True},
    {"temperature": "hot"},
    {"temperature": "nan"},
    {"stream": 2},
    {"user": 5},
]


@pytest.mark.parametrize("fields", BY_VALUE, ids=str)
async def test_numbers_and_booleans_are_taken_by_their_value(fields: dict):
    """A type that the value does not need is passed over without a word; a strict server refuses it."""
    async with serving() as site:
        taken = await site.http.post("/v1/chat/completions", json={**CHAT, **fields})
    async with serving(strict=True) as site:
        refused = await site.http.post("/v1/chat/completions", json={**CHAT, **fields})
    assert (taken.status_code, refused.status_code) == (200, 400), taken.text
    assert "warning" not in taken.headers


@pytest.mark.parametrize("fields", LOSSY, ids=str)
async def test_a_value_that_would_change_is_refused(site, fields: dict):
    """A fraction is no number of tokens, and a number no name."""
    answer = await site.http.post("/v1/chat/completions", json={**CHAT, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(fields))


async def test_a_completion_that_is_to_be_stored_is_answered_with_a_warning():
    """Nothing is stored, which the header says; a strict server refuses to leave it out."""
    body = {**CHAT, "store": True}
    async with serving() as site:
        warned = await site.http.post("/v1/chat/completions", json=body)
    async with serving(strict=True) as site:
        refused = await site.http.post("/v1/chat/completions", json=body)
    assert (warned.status_code, refused.status_code) == (200, 400)
    assert "store is ignored" in warned.headers["warning"]
    assert refused.json()["error"]["param"] == "store"


async def test_what_openai_takes_is_not_reported():
    """Its limits themselves are within them."""
    async with serving(strict=True) as site:
        fields = {"stop": FIVE[:4], "logit_bias": {"5": 100, "6": -100}}
        answer = await site.http.post("/v1/chat/completions", json={**CHAT, **fields})
    assert (answer.status_code, "warning" in answer.headers) == (200, False)


async def test_a_stream_reports_it_too(site):
    """Its headers come before its first event."""
    answer = await site.http.post("/v1/completions", json={**TEXT, "stream": True, "max": 5})
    assert "unknown field 'max'" in answer.headers["warning"]
    assert answer.text.endswith("data: [DONE]\n\n")


class Body(msgspec.Struct, rename={"kind": "type"}):
    """Some fields."""

    max_tokens: int = 3
    kind: str = ""


@pytest.mark.parametrize(
    ("body", "reasons"),
    [
        (b"{}", []),
        (b'{"max_tokens": 5, "type": "x"}', []),
        (b'{"max_token": 5}', ["unknown field 'max_token'; did you mean 'max_tokens'?"]),
        (b'{"kind": 5}', ["unknown field 'kind'"]),
        (b'{"a`b": {"c": 5}}', ["unknown field 'a`b'"]),
        (b'{"max_tokens": {"x": 5}}', []),
        ('{"é\\n\\"": 5}'.encode(), ["unknown field '\\xe9\\n\"'"]),
        (b'{"' + b"x" * 1000 + b'": 5}', [f"unknown field '{'x' * 100}'"]),
    ],
)
def test_the_first_unknown_field_is_named(body: bytes, reasons: list[str]):
    """Whatever its name is made of, and with the field that was meant, if that can be told."""
    scan = BodyScan()
    scan.feed(body, is_last=True)
    found = unknown_fields(scan.field_names(), Body)
    assert [deviation.reason for deviation in found] == reasons


async def test_no_header_is_made_of_a_name(site):
    """Quotes, ends of lines and other scripts stay inside the header's own quotes."""
    for name in ('a"b', "a\r\nx-evil: 1", "é你", "\x00"):
        answer = await site.http.post("/v1/completions", json={**TEXT, name: 1})
        assert answer.status_code == 200
        assert answer.headers["warning"].count('"') == 2
        assert "x-evil" not in answer.headers


def test_every_body_can_be_looked_at():
    """Each knows all the fields of its own kind."""
    for endpoint in all_endpoints(make_state()):
        if isinstance(endpoint.body, type) and issubclass(endpoint.body, msgspec.Struct):
            names = [field.encode_name for field in msgspec.structs.fields(endpoint.body)]
            assert list(unknown_fields(names, endpoint.body)) == []
