"""Tokens in and out over HTTP: the same tokens as from the engine itself, streamed or not."""

import json
from itertools import accumulate

import msgspec
import pytest

from tests.web.serving import call_of, serving
from weft.core.errors import BadRequest, NotFound
from weft.core.values.types import OutputKind, SamplingParams
from weft.web.http.endpoint import Events
from weft.web.inference.call import MAX_REPEATED_CHARS
from weft.web.options import ApiOptions
from weft.web.tokens import ENDPOINTS

_BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
PROMPT = [5, 9, 17, 30]


async def ask(served, path: str, headers=None, **body):
    """What the handler makes of a body."""
    call = call_of(_BY_PATH, served, path, body, headers, label="theirs", request_id="ours")
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


async def test_tokens_are_those_of_the_engine(served):
    """The endpoint adds nothing to a request and takes nothing away."""
    asked = {"max_tokens": 9, "temperature": 0.9, "seed": 3, "n": 2, "detokenize": False}
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


async def test_logprobs_are_ids_and_ranks(served):
    """The sampled token comes first and counts among those requested; ranks are the engine's."""
    asked = {"max_tokens": 5, "temperature": 1.5, "seed": 4, "logprobs": 3}
    answer = await generate(served, sampling_params=asked)
    params = SamplingParams(**asked, output_kind=OutputKind.FINAL_ONLY)
    stream = served.client.generate({"prompt_token_ids": PROMPT}, params, "direct")
    (output,) = [output async for output in stream]
    (choice,) = answer["choices"]
    rows = output.outputs[0].logprobs
    expected = [
        [
            {"token_id": token_id, "logprob": entry.logprob, "rank": entry.rank}
            for token_id, entry in row.items()
        ]
        for row in rows
    ]
    content = choice["logprobs"]["content"]
    assert [row["top_logprobs"] for row in content] == [row[:3] for row in expected]
    heads = [{name: row[name] for name in ("token_id", "logprob", "rank")} for row in content]
    assert heads == [row[0] for row in expected]
    assert [row["token_id"] for row in content] == choice["token_ids"]
    assert any(row["rank"] > 3 for row in content)


async def test_named_tokens_are_all_shown(served):
    """Ids that the caller chose stand behind the sampled one, however many."""
    asked = {"max_tokens": 1, "temperature": 0, "logprob_token_ids": [7, 8, 9]}
    answer = await generate(served, sampling_params=asked)
    (row,) = answer["choices"][0]["logprobs"]["content"]
    sampled, *named = (entry["token_id"] for entry in row["top_logprobs"])
    assert (sampled, named) == (row["token_id"], [7, 8, 9])


async def test_weight_versions_cover_an_answer_and_come_with_its_end(served):
    """Weights do not change here: one span, under the name of the first ones."""
    asked = {"max_tokens": 4, "n": 2, "ignore_eos": True}
    span = [{"version": "default", "start": 0, "end": 4}]
    answer = await generate(served, sampling_params=asked)
    parts = await chunks(served, sampling_params=asked)
    assert [choice["weight_versions"] for choice in answer["choices"]] == [span, span]
    streamed = [choice for part in parts for choice in part["choices"]]
    for choice in streamed:
        assert choice["weight_versions"] == (span if choice["finish_reason"] else None)


async def test_text_mode_adds_texts_and_their_logprobs(served):
    """As OpenAI's chat writes them; without it there is no text at all."""
    asked = {"max_tokens": 6, "temperature": 0, "logprobs": 1, "stop": ["zzz"]}
    bare = await generate(served, sampling_params=asked)
    whole = await generate(served, sampling_params=asked, output_mode="text")
    parts = await chunks(served, sampling_params=asked, output_mode="text")
    params = SamplingParams(**asked, output_kind=OutputKind.FINAL_ONLY)
    stream = served.client.generate({"prompt_token_ids": PROMPT}, params, "direct")
    (output,) = [output async for output in stream]
    (choice,) = whole["choices"]
    assert (bare["output_mode"], whole["output_mode"]) == ("tokens", "text")
    assert "text" not in bare["choices"][0]
    assert (
        choice["text"]
        == output.outputs[0].text
        == "".join(one["text"] for part in parts for one in part["choices"])
    )
    assert choice["token_ids"] == bare["choices"][0]["token_ids"]
    assert {"token", "bytes"} <= choice["logprobs"]["content"][0].keys()


async def test_max_tokens_left_out_fills_the_context():
    """The client's own default of 16 would cut every answer that does not ask for more."""
    async with serving(max_model_len=64) as served:
        answer = await generate(served, sampling_params={"ignore_eos": True})
        bare = await generate(served)
    assert answer["usage"]["completion_tokens"] == 64 - len(PROMPT)
    assert bare["usage"]["total_tokens"] <= 64


async def test_prompt_and_running_usage_come_when_requested(served):
    """The prompt once, in the first chunk; the usage of its answer with every chunk."""
    asked = {"max_tokens": 3, "ignore_eos": True}
    usage = {"include_usage": True, "continuous_usage_stats": True}
    answer = await generate(served, sampling_params=asked, return_token_ids=True)
    parts = await chunks(served, sampling_params=asked, return_token_ids=True, stream_options=usage)
    assert answer["prompt_token_ids"] == PROMPT
    assert [part.get("prompt_token_ids") for part in parts] == [PROMPT, *[None] * (len(parts) - 1)]
    counts = [sum(len(one["token_ids"]) for one in part["choices"]) for part in parts]
    assert [part["usage"]["completion_tokens"] for part in parts] == list(accumulate(counts))
    assert answer["created"] <= parts[0]["created"]


async def test_the_server_can_force_usage():
    """Behind the answer, without a word from the client."""
    async with serving(options=ApiOptions(enable_force_include_usage=True)) as served:
        *parts, last = await chunks(served, sampling_params={"max_tokens": 3, "ignore_eos": True})
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)
    assert not any("usage" in part for part in parts)


@pytest.mark.parametrize("has_ended", [True, False])
async def test_constraints_wait_for_reasoning_that_has_not_ended(has_ended):
    """`reasoning_ended` says what the prompt's token ids leave open."""
    options = ApiOptions(reasoning_parser="qwen3")
    asked = {"max_tokens": 8, "temperature": 0, "structured_outputs": {"choice": ["zz"]}}
    async with serving(options=options) as served:
        answer = await generate(
            served, sampling_params=asked, reasoning_ended=has_ended, output_mode="text"
        )
    assert (answer["choices"][0]["text"] == "zz") is has_ended


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"features": {}}, "features"),
        ({"content_parts": [{"type": "image_url"}]}, "content_parts"),
        ({"ec_transfer_params": {"a": 1}}, "ec_transfer_params"),
        ({"reasoning_parser_kwargs": {"end": "x"}}, "reasoning_parser_kwargs"),
        ({"output_mode": "text", "sampling_params": {"detokenize": False}}, "output_mode"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"sampling_params": {"n": 200}}, "sampling_params.n"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"priority": 1}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
    ],
)
async def test_what_is_not_offered_is_refused_by_name(served, body, name):
    """No field is taken and ignored."""
    with pytest.raises(BadRequest) as caught:
        await generate(served, **body)
    assert caught.value.parameter == name


async def test_an_unknown_model_is_not_found(served):
    """The name is checked as everywhere."""
    with pytest.raises(NotFound):
        await generate(served, model="nobody")


async def test_simple_generate_answers_with_prompt_and_text(served):
    """One text an answer, each beginning with the prompt; lines repeat all there is so far."""
    asked = {"prompt": "hello", "n": 2, "max_tokens": 5, "seed": 1}
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


async def test_simple_generate_refuses_before_it_starts_a_stream(served):
    """A bad value is an error of its own, not the end of a stream."""
    with pytest.raises(BadRequest) as caught:
        await ask(served, "/generate", prompt="a", stream=True, top_p=7)
    assert caught.value.parameter == "top_p"
    with pytest.raises(BadRequest, match="data_parallel_rank"):
        await ask(served, "/generate", {"x-data-parallel-rank": "7"}, prompt="a")
    for beyond in ({"prompt_logprobs": 1}, {"use_beam_search": True}, {"length_penalty": 2}):
        with pytest.raises(BadRequest):
            await ask(served, "/generate", prompt="a", **beyond)


@pytest.mark.parametrize("is_told", [True, False])
async def test_cached_tokens_are_told_unless_the_server_keeps_them(is_told):
    """As by the other APIs."""
    async with serving(options=ApiOptions(enable_prompt_tokens_details=is_told)) as served:
        whole = await generate(served, sampling_params={"max_tokens": 1})
    assert ("prompt_tokens_details" in whole["usage"]) == is_told


async def test_simple_generate_repeats_a_prompt_up_to_a_length(served):
    """Each of its lines has it once for every answer."""
    with pytest.raises(BadRequest, match=str(MAX_REPEATED_CHARS)) as caught:
        await ask(served, "/generate", prompt="x" * (MAX_REPEATED_CHARS // 128 + 1), n=128)
    assert caught.value.parameter == "n"
