"""The decision APIs against real engines: probabilities, the same whatever runs beside them, and what is refused."""

import asyncio
import json
import math
from functools import partial

import msgspec
import openai
import pytest

from tests.web.serving import RANDOM, TINY, call_of, http_serving, serving
from weft.core.errors import BadRequest, ContextLengthExceeded
from weft.core.values.types import SamplingParams
from weft.web.decisions import ENDPOINTS
from weft.web.decisions.labels import alphabet_of

BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
make_call = partial(call_of, BY_PATH)
DECISIONS, SYSTEM_ONE, SCORING = "/v1/decisions", "/v1/systemone", "/generative_scoring"
PREDICATE = {"type": "predicate", "instructions": "It is late.", "name": "late"}
CHOICE = {
    "type": "choice",
    "instructions": "Which city?",
    "choices": [{"value": "Oslo"}, {"value": "Rome", "description": "in Italy"}, {"value": True}],
}
SCORE = {
    "type": "score",
    "instructions": "How urgent?",
    "levels": [{"label": "low"}, {"label": "high"}],
}
QUESTIONS = [PREDICATE, CHOICE, SCORE]
LEFT_OUT = {"usage", "id", "created"}


async def ask(served, path, **fields):
    """The answer, as a client would read it."""
    made = await BY_PATH[path].handler(make_call(served, path, fields))
    return json.loads(msgspec.json.encode(made))


async def decide(served, questions, given="The parcel was late."):
    """The answers of /v1/decisions."""
    return (await ask(served, DECISIONS, input=given, questions=questions))["answers"]


async def test_each_kind_of_question_has_its_answer(tiny, monkeypatch):
    """Probabilities add up to 1, values keep their type, and names and order are those of the questions."""
    monkeypatch.setattr(
        "weft.web.decisions.openai._MIN_MASS", 0.0
    )  # the toy would rather say something else
    made = await ask(tiny, DECISIONS, input="The parcel was late.", questions=QUESTIONS)
    predicate, choice, score = made["answers"]
    assert [answer["type"] for answer in made["answers"]] == ["predicate", "choice", "score"]
    assert [answer["name"] for answer in made["answers"]] == ["late", None, None]
    assert 0 < predicate["probability"] < 1
    assert [one["value"] for one in choice["probabilities"]] == ["Oslo", "Rome", True]
    best = max(choice["probabilities"], key=lambda one: one["probability"])
    assert (choice["choice"], choice["confidence"]) == (best["value"], best["probability"])
    assert [(one["label"], one["value"]) for one in score["probabilities"]] == [
        ("low", 0),
        ("high", 1),
    ]
    assert score["score"] == pytest.approx(score["probabilities"][1]["probability"])
    for answer in (choice, score):
        assert math.fsum(one["probability"] for one in answer["probabilities"]) == pytest.approx(1)
    assert made["usage"]["output_tokens"] == 3


async def test_answers_are_made_of_the_probabilities_of_labels():
    """Of the labels among themselves, on a model whose next token may be any."""
    async with serving(RANDOM) as served:
        found = await ask(
            served,
            SYSTEM_ONE,
            state={"text": "late"},
            instructions="Parcels.",
            questions={
                "late": {
                    "type": "noul",
                    "instructions": "It is late.",
                    "criteria": {"true": "late"},
                },
                "city": {"type": "choice", "criteria": {"Oslo": None, "Rome": "in Italy"}},
                "urgency": {"type": "score", "criteria": ["low", "middle", "high"]},
            },
        )
    late, city, urgency = found["answers"].values()
    for answer in (late, city, urgency):
        assert math.fsum(answer["probabilities"].values()) == pytest.approx(1)
        assert answer["confidence"] == max(answer["probabilities"].values())
    assert late["noul"] == late["probabilities"]["yes"]
    assert city["choice"] == max(city["probabilities"], key=city["probabilities"].get)
    levels = urgency["probabilities"].items()
    assert urgency["score"] == pytest.approx(sum(int(level) * each for level, each in levels))
    assert urgency["legend"] == {"0": "low", "1": "middle", "2": "high"}
    for told in found["diagnostics"].values():
        assert 0 < told["label_mass"] < 1
    assert "choice" not in late


async def test_a_question_has_the_same_answer_alone_and_among_others():
    """Bit for bit: beside other requests, in another order, from the prefix cache and without one."""
    async with serving(RANDOM) as served, serving(RANDOM, enable_prefix_caching=False) as uncached:
        body = {"state": "s " * 50, "instructions": "Now."}
        questions = {
            f"q{i}": {
                "type": "choice",
                "instructions": f"{i}?",
                "criteria": dict.fromkeys("xyz"[: 2 + i % 2]),
            }
            for i in range(12)
        }
        whole = await ask(served, SYSTEM_ONE, **body, questions=questions)
        noise = served.client.generate(
            [5, 6, 7], SamplingParams(max_tokens=200, ignore_eos=True), "noise"
        )

        async def drain():
            async for _ in noise:
                pass

        running = asyncio.create_task(drain())
        alone = {}
        for name in reversed(questions):
            one = await ask(served, SYSTEM_ONE, **body, questions={name: questions[name]})
            alone |= one["answers"]
        await running
        plain = await ask(uncached, SYSTEM_ONE, **body, questions=questions)
    assert alone == whole["answers"] == plain["answers"]


async def test_questions_share_the_tokens_of_their_input():
    """Computed once: all questions but the first find them in the prefix cache."""
    async with serving(RANDOM) as served:
        given = "word " * 60
        made = await ask(served, DECISIONS, input=given, questions=[CHOICE] * 8)
        usage = made["usage"]
    shared = len(served.tokenizer.encode(given, add_special_tokens=False))
    assert usage["input_tokens_details"]["cached_tokens"] > 7 * 0.7 * shared
    details = usage["input_tokens_details"]
    assert sum(details.values()) == usage["input_tokens"]


async def test_the_official_client_reads_the_answers(tiny):
    """Messages, calls with their results, JSON, and more choices than there are letters."""
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    items = [
        {"role": "developer", "content": "Judge."},
        {"role": "user", "content": [{"type": "input_json", "data": {"a": [1, None]}}]},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "late"},
    ]
    async with (
        http_serving(tiny) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        made = await client.decisions.create(
            model=TINY, input=items, questions=QUESTIONS, prompt_cache_options={"mode": "explicit"}
        )
    assert type(made).model_validate(made.to_dict(), strict=True)
    assert len(made.answers) == 3


async def test_a_question_whose_labels_are_improbable_is_refused(monkeypatch):
    """The others have their answers."""
    monkeypatch.setattr("weft.web.decisions.openai._MIN_MASS", 1.0)
    async with serving(RANDOM) as served:
        answers = await decide(served, QUESTIONS)
    assert {answer["type"] for answer in answers} == {"refusal"}
    assert answers[0] == {"type": "refusal", "name": "late"}


async def test_labels_are_single_tokens_where_the_answer_begins(tiny):
    """All different, and each what the text adds to the prompt's end."""
    alphabet = alphabet_of(tiny.tokenizer, "\nassistant\n")
    before = tiny.tokenizer.encode("\nassistant\n", add_special_tokens=False)
    assert len(alphabet.labels) >= 26
    assert len({token_id for _, token_id in alphabet.labels}) == len(alphabet.labels)
    for label, token_id in alphabet.labels:
        ids = tiny.tokenizer.encode(f"\nassistant\n{label}", add_special_tokens=False)
        assert ids == [*before, token_id]


@pytest.mark.parametrize(
    ("fields", "parameter", "text"),
    [
        ({"questions": []}, "questions", "1 to 400"),
        ({"questions": [PREDICATE] * 401}, "questions", "1 to 400"),
        ({"questions": [{**CHOICE, "type": "rank"}]}, "questions", "choices"),
        ({"questions": [{"type": "rank", "instructions": "x"}]}, "questions", "rank"),
        ({"questions": [{**PREDICATE, "levels": []}]}, "questions", "levels"),
        ({"questions": [{**PREDICATE, "instructions": ""}]}, "questions", "instructions"),
        (
            {"questions": [{**CHOICE, "choices": [{"value": "a"}]}]},
            "questions[0].choices",
            "2 to 255",
        ),
        (
            {"questions": [{**CHOICE, "choices": [{"value": "a"}, {"value": "a"}]}]},
            "questions[0].choices",
            "twice",
        ),
        ({"input": ""}, "input", "not empty"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "reasoning"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": 5}]}]},
            "input",
            "object",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input",
            "text only",
        ),
        ({"priority": 3}, "priority", "--scheduling-policy"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_named(tiny, fields, parameter, text):
    """With its place in the body."""
    body = {"input": "late", "questions": [PREDICATE], **fields}
    with pytest.raises(BadRequest, match=text) as caught:
        await ask(tiny, DECISIONS, **body)
    assert caught.value.parameter == parameter


async def test_json_is_taken_within_its_limits(tiny):
    """Of levels, values and bytes."""
    deep: dict = {}
    for _ in range(40):
        deep = {"a": deep}
    for data in (deep, {"a": [0] * 10_001}, {"a": "x" * 300_000}):
        given = [{"role": "user", "content": [{"type": "input_json", "data": data}]}]
        with pytest.raises(BadRequest, match="levels"):
            await decide(tiny, [PREDICATE], given)


async def test_an_input_beyond_the_context_is_refused_by_its_name(tiny):
    """As everywhere."""
    long = "word " * 5000
    for path, body in (
        (DECISIONS, {"input": long, "questions": [PREDICATE]}),
        (SYSTEM_ONE, {"state": long, "questions": {"q": {"type": "noul"}}}),
        (SCORING, {"query": long, "items": ["a"], "label_token_ids": [5]}),
    ):
        with pytest.raises(ContextLengthExceeded) as caught:
            await ask(tiny, path, **body)
        assert caught.value.parameter == next(iter(body))


@pytest.mark.parametrize(
    "question",
    [
        {"type": "noul", "criteria": {"maybe": "x"}},
        {"type": "choice", "criteria": ["a", "b"]},
        {"type": "score", "criteria": {"a": None}},
        {"type": "guess"},
    ],
    ids=str,
)
async def test_a_named_question_that_is_wrong_is_named(tiny, question):
    """With the forms that there are."""
    with pytest.raises(BadRequest, match=r"questions\.q must be of type"):
        await ask(tiny, SYSTEM_ONE, state="x", questions={"q": question})


async def test_items_are_scored_by_a_label_behind_the_query():
    """Texts and ids alike, before or behind the query, by the labels alone or by the whole vocabulary."""
    async with serving(RANDOM) as served:
        encode = partial(served.tokenizer.encode, add_special_tokens=False)
        labels = [encode("a")[0], encode("b")[0]]
        texts = await ask(served, SCORING, query="q", items=["x", "y"], label_token_ids=labels)
        query = served.tokenizer.encode("q")
        ids = await ask(
            served, SCORING, query=query, items=[encode("x"), encode("y")], label_token_ids=labels
        )
        swapped = await ask(served, SCORING, query="q", items=["x"], label_token_ids=labels[::-1])
        whole = await ask(
            served, SCORING, query="q", items=["x"], label_token_ids=labels, apply_softmax=False
        )
        first = await ask(
            served, SCORING, query=query, items=["x"], label_token_ids=labels, item_first=True
        )
        for wrong, parameter in (
            ({"items": []}, "items"),
            ({"items": ["a", [1]]}, "items"),
            ({"label_token_ids": []}, "label_token_ids"),
            ({"label_token_ids": [10**6]}, "label_token_ids"),
        ):
            body = {"query": "q", "items": ["x"], "label_token_ids": labels, **wrong}
            with pytest.raises(BadRequest) as caught:
                await ask(served, SCORING, **body)
            assert caught.value.parameter == parameter
    assert [one["score"] for one in texts["data"]] == [one["score"] for one in ids["data"]]
    assert swapped["data"][0]["score"] == pytest.approx(1 - texts["data"][0]["score"])
    assert 0 < whole["data"][0]["score"] < texts["data"][0]["score"]
    assert first["usage"]["prompt_tokens"] == len(query) + 1


async def test_a_server_of_logits_gives_the_same_probabilities():
    """They are relative to each other; shares of the whole vocabulary are unknown, and refused before anything runs."""
    question = {"type": "choice", "criteria": {"Oslo": None, "Rome": None}}
    found = []
    for mode in ("raw_logprobs", "raw_logits"):
        async with serving(RANDOM, logprobs_mode=mode) as served:
            found.append(await ask(served, SYSTEM_ONE, state="x", questions={"q": question}))
            if mode == "raw_logits":
                body = {"query": "q", "items": ["x"], "label_token_ids": [5]}
                with pytest.raises(BadRequest, match="logits") as caught:
                    await ask(served, SCORING, **body, apply_softmax=False)
                assert caught.value.parameter == "apply_softmax"
    of_logprobs, of_logits = (made["answers"]["q"]["probabilities"] for made in found)
    assert of_logits == pytest.approx(of_logprobs, rel=1e-5)
    assert found[1]["diagnostics"]["q"]["label_mass"] is None
