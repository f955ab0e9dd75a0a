"""`use_beam_search` of OpenAI's APIs: the beams that `weft.core.beam_search` finds, as answers."""

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.web.serving import RANDOM, SCRIPT, http_serving, serving
from weft.core.beam_search import BeamSearchParams, search_beams
from weft.core.values.types import RequestOptions, SamplingParams

IDS = [5, 9, 17, 30]
SEARCH = {"use_beam_search": True, "n": 3, "max_tokens": 4, "length_penalty": 0.5}
COMPLETION = {"prompt": IDS, "return_token_ids": True, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "return_token_ids": True}
COMPLETIONS_PATH, CHAT_PATH = "/v1/completions", "/v1/chat/completions"


async def post(served, path, **body):
    """The answer's status and JSON."""
    async with (
        http_serving(served) as url,
        httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
    ):
        answer = await client.post(path, json=body)
    return answer.status_code, answer.json()


async def beams_of(served, token_ids, *, ignore_eos):
    """What the search itself finds."""
    options = RequestOptions(request_id="direct")
    request = await served.client.prepare(
        {"prompt_token_ids": token_ids}, SamplingParams(max_tokens=4), options
    )
    params = BeamSearchParams(beam_width=3, max_tokens=4, length_penalty=0.5, ignore_eos=ignore_eos)
    return await search_beams(served.client, request, options, params)


async def test_completions_are_the_beams():
    """Best first, each with its tokens, their log-probabilities and the texts of both prompts."""
    async with serving(RANDOM) as served:
        body = {**COMPLETION, **SEARCH, "prompt": [IDS, [8, 9]], "logprobs": 2}
        status, answer = await post(served, COMPLETIONS_PATH, **body)
        expected = [
            beam
            for prompt in (IDS, [8, 9])
            for beam in await beams_of(served, prompt, ignore_eos=True)
        ]
    assert status == 200
    choices = answer["choices"]
    assert [tuple(choice["token_ids"]) for choice in choices] == [b.token_ids for b in expected]
    assert [choice["finish_reason"] for choice in choices] == ["length"] * 6
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in choices]
    assert sums == pytest.approx([beam.logprob for beam in expected])
    assert answer["usage"]["completion_tokens"] == 24
    assert len({choice["text"] for choice in choices}) > 1


async def test_chat_answers_with_the_beams():
    """And again with the same ones: nothing is drawn."""
    async with serving(RANDOM, template=SCRIPT) as served:
        status, answer = await post(served, CHAT_PATH, **CHAT, **SEARCH)
        _, again = await post(served, CHAT_PATH, **CHAT, **SEARCH)
        expected = await beams_of(served, answer["prompt_token_ids"], ignore_eos=False)
    assert status == 200
    found = [tuple(choice["token_ids"]) for choice in answer["choices"]]
    assert found == [beam.token_ids for beam in expected]
    assert again["choices"] == answer["choices"]


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        (COMPLETIONS_PATH, {"stream": True}, "stream"),
        (COMPLETIONS_PATH, {"temperature": 0.7}, "temperature"),
        (COMPLETIONS_PATH, {"top_p": 0.5}, "top_p"),
        (COMPLETIONS_PATH, {"stop": "x"}, "stop"),
        (COMPLETIONS_PATH, {"seed": 3}, "seed"),
        (COMPLETIONS_PATH, {"n": 11}, "n"),
        (COMPLETIONS_PATH, {"echo": True, "logprobs": 1}, "echo"),
        (COMPLETIONS_PATH, {"prompt_logprobs": 1}, "prompt_logprobs"),
        (COMPLETIONS_PATH, {"logprobs": 1, "logprob_token_ids": [3]}, "logprob_token_ids"),
        (COMPLETIONS_PATH, {"structured_outputs": {"regex": "a"}}, "use_beam_search"),
        (COMPLETIONS_PATH, {"length_penalty": 99}, "length_penalty"),
        (COMPLETIONS_PATH, {"use_beam_search": False}, "length_penalty"),
        (COMPLETIONS_PATH, {"early_stopping": True}, "early_stopping"),
        (CHAT_PATH, {"stream": True}, "stream"),
        (CHAT_PATH, {"presence_penalty": 1}, "presence_penalty"),
    ],
)
async def test_what_does_not_go_with_a_search_is_refused(path, fields, name):
    """By name, and never ignored."""
    body = COMPLETION if path == COMPLETIONS_PATH else CHAT
    async with serving(RANDOM, template=SCRIPT) as served:
        status, answer = await post(served, path, **{**body, **SEARCH, **fields})
    assert (status, answer["error"]["param"]) == (400, name)
