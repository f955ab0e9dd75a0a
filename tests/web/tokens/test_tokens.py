"""Tokens in and out over HTTP: the same tokens as from the engine itself, streamed or not."""

import json

import msgspec
import pytest

from tests.web.serving import serving
from weft.core.errors import BadRequest, NotFound
from weft.core.types import OutputKind, SamplingParams
from weft.web.http.endpoint import Call, Events
from weft.web.options import ApiOptions
from weft.web.tokens import ENDPOINTS

_BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
PROMPT = [5, 9, 17, 30]


async def ask(served, path: str, **body):
    """What the handler makes of a body."""
    raw = json.dumps(body).encode()
    call = Call(
        body=msgspec.json.decode(raw, type=_BY_PATH[path].body),
        served=served,
        request_id="ours",
        label="theirs",
        headers={},
        path_parameters={},
        query={},
    )
    return await _BY_PATH[path].handler(call)


async def generate(served, **body):
    """A whole answer as a client reads it."""
    made = await ask(served, "/inference/v1/generate", token_ids=PROMPT, **body)
    return json.loads(msgspec.json.encode(made))


async def chunks(served, **body):
    """The chunks of a stream."""
    made = await ask(served, "/inference/v1/generate", token_ids=PROMPT, stream=True, **body)
    assert isinstance(made, Events)
    events = [event async for event in made.source]
    assert events[-1] == b"data: [DONE]\n\n"
    return [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]


async def test_tokens_are_those_of_the_engine():
    """The endpoint adds nothing to a request and takes nothing away."""
    asked = {"max_tokens": 9, "temperature": 0.9, "seed": 3, "n": 2, "detokenize": False}
    async with serving() as served:
        answer = await generate(served, sampling_params=asked)
        params = SamplingParams(**asked, output_kind=OutputKind.FINAL_ONLY)
        stream = served.client.generate({"prompt_token_ids": PROMPT}, params, "direct")
        (output,) = [output async for output in stream]
    expected = {one.index: one.token_ids for one in output.outputs}
    assert {one["index"]: one["token_ids"] for one in answer["choices"]} == expected
    assert answer["request_id"] == "theirs"
    assert answer["usage"]["completion_tokens"] == 18


async def test_stream_and_answer_are_equal():
    """Joined chunks hold the tokens, log-probabilities, ends and usage of the answer in one piece."""
    asked = {"max_tokens": 6, "temperature": 0.7, "seed": 1, "n": 2, "logprobs": 2}
    async with serving(enable_prefix_caching=False) as served:
        answer = await generate(served, sampling_params=asked)
        parts = await chunks(served, sampling_params=asked, stream_options={"include_usage": True})
    for choice in answer["choices"]:
        mine = [c for part in parts for c in part["choices"] if c["index"] == choice["index"]]
        assert [t for c in mine for t in c["token_ids"]] == choice["token_ids"]
        rows = [row for c in mine for row in c["logprobs"]["content"]]
        assert rows == choice["logprobs"]["content"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"] == "length"
    assert parts[-1]["usage"] == answer["usage"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"features": {}}, "features"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"sampling_params": {"n": 200}}, "sampling_params.n"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"priority": 1}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
    ],
)
async def test_what_is_not_offered_is_refused_by_name(body, name):
    """No field is taken and ignored."""
    async with serving() as served:
        with pytest.raises(BadRequest) as caught:
            await generate(served, **body)
    assert caught.value.parameter == name


async def test_an_unknown_model_is_not_found():
    """The name is checked as everywhere."""
    async with serving() as served:
        with pytest.raises(NotFound):
            await generate(served, model="nobody")


async def test_simple_generate_answers_with_prompt_and_text():
    """One text an answer, each beginning with the prompt; lines repeat all there is so far."""
    asked = {"prompt": "hello", "n": 2, "max_tokens": 5, "seed": 1}
    async with serving() as served:
        whole = await ask(served, "/generate", **asked)
        streamed = await ask(served, "/generate", **asked, stream=True)
        sent: list[dict] = []

        async def send(message):
            sent.append(message)

        await streamed({}, None, send)
    lines = b"".join(message.get("body", b"") for message in sent).splitlines()
    assert len(whole.text) == 2
    assert all(text.startswith("hello") for text in whole.text)
    assert json.loads(lines[-1]) == {"text": whole.text}
    assert sent[-1]["more_body"] is False


async def test_simple_generate_refuses_before_it_starts_a_stream():
    """A bad value is an error of its own, not the end of a stream."""
    async with serving() as served:
        with pytest.raises(BadRequest) as caught:
            await ask(served, "/generate", prompt="a", stream=True, top_p=7)
        assert caught.value.parameter == "top_p"
        with pytest.raises(BadRequest):
            await ask(served, "/generate", prompt="a", prompt_logprobs=1)


@pytest.mark.parametrize("is_told", [True, False])
async def test_cached_tokens_are_told_unless_the_server_keeps_them(is_told):
    """As by the other APIs."""
    async with serving(options=ApiOptions(enable_prompt_tokens_details=is_told)) as served:
        whole = await generate(served, sampling_params={"max_tokens": 1})
    assert ("prompt_tokens_details" in whole["usage"]) == is_told
