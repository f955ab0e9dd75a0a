"""/v1/completions: prompts of every form, echo, log-probabilities, streams."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.openai.calls import complete, complete_chunks, flat_texts, folded_texts
from weft.core.errors import BadRequest

SEEDED = {"seed": 7, "temperature": 1.0, "max_tokens": 8}
NONE_CACHED = {"prompt_tokens_details": {"cached_tokens": 0}}


SHAPES = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from(
            ["hello", ["hello", "you there"], [104, 105], [[104], [105, 106], [107]]]
        )
    },
    optional={
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 12),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 3),
        "stop": st.sampled_from(["e", ["a", "b"]]),
        "return_token_ids": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
        "truncate_prompt_tokens": st.integers(1, 4),
        "temperature": st.sampled_from([0, 1]),
    },
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shape=SHAPES)
def test_a_stream_says_what_the_answer_says(shape, running):
    """Whatever is asked for: the same texts, ids, log-probabilities, offsets, reasons and counts."""
    served, wait = running
    body = {**SEEDED, **shape}
    whole = wait(complete(served, body))
    stream = wait(complete_chunks(served, {**body, "stream_options": {"include_usage": True}}))
    told = folded_texts(stream)
    if shape.get("echo") and not shape.get("return_token_ids"):
        # A stream begins with the prompt's ids there, as vLLM's does; a whole answer has them not.
        assert all(choice.pop("prompt_token_ids") for choice in told)
        told = [{**choice, "prompt_token_ids": None} for choice in told]
    assert told == flat_texts(whole)
    assert stream[-1]["usage"] == whole["usage"]


async def test_every_field_of_a_chunk_is_written(echoing):
    """Nulls included, usage too; the usage chunk has no choices."""
    stream = await complete_chunks(echoing, max_tokens=1, stream_options={"include_usage": True})
    first, last = stream
    assert first["object"] == "text_completion"
    assert first["id"] == "cmpl-r1"
    assert first["usage"] is None
    assert first["choices"] == [
        {
            "index": 0,
            "text": "h",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": None,
            "prompt_token_ids": None,
        }
    ]
    assert last["choices"] == []
    counts = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    assert last["usage"] == {**counts, **NONE_CACHED}


async def test_answers_are_numbered_through_all_prompts(echoing):
    """index = answer + prompt x n, in order; usage sums all prompts."""
    whole = await complete(echoing, prompt=["abc", "de"], n=2, max_tokens=2)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in whole["choices"]] == ["ab", "ab", "de", "de"]
    counts = {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    assert whole["usage"] == {**counts, **NONE_CACHED}


async def test_sixteen_tokens_where_nothing_is_said(echoing):
    """The published default."""
    whole = await complete(echoing, prompt="x" * 40, ignore_eos=True)
    assert whole["usage"]["completion_tokens"] == 16


async def test_an_echo_scores_the_prompt_as_well(served):
    """Its first token has no log-probability; offsets go on through prompt and answer."""
    whole = await complete(served, echo=True, logprobs=1, max_tokens=2, ignore_eos=True)
    (choice,) = whole["choices"]
    rows = choice["logprobs"]
    assert choice["text"].startswith("hello")
    assert rows["tokens"][:5] == list("hello")
    assert rows["token_logprobs"][0] is None
    assert rows["top_logprobs"][0] is None
    assert all(value <= 0 for value in rows["token_logprobs"][1:])
    assert rows["text_offset"][:6] == [0, 1, 2, 3, 4, 5]
    assert len(rows["tokens"]) == 7


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_no_tokens_and_an_echo_give_the_prompt_alone(served, is_streamed):
    """With its log-probabilities; no token is told, and none counted."""
    body = {
        "max_tokens": 0,
        "echo": True,
        "logprobs": 2,
        "n": 2,
    }
    if is_streamed:
        options = {"stream_options": {"include_usage": True}}
        stream = await complete_chunks(served, {**body, **options})
        choices, usage = folded_texts(stream), stream[-1]["usage"]
    else:
        whole = await complete(served, body)
        choices, usage = flat_texts(whole), whole["usage"]
    assert [choice["text"] for choice in choices] == ["hello", "hello"]
    assert [choice["finish_reason"] for choice in choices] == ["length", "length"]
    assert all(choice["logprobs"]["tokens"] == list("hello") for choice in choices)
    counts = {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
    assert usage == {**counts, **NONE_CACHED}


async def test_ids_come_in_place_of_an_echo(echoing):
    """Who asks for token ids gets the prompt's ids once, and not its text beside them."""
    stream = await complete_chunks(echoing, echo=True, return_token_ids=True, max_tokens=2)
    assert folded_texts(stream)[0]["text"] == "he"
    assert stream[0]["choices"][0]["prompt_token_ids"] == list(b"hello")
    assert all(chunk["choices"][0]["prompt_token_ids"] is None for chunk in stream[1:])


async def test_an_echoed_stream_begins_with_the_prompts_ids(echoing):
    """Asked for or not, once, beside its text."""
    stream = await complete_chunks(echoing, echo=True, max_tokens=2)
    [first, *rest] = [chunk["choices"][0] for chunk in stream]
    assert first["text"].startswith("hello")
    assert (first["prompt_token_ids"], first["token_ids"]) == (list(b"hello"), None)
    assert all(choice["prompt_token_ids"] is None for choice in rest)


@pytest.mark.parametrize("num_top", [0, 2])
async def test_an_echo_with_logprobs_has_the_prompts_beside_them(served, num_top):
    """In both forms, as the engine computed them for the echo."""
    whole = await complete(served, echo=True, logprobs=num_top, max_tokens=1)
    plain = await complete(served, logprobs=num_top, max_tokens=1)
    (choice,) = whole["choices"]
    scores = [
        None if row is None else row[str(token_id)]["logprob"]
        for token_id, row in zip(b"hello", choice["prompt_logprobs"], strict=True)
    ]
    assert scores == choice["logprobs"]["token_logprobs"][:5]
    assert plain["choices"][0]["prompt_logprobs"] is None


async def test_who_asks_for_no_alternatives_gets_none(served):
    """With 0, the tokens that came are scored, and no lists beside them are made, as from OpenAI."""
    none = await complete(served, logprobs=0, echo=True, max_tokens=2, ignore_eos=True)
    stream = await complete_chunks(served, logprobs=0, max_tokens=2, ignore_eos=True)
    one = await complete(served, logprobs=1, max_tokens=2, ignore_eos=True)
    rows = none["choices"][0]["logprobs"]
    assert rows["top_logprobs"] is None
    assert len(rows["token_logprobs"]) == len(rows["tokens"]) == 7
    assert all(chunk["choices"][0]["logprobs"]["top_logprobs"] is None for chunk in stream)
    assert len(one["choices"][0]["logprobs"]["top_logprobs"]) == 2


async def test_ids_are_a_prompt_and_echo_as_text(echoing):
    """One prompt, because its items are ids."""
    whole = await complete(echoing, prompt=list(b"hello"), echo=True, max_tokens=2)
    assert [choice["text"] for choice in whole["choices"]] == ["hellohe"]


async def test_tokens_can_be_named_by_id(echoing):
    """For clients that map them themselves."""
    whole = await complete(echoing, logprobs=0, return_tokens_as_token_ids=True, max_tokens=1)
    assert whole["choices"][0]["logprobs"]["tokens"] == ["token_id:104"]


async def test_chosen_ids_are_scored_beside_the_token(served):
    """In place of the likeliest."""
    whole = await complete(
        served,
        logprobs=2,
        logprob_token_ids=[5, 9],
        max_tokens=1,
        return_tokens_as_token_ids=True,
    )
    (tops,) = whole["choices"][0]["logprobs"]["top_logprobs"]
    assert {"token_id:5", "token_id:9"} <= tops.keys()


async def test_cached_tokens_are_summed_over_prompts(echoing):
    """Each prompt's own."""
    prompts = ["a" * 64, "b" * 64]
    await complete(echoing, prompt=prompts, max_tokens=1)
    whole = await complete(echoing, prompt=prompts, max_tokens=1)
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


async def test_best_of_is_n_or_nothing(tiny):
    """All that are made are shown, so no other number can be meant."""
    whole = await complete(tiny, n=2, best_of=2, max_tokens=1)
    with pytest.raises(BadRequest) as caught:
        await complete(tiny, n=2, best_of=3, max_tokens=1)
    assert len(whole["choices"]) == 2
    assert caught.value.parameter == "best_of"


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [400]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"prompt": "a", "n": 2**31}, "n"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 2000}, "max_tokens"),
        ({"prompt": "a" * 1024}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "logprobs": -2}, "logprobs"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(served, body, parameter):
    """Before anything of it runs, streamed or not."""
    with pytest.raises(BadRequest) as caught:
        await complete(served, body)
    with pytest.raises(BadRequest) as streamed:
        await complete_chunks(served, body)
    assert served.client.num_active_requests == 0
    assert caught.value.parameter == parameter
    assert str(caught.value) == str(streamed.value)


async def test_a_text_has_no_count_of_reasoning(scripted):
    """The server reads reasoning in chats; no parser reads these texts."""
    assert scripted.options.reasoning_parser is not None
    answer = await complete(scripted, max_tokens=1)
    assert "completion_tokens_details" not in answer["usage"]
