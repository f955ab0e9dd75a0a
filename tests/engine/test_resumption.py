"""Requests that another engine continues: from every cut, the whole answer equals that of an undisturbed run."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from tests.contract.engines import MODEL, running_engine
from tests.doubles.picture_runner import PictureRunner, items_config
from tests.doubles.stepping import make_engine
from tests.engine.test_lora import adapter
from tests.engine.test_pictures import prompt_of
from weft.core.aio.failover import resumed
from weft.core.values.kv_transfer import GivenAnswer, Resumption
from weft.core.values.types import (
    OutputKind,
    PoolingParams,
    RepetitionDetectionParams,
    RequestOptions,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.engine.front.pooling_stream import PoolingStream
from weft.text.outputs.request_stream import RequestStream

# Bytes of a text that repeats itself, so that drafts are found.
PROMPT = list(b"the cat sat on the mat; the cat sat on the ")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
LONG = 24
CASES = {
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 3, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
    "penalties": {
        "seed": 4,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.6,
        "repetition_penalty": 1.3,
    },
    "three answers": {"seed": 5, "n": 3},
    "logprobs": {"seed": 6, "logprobs": 3},
    "logprobs of three answers": {"seed": 6, "n": 3, "logprobs": 2, "prompt_logprobs": 2},
    "prompt logprobs": {"temperature": 0.0, "prompt_logprobs": 2, "logprobs": 1},
    "ends not before": {"seed": 7, "min_tokens": 12, "stop_token_ids": list(range(0, 400, 3))},
    "ends": {"seed": 8, "stop_token_ids": list(range(0, 400, 23)), "n": 3},
    "bias and bad words": {
        "temperature": 0.0,
        "logit_bias": {100: 4.0, 101: 3.9, 102: 3.8},
        "bad_words": ["de"],
    },
    "allowed tokens": {"seed": 9, "allowed_token_ids": [97, 98, 99, 100]},
    "repetition": {
        "temperature": 0.0,
        "allowed_token_ids": [97],
        "repetition_detection": RepetitionDetectionParams(max_pattern_size=2, min_count=9),
    },
    "stop strings": {"seed": 1, "allowed_token_ids": [97, 98], "stop": ["aab", "bbb"], "n": 3},
    "stop strings not before": {
        "seed": 1,
        "allowed_token_ids": [97, 98],
        "stop": ["ab"],
        "min_tokens": 9,
        "include_stop_str_in_output": True,
    },
    "regex": {"seed": 2, "structured_outputs": StructuredOutputsParams(regex="(ab|cd|ef){2,9}")},
    "schema": {
        "seed": 2,
        "n": 2,
        "structured_outputs": StructuredOutputsParams(json=SCHEMA),
    },
}


def nothing():
    """Called when the request advances."""


class Recorded(RequestStream):
    """Keeps the engine's outputs."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.pushed = []

    def push(self, output):
        self.pushed.append(output)
        return super().push(output)


def final(output):
    """An output without the counts that depend on caches and drafts."""
    answers = [
        msgspec.structs.replace(answer, num_draft_tokens=0, num_accepted_tokens=0)
        for answer in output.outputs
    ]
    return msgspec.structs.replace(output, outputs=answers, num_cached_tokens=0)


async def last(client, request, stream):
    """The last output of a request, and of the rest of one."""
    async with aclosing(client.run_part(request, stream, None, nothing)) as outputs:
        async for output in outputs:
            if output.is_finished:
                return output
    raise AssertionError


async def undisturbed(client, params, prompt=PROMPT, **options):
    """A request, what the engine said of it, and its last output."""
    given = {"max_tokens": LONG, "output_kind": OutputKind.FINAL_ONLY, **params}
    options = RequestOptions(request_id="r", **options)
    prompt = {"prompt_token_ids": prompt}
    request = await client.prepare(prompt, SamplingParams(**given), options)
    stream = Recorded(request, client.renderer)
    return request, final(await last(client, request, stream)), stream.pushed


async def cut_at(place, client, request, pushed):
    """The last output if the first engine ends after so many outputs."""
    stream = RequestStream(request, client.renderer)
    for output in pushed[:place]:
        stream.push(output)
    if stream.is_finished:  # the engine did not know yet that all answers had their stop strings
        return final(stream.pop())
    rest = resumed(request, stream)
    rest = msgspec.structs.replace(rest, engine_id=f"{rest.engine_id}/{place}")
    return final(await last(client, rest, stream))


async def check_all_cuts(client, params, **options):
    """Cuts the request at every place, and lets the same engine go on, with all rests in one batch."""
    request, whole, pushed = await undisturbed(client, params, **options)
    assert len(pushed) > 4
    places = range(len(pushed))
    found = await asyncio.gather(*(cut_at(place, client, request, pushed) for place in places))
    assert [place for place in places if found[place] != whole] == []


@pytest.fixture(
    params=[
        {"max_num_batched_tokens": 16},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    ],
    ids=["chunks", "drafts"],
)
def how(request):
    """Options of the engine."""
    return request.param


async def test_every_cut_gives_the_undisturbed_answer(how):
    """Text, tokens, logprobs and reasons are equal, whatever rules the sampling."""
    async with running_engine(**how) as client:
        for name, params in CASES.items():
            try:
                await check_all_cuts(client, params)
            except AssertionError as error:
                raise AssertionError(name) from error


@pytest.mark.parametrize("budget", [None, 5])
async def test_reasoning_goes_on_where_it_was(budget):
    """The budget of the reasoning counts the tokens of the first engine too."""
    params = {
        "seed": 3,
        "allowed_token_ids": [97, 98, 99],
        "structured_outputs": StructuredOutputsParams(regex="[xyz]{6}"),
        "thinking_token_budget": budget,
    }
    async with running_engine() as client:
        await check_all_cuts(
            client, params, reasoning_parser_kwargs={"end": "cab"}, reasoning_ended=False
        )


async def test_an_adapter_goes_on_with_its_own_weights(tmp_path):
    """The rest is computed with the adapter, which may have another id there."""
    async with running_engine(enable_lora=True) as client:
        await check_all_cuts(client, {"seed": 1}, lora_request=adapter(tmp_path, "a"))


async def test_deltas_have_no_gap_and_no_repetition():
    """The reader gets each token and each piece of text once."""
    params = {"seed": 2, "output_kind": OutputKind.DELTA, "logprobs": 1, "n": 2}
    async with running_engine() as client:
        request, _, pushed = await undisturbed(client, params)
        whole = RequestStream(request, client.renderer)
        for output in pushed:
            whole.push(output)
        wanted = joined([whole.pop()])
        for place in range(0, len(pushed), 3):
            stream, outputs = RequestStream(request, client.renderer), []
            for output in pushed[:place]:
                stream.push(output)
                outputs.append(stream.pop())
            rest = resumed(request, stream)
            async with aclosing(client.run_part(rest, stream, None, nothing)) as late:
                outputs += [output async for output in late]
            assert joined(outputs) == wanted


def joined(outputs):
    """The deltas of each answer, put together."""
    answers = {}
    for output in outputs:
        for answer in output.outputs:
            text, token_ids, logprobs = answers.get(answer.index, ("", [], []))
            answers[answer.index] = (
                text + answer.text,
                token_ids + answer.token_ids,
                logprobs + list(answer.logprobs),
            )
    return answers


async def test_a_pooled_prompt_begins_anew():
    """It has no tokens to go on with."""
    async with running_engine(model=MODEL, runner="pooling") as client:
        options = RequestOptions(request_id="r")
        request = await client.prepare({"prompt_token_ids": PROMPT}, PoolingParams(), options)
        outputs = []
        for one in (request, resumed(request, PoolingStream(request))):
            stream = PoolingStream(one)
            async with aclosing(client.run_part(one, stream, None, nothing)) as results:
                outputs += [output.data async for output in results]
    assert outputs[0] == outputs[1]


def test_pictures_are_computed_again():
    """The rest of an answer about pictures is that of the undisturbed one."""
    token_ids, items = prompt_of(1, 2)

    def engine():
        return make_engine(PictureRunner(), items_config=items_config())

    whole = engine().finish("whole", token_ids, items=items, max_tokens=6).token_ids
    for place in range(6):
        resumption = Resumption(answers=[GivenAnswer(token_ids=whole[:place])])
        rest = engine().finish("rest", token_ids, items=items, max_tokens=6, resumption=resumption)
        assert [*whole[:place], *rest.token_ids] == whole


def test_a_resumed_request_runs_before_new_ones():
    """Its reader has waited already; it is also the last to be preempted."""
    engine = make_engine(max_num_seqs=1)
    for name in ("new", "newer"):
        engine.submit(name, [1, 2, 3], max_tokens=4)
    resumption = Resumption(answers=[GivenAnswer(token_ids=[4])])
    engine.submit("resumed", [1, 2, 3], max_tokens=4, resumption=resumption)
    order = [sequence.request.engine_id for sequence in engine.scheduler.open_sequences()]
    assert order == ["resumed", "new", "newer"]
    numbers = [sequence.number for sequence in engine.scheduler.open_sequences()]
    assert numbers == [2, 0, 1]
    engine.run()
    engine.scheduler.check()
