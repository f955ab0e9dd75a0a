"""Structured output from end to end: whatever the model, the answer has the form that was asked for."""

import asyncio
import json
import re
from collections.abc import AsyncIterator

import jsonschema
import pytest

from tests.contract.engines import process, running_engine
from tests.e2e.schemas import SCHEMAS
from tests.e2e.test_bitwise import RANDOM, TINY, Bench, bench
from weft.core.client import EngineClient
from weft.core.errors import BadRequest
from weft.core.values.types import FinishReason, OutputKind, SamplingParams, StructuredOutputsParams

# It chooses nearly at random, so nothing but the constraint gives its answers their form.
WILD = RANDOM
LONG = {"max_model_len": 1024, "num_gpu_blocks_override": 2048}


def params(seed: int = 1, **asked) -> SamplingParams:
    """Sampled at temperature 1, and long enough to end: a penalty keeps digits from going on for ever."""
    own = {name: asked.pop(name) for name in ("n", "min_tokens", "max_tokens") if name in asked}
    return SamplingParams(
        structured_outputs=StructuredOutputsParams(**asked),
        temperature=1.0,
        frequency_penalty=1.0,
        seed=seed,
        output_kind=OutputKind.FINAL_ONLY,
        **{"max_tokens": 900, **own},
    )


async def texts(engine: EngineClient, given: SamplingParams, prompt: str = "json: ") -> list[str]:
    """The answers, each of which must have come to its end."""
    [output] = [out async for out in engine.generate(prompt, given, "r")]
    assert {answer.finish_reason for answer in output.outputs} == {FinishReason.STOP}
    return [answer.text for answer in output.outputs]


@pytest.fixture
async def engine() -> AsyncIterator[EngineClient]:
    """The wild model."""
    async with running_engine(model=WILD, **LONG) as client:
        yield client


def check_json(text: str, schema: dict) -> None:
    """Valid JSON, valid under the schema, formats included, and compact."""
    value = json.loads(text)
    jsonschema.validate(
        value, schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


async def sample_all(engine: EngineClient, num_each: int) -> list[str]:
    """So many answers to every schema, all at once, each checked."""
    everything = await asyncio.gather(
        *(
            texts(engine, params(seed=1000 * number, json=schema, n=num_each))
            for number, schema in enumerate(SCHEMAS.values())
        )
    )
    for schema, answers in zip(SCHEMAS.values(), everything, strict=True):
        for text in answers:
            check_json(text, schema)
    return [text for answers in everything for text in answers]


async def test_three_hundred_samples_are_valid(engine: EngineClient):
    """Under twenty schemas, at temperature 1."""
    answers = await sample_all(engine, 15)
    assert len(answers) == 300
    assert len(set(answers)) > 200


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_thousand_samples_are_valid(engine: EngineClient):
    """The same, more often."""
    answers = await sample_all(engine, 50)
    assert len(answers) == 1000


PATTERNS = [r"[A-Z][a-z]{2,8}, [0-9]{4}", r"(\+|-)?[0-9]{1,3}(\.[0-9]{2})?", r"(a|bc){3,6}é?"]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
async def test_answers_match_the_expression(engine: EngineClient, pattern: str):
    """From beginning to end."""
    answers = await texts(engine, params(regex=pattern, n=20))
    assert all(re.fullmatch(pattern, text) for text in answers)
    assert len(set(answers)) > 5


async def test_answers_are_among_the_choices(engine: EngineClient):
    """Nothing else comes, and not always the same."""
    choices = ["yes", "no", "yes, but", "näh", "|", "a.c"]
    answers = await texts(engine, params(choice=choices, n=100))
    assert set(answers) <= set(choices)
    assert len(set(answers)) > 2


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= sum\nsum ::= number ("+" number){1,3}\nnumber ::= [1-9] [0-9]{0,2}\n',
        'start: number ("+" number){1,3}\nnumber: /[1-9][0-9]{0,2}/\n',
    ],
    ids=["gbnf", "lark"],
)
async def test_answers_follow_the_grammar(engine: EngineClient, grammar: str):
    """In either notation."""
    answers = await texts(engine, params(grammar=grammar, n=20))
    assert all(re.fullmatch(r"[1-9][0-9]{0,2}(\+[1-9][0-9]{0,2}){1,3}", text) for text in answers)


async def test_any_object_is_an_object(engine: EngineClient):
    """`json_object` asks for no more; the model rambles, so what came is checked for its start."""
    given = params(json_object=True, max_tokens=60, n=10)
    [output] = [out async for out in engine.generate("x", given, "r")]
    for answer in output.outputs:
        if answer.finish_reason is FinishReason.STOP:
            assert isinstance(json.loads(answer.text), dict)
        assert answer.text.startswith("{")


async def test_whitespace_comes_only_where_it_was_asked_for(engine: EngineClient):
    """And is bounded by its pattern."""
    schema = SCHEMAS["nested"]
    compact = await texts(engine, params(json=schema, n=5))
    assert all(
        re.sub(r'"[^"]*"', "", text).split() == [re.sub(r'"[^"]*"', "", text)] for text in compact
    )
    loose = await texts(engine, params(json=schema, whitespace_pattern=" ?", n=5))
    assert any(" " in re.sub(r'"[^"]*"', "", text) for text in loose)


async def test_the_trained_model_writes_json_too():
    """In the child process, with a tokenizer of longer tokens."""
    async with process(model=TINY, **LONG) as client:
        for name in ("flat", "unicode", "tool_calls"):
            for text in await texts(client, params(json=SCHEMAS[name], n=4)):
                check_json(text, SCHEMAS[name])


# -- beside others ---------------------------------------------------------------------------------


def requests():
    """Constrained in every way, and not at all, sharing prompts."""
    asked = [
        *({"json": schema} for schema in list(SCHEMAS.values())[::2]),
        *({"regex": pattern} for pattern in PATTERNS),
        {"choice": ["yes", "no"]},
        {"grammar": 'start: "a" /[b-z]{2,9}/'},
    ]
    made = []
    for number, constraint in enumerate(asked):
        prompt = list(range(100, 120)) + [number + 30] * (number % 5)
        for given in (params(seed=number, n=1 + number % 2, **constraint), None):
            plain = SamplingParams(
                seed=number, max_tokens=20, ignore_eos=True, output_kind=OutputKind.DELTA
            )
            made.append((prompt, given or plain))
    return made


REQUESTS = requests()


async def ask_all(engine: Bench):
    return await engine.ask_all(REQUESTS)


@pytest.fixture(scope="module")
def reference() -> list[list[list[int]]]:
    """Each request alone, without a cache."""

    async def ask_each():
        async with bench(WILD, enable_prefix_caching=False, **LONG) as engine:
            return [await engine.ask(request) for request in REQUESTS]

    return asyncio.run(ask_each())


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 128},
        {"max_num_batched_tokens": 16, "max_num_seqs": 16},
        {"max_model_len": 400, "num_gpu_blocks_override": 40},
    ],
    ids=["batched", "chunked", "preempted"],
)
async def test_the_same_tokens_whatever_runs_beside(reference, options):
    """With grammars and without, in one batch."""
    async with bench(WILD, **{**LONG, **options}) as engine:
        assert await ask_all(engine) == reference
        assert await ask_all(engine) == reference  # with a warm cache, and grammars that are kept
        is_tight = "num_gpu_blocks_override" in options
        assert ((await engine.load()).num_preemptions > 0) == is_tight


async def test_bad_grammars_disturb_nobody(engine: EngineClient):
    """Refused while others are served, whose answers are what they are alone."""
    alone = await texts(engine, params(json=SCHEMAS["flat"], n=3))
    bad = [{"regex": f"(a{number}"} for number in range(20)]
    results = await asyncio.gather(
        *(texts(engine, params(**constraint)) for constraint in bad),
        *(texts(engine, params(json=SCHEMAS["flat"], n=3)) for _ in range(5)),
        return_exceptions=True,
    )
    assert all(isinstance(result, BadRequest) for result in results[:20])
    assert results[20:] == [alone] * 5
    assert engine.num_active_requests == 0


async def test_an_abort_reaches_a_request_whose_grammar_is_not_ready(engine: EngineClient):
    """It ends as an aborted one, and the engine never hears of it."""
    heavy = params(json={"enum": [f"value {number}" for number in range(3000)]})

    async def ask():
        return [out async for out in engine.generate("x", heavy, "victim")]

    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    await engine.abort("victim")
    [output] = await task
    assert output.outputs[0].finish_reason is FinishReason.ABORT
    assert engine.num_active_requests == 0
