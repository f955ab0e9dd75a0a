"""What every `EngineClient` promises, whatever is behind it."""

import asyncio
import re
from contextlib import aclosing

import pytest
import pytest_asyncio

from tests.busy import PATIENCE_S, until
from tests.contract.engines import ROOM, kinds, shared, until_idle
from weft.core.errors import BadRequest, ContextLengthExceeded, Unsupported
from weft.core.values.controls import PauseMode
from weft.core.values.logprobs import FlatLogprobs
from weft.core.values.types import (
    FinishReason,
    OutputKind,
    PoolingParams,
    RepetitionDetectionParams,
    RequestOptions,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.core.values.weight_transfer import WeightTransferUpdateRequest

PROMPT = {"prompt_token_ids": list(range(100, 140))}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
# As long as the context lets it be: aborts are seen by the reason. That work stops for one who has
# left is pinned in `tests/faults/test_leaving.py`, where the engine takes no step unasked.
ENDLESS = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines():
    """With room for an answer that takes its time."""
    async with shared(**ROOM) as lent:
        yield lent


@pytest_asyncio.fixture(loop_scope="module", params=kinds())
async def engine(request, engines):
    """Each client in turn."""
    async with engines(request.param) as client:
        yield client


@pytest_asyncio.fixture(
    loop_scope="module",
    params=kinds("local", "process", "data_parallel", "nodes", "api_server", "fake"),
)
async def controlled(request, engines):
    """The clients that can be paused; the wire has no call for it."""
    async with engines(request.param) as client:
        yield client


@pytest_asyncio.fixture(
    loop_scope="module",
    params=kinds("local", "process", "data_parallel", "nodes", "api_server", "rpc"),
)
async def constrained(request, engines):
    """The clients with an engine behind them that follows grammars."""
    async with engines(request.param) as client:
        yield client


@pytest_asyncio.fixture(
    loop_scope="module", params=kinds("local", "process", "data_parallel", "nodes", "api_server")
)
async def in_process(request, engines):
    """The clients without a wire that has no field for some parameters."""
    async with engines(request.param) as client:
        yield client


def params(**changes):
    """Greedy parameters with changes."""
    base = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
    return SamplingParams(**{**base, **changes})


async def collect(engine, sampling_params, request_id="r", prompt=PROMPT, **options):
    """All outputs of one request."""
    async with aclosing(engine.generate(prompt, sampling_params, request_id, **options)) as outputs:
        return [output async for output in outputs]


async def test_exactly_one_output_is_the_last(engine):
    """The stream ends after the one finished output."""
    outputs = await collect(engine, GREEDY)
    assert [output.is_finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].outputs[0].finish_reason is FinishReason.LENGTH


async def test_output_kinds_say_the_same_thing(engine):
    """Deltas add up to the cumulative answer, which is the final one."""
    final = await collect(engine, params(output_kind=OutputKind.FINAL_ONLY))
    whole = await collect(engine, params(output_kind=OutputKind.CUMULATIVE))
    deltas = await collect(engine, params(output_kind=OutputKind.DELTA))
    added = [token for output in deltas for c in output.outputs for token in c.token_ids]
    assert len(final) == 1
    assert final[0].outputs[0].token_ids == whole[-1].outputs[0].token_ids == added
    assert len(added) == 12


async def test_the_same_request_gives_the_same_tokens(engine):
    """Alone or beside others, the first time or with a warm cache."""
    alone = (await collect(engine, GREEDY))[-1]
    beside = await asyncio.gather(*(collect(engine, GREEDY, f"r{i}") for i in range(4)))
    assert {tuple(o[-1].outputs[0].token_ids) for o in beside} == {
        tuple(alone.outputs[0].token_ids)
    }


async def test_every_answer_of_n_is_delivered(engine):
    """n answers, each with its index and its own end."""
    outputs = await collect(engine, params(n=3, output_kind=OutputKind.FINAL_ONLY))
    assert [c.index for c in outputs[0].outputs] == [0, 1, 2]
    assert all(c.finish_reason is FinishReason.LENGTH for c in outputs[0].outputs)


async def test_a_stop_token_is_named_and_kept(engine):
    """The stop token's id is in the ids and is the reason."""
    first = (await collect(engine, GREEDY))[-1].outputs[0].token_ids[2]
    outputs = await collect(engine, params(stop_token_ids=[first]))
    assert outputs[-1].outputs[0].token_ids[-1] == first
    assert outputs[-1].outputs[0].stop_reason == first


async def test_logprobs_align_with_tokens(engine):
    """One entry a token, the sampled one in it."""
    outputs = await collect(engine, params(logprobs=2, output_kind=OutputKind.FINAL_ONLY))
    answer = outputs[0].outputs[0]
    assert len(answer.logprobs) == len(answer.token_ids)
    pairs = zip(answer.token_ids, answer.logprobs, strict=True)
    assert all(token in entry for token, entry in pairs)


async def test_logprobs_come_only_where_they_were_asked_for(engine):
    """Of the prompt and of the answer; None says that there are none."""
    outputs = await collect(engine, GREEDY)
    assert [output.prompt_logprobs for output in outputs] == [None] * len(outputs)
    assert {answer.logprobs for output in outputs for answer in output.outputs} == {None}


async def test_flat_logprobs_say_the_same(constrained):
    """In another container, of the prompt too; under every output kind."""
    wanted = {"logprobs": 2, "prompt_logprobs": 1, "output_kind": OutputKind.FINAL_ONLY}
    usual = (await collect(constrained, params(**wanted)))[0]
    flat = (await collect(constrained, params(**wanted, flat_logprobs=True)))[0]
    assert isinstance(flat.outputs[0].logprobs, FlatLogprobs)
    assert flat.outputs[0].logprobs == usual.outputs[0].logprobs
    assert isinstance(flat.prompt_logprobs, FlatLogprobs)
    assert flat.prompt_logprobs == usual.prompt_logprobs
    deltas = await collect(
        constrained, params(logprobs=2, flat_logprobs=True, output_kind=OutputKind.DELTA)
    )
    rows = [row for output in deltas for row in output.outputs[0].logprobs]
    assert rows == usual.outputs[0].logprobs


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"json": {"enum": ["a", "é", 5]}}, '"a"|"é"|5'),
        ({"regex": "[a-c]{2}"}, "[a-c]{2}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'root ::= "x" [0-9]'}, "x[0-9]"),
        (
            {
                "structural_tag": '{"type": "structural_tag", "format": {"type": "tag", '
                '"begin": "<f>", "content": {"type": "regex", "pattern": "[a-c]{2}"}, "end": "</f>"}}'
            },
            "<f>[a-c]{2}</f>",
        ),
    ],
)
async def test_answers_have_the_form_that_was_asked_for(constrained, asked, pattern):
    """And end with "stop" where it is complete, each of the n."""
    wild = SamplingParams(
        n=3, max_tokens=50, seed=5, logprobs=3, structured_outputs=StructuredOutputsParams(**asked)
    )
    answers = (await collect(constrained, wild))[-1].outputs
    assert [answer.finish_reason for answer in answers] == [FinishReason.STOP] * 3
    assert all(re.fullmatch(pattern, answer.text) for answer in answers)
    assert all(len(answer.logprobs) == len(answer.token_ids) for answer in answers)


@pytest.mark.parametrize(
    "asked",
    [
        {"json": {"type": 1}},
        {"json": {"$ref": "#"}},
        {"regex": "(a"},
        {"regex": "a{1000000}"},
        {"grammar": "start: " + "(" * 30_000},
        {"grammar": "root ::= nothing"},
        {"choice": [""]},
        {"structural_tag": "{}"},
    ],
    ids=range(8),
)
async def test_a_form_that_cannot_be_is_refused_by_name(constrained, asked):
    """The request alone: the next one is answered."""
    wanted = params(structured_outputs=StructuredOutputsParams(**asked))
    [name] = asked
    with pytest.raises(BadRequest, match=name):
        await collect(constrained, wanted)
    assert (await collect(constrained, GREEDY))[-1].is_finished
    await until_idle(constrained)


async def test_the_form_begins_behind_a_thought(constrained):
    """Which its own text ends; at once where it has ended in the prompt, or is not to be waited for."""
    asked = StructuredOutputsParams(regex="[a-c]{3}")
    wanted = params(structured_outputs=asked, logit_bias={ord("z"): 100.0})
    marker = {"reasoning_parser_kwargs": {"end": "zz"}}
    texts = [
        (await collect(constrained, wanted, prompt=prompt, **how))[-1].outputs[0].text
        for prompt, how in [
            (PROMPT, marker),
            (PROMPT, {**marker, "reasoning_ended": True}),
            ([*b"zz "], marker),
        ]
    ]
    assert [text[:2] for text in texts if len(text) == 5] == ["zz"]
    assert [len(text) for text in texts] == [5, 3, 3]
    with pytest.raises(BadRequest, match="reasoning_parser_kwargs"):
        await collect(constrained, wanted, reasoning_ended=False)


async def test_bad_words_do_not_come(in_process):
    """Nor does what was said over and over, for long."""
    usual = (await collect(in_process, GREEDY))[-1].outputs[0]
    text = usual.text[:1]
    spared = await collect(in_process, params(bad_words=[text]))
    assert spared[-1].outputs[0].token_ids != usual.token_ids
    assert text not in spared[-1].outputs[0].text
    watch = RepetitionDetectionParams(max_pattern_size=4, min_count=3)
    stuck = params(allowed_token_ids=[5], max_tokens=50, repetition_detection=watch)
    answer = (await collect(in_process, stuck))[-1].outputs[0]
    assert (len(answer.token_ids), answer.finish_reason) == (3, FinishReason.REPETITION)


async def test_chosen_ids_are_scored(in_process):
    """Each of them, beside the sampled token."""
    wanted = params(logprob_token_ids=[7, 300], output_kind=OutputKind.FINAL_ONLY, max_tokens=3)
    answer = (await collect(in_process, wanted))[-1].outputs[0]
    sampled = [{token, 7, 300} for token in answer.token_ids]
    assert [set(position) for position in answer.logprobs] == sampled


async def test_a_stream_interval_makes_fewer_outputs(in_process):
    """The first token comes at once, the end when it comes, and nothing is lost."""
    wanted = params(stream_interval=5, output_kind=OutputKind.DELTA)
    outputs = await collect(in_process, wanted)
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    assert sum(lengths) == 12
    assert all(length >= 5 for length in lengths[1:-1])  # more, where we were slow to listen


async def test_abort_ends_a_request_with_what_it_has(engine):
    """The generator ends in one finished output of reason "abort"."""
    outputs = []
    async with aclosing(engine.generate(PROMPT, ENDLESS, "victim")) as stream:
        async for output in stream:
            outputs.append(output)
            await engine.abort("victim")
    assert outputs[-1].is_finished
    assert outputs[-1].outputs[0].finish_reason is FinishReason.ABORT
    await until_idle(engine)


async def test_abort_is_by_exact_id(engine):
    """A prefix of a live id, an unknown id and no id at all touch nobody."""
    task = asyncio.create_task(collect(engine, GREEDY, "live-1"))
    await engine.abort("live")
    await engine.abort([])
    await engine.abort(["no such", "live-"])
    assert (await task)[-1].outputs[0].finish_reason is FinishReason.LENGTH


async def test_closing_the_generator_aborts_the_request(engine):
    """A reader who leaves frees what the engine held."""
    async with aclosing(engine.generate(PROMPT, ENDLESS, "left")) as stream:
        await anext(stream)
    await until_idle(engine)
    assert engine.num_active_requests == 0


async def test_cancelling_before_the_first_output_aborts_the_request(engine):
    """Also while nothing has come yet."""
    task = asyncio.create_task(collect(engine, ENDLESS, "early"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(engine)
    assert engine.num_active_requests == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_p": -33.0}, r"top_p must be in \(0, 1\], got -33.0"),
        ({"n": 0}, "n must be"),
        ({"stop_token_ids": [10_000]}, "stop_token_ids"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
    ],
)
async def test_bad_parameters_are_refused_by_name(engine, changes, message):
    """A refusal names the parameter, and the next request is served."""
    with pytest.raises(BadRequest, match=message):
        await collect(engine, params(**changes))
    assert len((await collect(engine, GREEDY))[-1].outputs[0].token_ids) == 12


@pytest.mark.parametrize("token_ids", [[], [-1], [400_000], [5] * 20_000])
async def test_bad_prompts_are_refused(engine, token_ids):
    """Empty, outside the vocabulary, beyond the context: refused, and the next request is served."""
    with pytest.raises(BadRequest):
        await collect(engine, GREEDY, prompt={"prompt_token_ids": token_ids})
    assert len((await collect(engine, GREEDY))[-1].outputs[0].token_ids) == 12


async def test_a_prompt_beyond_the_context_is_told_with_counts(engine):
    """The error says how long the prompt is and how long it may be."""
    most = engine.model_config.max_model_len
    given = most + 44
    with pytest.raises(BadRequest, match=rf"{most}.*{given}|{given}.*{most}") as caught:
        await collect(engine, GREEDY, prompt={"prompt_token_ids": [5] * given})
    assert isinstance(caught.value, BadRequest | ContextLengthExceeded)


async def test_health_and_tasks_are_told(engine):
    """A living engine raises nothing and generates."""
    await engine.check_health()
    assert engine.is_running
    assert not engine.errored
    assert "generate" in await engine.get_supported_tasks()
    assert await engine.is_paused() is False


@pytest.mark.parametrize("traceparent", [f"00-{'ab' * 16}-{'cd' * 8}-00", "nonsense", "\u00e9"])
async def test_trace_headers_change_no_answer(constrained, traceparent):
    """Wherever they lead: what cannot be read or passed on is as if it were not there."""
    usual = (await collect(constrained, GREEDY))[-1]
    headers = {"traceparent": traceparent, "tracestate": "a=1"}
    traced = (await collect(constrained, GREEDY, trace_headers=headers))[-1]
    assert traced.outputs[0].token_ids == usual.outputs[0].token_ids


async def test_load_is_of_this_engine(engine):
    """An idle engine runs nothing, and has room."""
    await collect(engine, GREEDY)
    await until_idle(engine)
    for load in await engine.get_loads():
        assert load.max_total_tokens > 0
        assert load.token_usage == 0.0


async def test_the_prefix_cache_can_be_dropped(engine):
    """True when nothing was in the way."""
    await collect(engine, GREEDY)
    await until_idle(engine)
    assert await engine.reset_prefix_cache() is True


async def test_a_prepared_request_runs_as_asked(engine):
    """Checked once, and run as it is: the call with all arguments is these two."""
    options = RequestOptions(request_id="prepared", prompt_text="label")
    request = await engine.prepare(PROMPT, GREEDY, options)
    outputs = [output async for output in engine.run(request)]
    asked = await collect(engine, GREEDY)
    assert (request.request_id, request.prompt) == ("prepared", "label")
    assert outputs[-1].is_finished
    assert outputs[-1].outputs[0].token_ids == asked[-1].outputs[0].token_ids


async def test_what_is_not_offered_is_refused_by_name(engine):
    """`Unsupported` names the method."""
    with pytest.raises(Unsupported, match="encode"):
        await anext(engine.encode(PROMPT, PoolingParams(), "e"))
    with pytest.raises(Unsupported, match="update_weights"):
        await engine.update_weights(WeightTransferUpdateRequest({}))
    for name in ("start_profile", "stop_profile"):
        with pytest.raises(Unsupported, match=name):
            await getattr(engine, name)()


async def test_pause_abort_ends_what_is_open_and_queues_what_comes(controlled):
    """Mode "abort": partial outputs now; new requests wait for resume."""
    stream = controlled.generate(PROMPT, ENDLESS, "open")
    await anext(stream)
    await controlled.pause_generation(mode=PauseMode.ABORT)
    rest = [output async for output in stream]
    assert rest[-1].outputs[0].finish_reason is FinishReason.ABORT
    waiting = asyncio.create_task(collect(controlled, GREEDY, "later"))
    await until(lambda: controlled.num_active_requests == 1)
    assert not waiting.done()
    assert await controlled.is_paused()
    await controlled.resume_generation()
    assert len((await waiting)[-1].outputs[0].token_ids) == 12


async def test_pause_keep_freezes_and_resume_goes_on(controlled):
    """Mode "keep": no output while paused, and the same tokens in the end, cache dropped or not."""
    expected = (await collect(controlled, GREEDY))[-1].outputs[0].token_ids
    task = asyncio.create_task(collect(controlled, GREEDY, "frozen"))
    await asyncio.sleep(0)
    await controlled.pause_generation(mode="keep", clear_cache=True)
    await controlled.resume_generation()
    assert (await task)[-1].outputs[0].token_ids == expected


@pytest.mark.parametrize(
    "how", [{"mode": PauseMode.WAIT}, {"wait_for_inflight_requests": True}], ids=["mode", "older"]
)
async def test_pause_wait_returns_when_what_was_open_has_ended(controlled, how):
    """Mode "wait", in both spellings: nothing is cut short, and what comes later waits for resume."""
    running = controlled.generate(PROMPT, params(max_tokens=60, n=2), "running")
    outputs = [await anext(running)]
    pausing = asyncio.create_task(controlled.pause_generation(**how))
    outputs += [output async for output in running]
    async with asyncio.timeout(PATIENCE_S):
        await pausing
    reasons = [answer.finish_reason for answer in outputs[-1].outputs]
    assert reasons == [FinishReason.LENGTH] * 2
    assert await controlled.is_paused()
    later = asyncio.create_task(collect(controlled, GREEDY, "later"))
    await asyncio.wait({later}, timeout=0.05)
    assert not later.done()
    await controlled.resume_generation()
    assert len((await later)[-1].outputs[0].token_ids) == 12


async def test_pause_wait_of_an_idle_engine_returns(controlled):
    """There is nothing to wait for."""
    async with asyncio.timeout(PATIENCE_S):
        await controlled.pause_generation(mode=PauseMode.WAIT)
    await controlled.resume_generation()
    assert (await collect(controlled, GREEDY))[-1].is_finished


async def test_a_paused_engine_counts_as_sleeping(controlled):
    """Nothing is scheduled, which is what callers ask."""
    assert await controlled.is_sleeping() is False
    await controlled.pause_generation()
    assert await controlled.is_sleeping() is True
    await controlled.resume_generation()
    assert await controlled.is_sleeping() is False


async def test_an_unknown_pause_mode_is_refused(controlled):
    """A ValueError that names the mode, and nothing is paused."""
    with pytest.raises(ValueError, match="often"):
        await controlled.pause_generation(mode="often")
    assert await controlled.is_paused() is False


async def test_abort_works_while_paused(controlled):
    """A queued request of a paused engine can be ended."""
    await controlled.pause_generation()
    task = asyncio.create_task(collect(controlled, GREEDY, "queued"))
    await until(lambda: controlled.num_active_requests == 1)
    await controlled.abort("queued")
    assert (await task)[-1].outputs[0].finish_reason is FinishReason.ABORT
    await controlled.resume_generation()
