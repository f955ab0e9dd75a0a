"""A prompt that comes in pieces, answered piece by piece."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import msgspec
import pytest

from tests.busy import PATIENCE_S, until
from tests.doubles.fake_runner import FakeRunner, greedy_after
from tests.doubles.stepping import make_config
from weft.core.errors import BadRequest, EngineDead, Unsupported
from weft.core.values.types import FinishReason, OutputKind, SamplingParams, StreamingInput
from weft.engine.clients.local_client import LocalClient
from weft.engine.ipc.messages import Failed, Stop
from weft.model.open import open_model
from weft.text.tokenizer import Tokenizer

VOCAB = 300
TOKENIZER = Tokenizer.from_files(open_model(f"embedded:random?vocab={VOCAB}").tokenizer_files)
PIECES = [list(range(10, 21)), [30, 31], [40]]
PARAMS = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


@pytest.fixture
async def client():
    """An engine whose tokens are a function of the prefix."""
    config = make_config(vocab_size=VOCAB)
    engine = await LocalClient.start_with(FakeRunner(VOCAB), TOKENIZER, config)
    yield engine
    engine.shutdown()
    await engine.wait_closed()


async def given(*pieces, end=None):
    """These pieces, and then the end; or an exception."""
    for piece in pieces:
        yield piece if isinstance(piece, StreamingInput) else StreamingInput(piece)
    if end is not None:
        raise end


async def collect(client, inputs, params=PARAMS, **options):
    """All outputs."""
    return await all_of(client.generate(inputs, params, "r", **options))


def endings(outputs):
    """The last output of each answer."""
    return [output for output in outputs if output.outputs[0].finish_reason is not None]


async def until_answered(stream):
    """Read to the end of the first answer."""
    async for output in stream:
        if endings([output]):
            return


async def all_of(stream):
    """What is still to come."""
    async with aclosing(stream) as outputs:
        return [output async for output in outputs]


def expected():
    """Each piece's whole prompt, and its answer: what was answer before, but for the last token of it."""
    context, answers = [], []
    for piece in PIECES:
        prompt = [*context, *piece]
        answer = greedy_after(prompt, 5, VOCAB)
        answers.append((prompt, answer))
        context = [*prompt, *answer[:-1]]
    return answers


@pytest.mark.parametrize("kind", [OutputKind.CUMULATIVE, OutputKind.DELTA])
async def test_each_piece_continues_what_came_before(client, kind):
    """Its answer ends with a reason, and only the last of all is finished."""
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, output_kind=kind)
    outputs = await collect(client, given(*PIECES), params)
    assert [output.is_finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    answers: dict[tuple, list] = {}
    for output in outputs:
        answer = answers.setdefault(tuple(output.prompt_token_ids), [])
        new = output.outputs[0].token_ids
        answer[:] = [*answer, *new] if kind is OutputKind.DELTA else new
    assert [([*prompt], answer) for prompt, answer in answers.items()] == expected()
    assert all(
        output.outputs[0].finish_reason is FinishReason.LENGTH for output in endings(outputs)
    )


async def test_what_was_computed_is_found_again(client):
    """Between pieces the engine holds nothing for the session."""
    outputs = await collect(client, given(*PIECES))
    cached = [output.num_cached_tokens for output in endings(outputs)]
    assert cached[0] == 0
    assert all(cached[1:])
    assert (await client.get_loads())[0].num_held_blocks == 0


async def test_no_piece_is_no_output(client):
    """And no error."""
    assert await collect(client, given()) == []


async def test_a_session_that_waited_ends_with_an_empty_output(client):
    """Its input ended after its last answer had."""
    parked = asyncio.Event()

    async def late():
        yield StreamingInput(PIECES[0])
        await parked.wait()

    outputs = []
    async with aclosing(client.generate(late(), PARAMS, "r")) as stream:
        async for output in stream:
            outputs.append(output)
            if output.outputs[0].finish_reason is not None:
                parked.set()
    assert not outputs[-2].is_finished
    assert outputs[-1].is_finished
    assert outputs[-1].outputs[0].token_ids == []
    assert outputs[-1].outputs[0].finish_reason is FinishReason.LENGTH


async def test_pieces_may_bring_their_own_parameters(client):
    """Which count anew, and are those of the call again for the next."""
    own = StreamingInput(PIECES[1], SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True))
    outputs = endings(await collect(client, given(PIECES[0], own, PIECES[2])))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [5, 2, 5]


async def test_pieces_of_text_are_one_text(client):
    """Only the first is a beginning."""
    outputs = endings(await collect(client, given("ab", "cd")))
    assert outputs[1].prompt_token_ids[-2:] == TOKENIZER.encode("cd", add_special_tokens=False)


async def test_an_error_of_the_input_is_the_callers(client):
    """At once, though an answer is on its way; and the engine works no more on it."""
    await client.pause_generation(mode="keep")
    with pytest.raises(RuntimeError, match="mine"):
        await collect(client, given(PIECES[0], end=RuntimeError("mine")))
    await client.resume_generation()
    assert client.num_active_requests == 0


@pytest.mark.parametrize("is_parked", [True, False])
async def test_an_abort_ends_the_session(client, is_parked):
    """While it answers, and while it waits."""
    never = asyncio.Event()

    async def endless():
        yield StreamingInput(PIECES[0])
        await never.wait()

    stream = client.generate(endless(), PARAMS, "r")
    if is_parked:
        await until_answered(stream)
    else:
        await client.pause_generation(mode="keep")
    task = asyncio.create_task(all_of(stream))
    await until(lambda: client.num_active_requests == 1)
    await client.abort("r")
    outputs = await task
    assert outputs[-1].is_finished
    assert outputs[-1].outputs[0].finish_reason is FinishReason.ABORT
    assert client.num_active_requests == 0


async def test_an_abort_before_the_first_answer_ends_the_session(client):
    """With one finished output, though nothing was answered."""

    async def aborting():
        yield StreamingInput(PIECES[0])
        await client.abort("r")

    (output,) = await collect(client, aborting())
    assert output.is_finished
    assert output.outputs[0].finish_reason is FinishReason.ABORT


async def test_an_abort_meets_a_piece_that_is_being_prepared(client):
    """It is not answered first."""
    loop, gate, never = asyncio.get_running_loop(), threading.Event(), asyncio.Event()
    with ThreadPoolExecutor(1) as threads:
        loop.set_default_executor(threads)
        threads.submit(gate.wait)  # what is prepared beside the loop waits for this

        async def endless():
            yield StreamingInput("ab")
            await never.wait()

        params = msgspec.structs.replace(PARAMS, bad_words=["xy"])
        task = asyncio.create_task(collect(client, endless(), params))
        await until(lambda: threads._work_queue.qsize() > 0)
        await client.abort("r")
        gate.set()
        outputs = await task
    assert [output.outputs[0].token_ids for output in outputs] == [[]]
    assert outputs[0].is_finished
    assert outputs[0].outputs[0].finish_reason is FinishReason.ABORT


async def one_piece():
    """A piece, and no end."""
    yield StreamingInput(PIECES[0])
    await asyncio.Event().wait()


async def test_a_waiting_session_fails_with_the_engine(client):
    """It has nothing there that could fail."""
    stream = client.generate(one_piece(), PARAMS, "r")
    await until_answered(stream)
    client._on_event(Failed("out of memory"))
    with pytest.raises(EngineDead, match="out of memory"):
        await anext(stream)
    client._send(Stop(0))


@pytest.mark.parametrize("is_read_late", [False, True])
async def test_a_shutdown_ends_a_waiting_session(client, is_read_late):
    """As it ends what the engine has: with "abort", whenever its caller looks."""
    stream = client.generate(one_piece(), PARAMS, "r")
    await until_answered(stream)
    client.shutdown(60)
    if is_read_late:
        await client.wait_closed()
    (output,) = await all_of(stream)
    assert (output.is_finished, output.outputs[0].finish_reason) == (True, FinishReason.ABORT)


async def test_a_shutdown_lets_an_answer_of_a_session_finish(client):
    """What comes behind it is not answered."""
    outputs = client.generate(one_piece(), PARAMS, "r")
    first = await anext(outputs)
    client.shutdown(60)
    *answer, end = [first, *await all_of(outputs)]
    assert answer[-1].outputs[0].token_ids == expected()[0][1]
    assert (end.outputs[0].token_ids, end.outputs[0].finish_reason) == ([], FinishReason.ABORT)


async def test_a_shutdown_ends_a_session_behind_an_answer_that_nobody_has_read(client):
    """The engine may be gone before the caller looks: it gets the whole answer, and no error."""
    outputs = client.generate(one_piece(), PARAMS, "r")
    first = await anext(outputs)
    client.shutdown(60)
    await client.wait_closed()
    *answer, end = [first, *await all_of(outputs)]
    assert answer[-1].outputs[0].token_ids == expected()[0][1]
    assert (end.outputs[0].token_ids, end.outputs[0].finish_reason) == ([], FinishReason.ABORT)


async def test_closing_the_outputs_closes_the_input(client):
    """Nothing reads on behind the caller's back."""
    closed = asyncio.Event()

    async def endless():
        try:
            while True:
                yield StreamingInput([50])
        finally:
            closed.set()

    stream = client.generate(endless(), PARAMS, "r")
    await anext(stream)
    await stream.aclose()
    await asyncio.wait_for(closed.wait(), PATIENCE_S)
    assert client.num_active_requests == 0


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"n": 2}, "n"),
        ({"output_kind": OutputKind.FINAL_ONLY}, "output_kind"),
        ({"stop": ["x"]}, "stop"),
        ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    ],
)
async def test_what_a_session_cannot_do_is_refused(client, params, name):
    """By name."""
    with pytest.raises(BadRequest) as caught:
        await collect(client, given([5]), SamplingParams(**params))
    assert caught.value.parameter == name


async def test_a_session_takes_pieces_and_no_reasoning(client):
    """A bare prompt is no piece."""

    async def bare():
        yield [5]

    with pytest.raises(BadRequest, match="StreamingInput"):
        await collect(client, bare())
    with pytest.raises(Unsupported, match="reasoning_ended"):
        await collect(client, given([5]), reasoning_ended=True)
