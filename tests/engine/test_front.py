"""The front half of a client against an engine that the test plays by hand."""

import asyncio
import time
from contextlib import aclosing

import pytest

from tests.busy import is_within, until
from tests.doubles.stepping import make_config
from weft.core.errors import BadRequest, EngineDead, GenerationError, Overloaded, Unavailable
from weft.core.observe.kv_feed import KvEventFeed
from weft.core.values.controls import STALL_S
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import AllBlocksCleared, KvEventBatch
from weft.core.values.types import FinishReason, OutputKind, SamplingParams, StructuredOutputsParams
from weft.engine.front.client import FrontClient
from weft.engine.ipc.messages import (
    Abort,
    Add,
    Failed,
    Pause,
    Ping,
    Ready,
    Reply,
    SequenceOutput,
    StepOutput,
    Stop,
)
from weft.model.open import open_model
from weft.text.tokenizer import Tokenizer

LOAD = EngineLoad(num_running=1)
MODEL = "embedded:random?vocab=300"


class HandClient(FrontClient):
    """Keeps what is sent; the test says what the engine answers."""

    def __init__(self, metrics=None, **overrides):
        config = make_config(vocab_size=300, **overrides)
        tokenizer = Tokenizer.from_files(open_model(MODEL).tokenizer_files)
        super().__init__(config, tokenizer, metrics)
        self.sent = []
        self._on_event(Ready(LOAD))

    def _send(self, command):
        self.sent.append(command)

    def shutdown(self, timeout=None):
        self._begin_shutdown(timeout)

    async def wait_closed(self):
        return

    def say(self, engine_id, token_ids=(), index=0, **news):
        """The engine's news of one answer."""
        output = SequenceOutput(engine_id=engine_id, index=index, token_ids=list(token_ids), **news)
        self._on_event(StepOutput(outputs=[output], load=LOAD))

    @property
    def engine_ids(self):
        """Ids of the requests that were sent."""
        return [command.request.engine_id for command in self.sent if isinstance(command, Add)]


@pytest.fixture
async def client():
    """The test plays its engine."""
    return HandClient()


async def begin(client, request_id="r", **params):
    """Start a request in a task; returns once it was sent."""
    merged = {"max_tokens": 50, "output_kind": OutputKind.DELTA, **params}

    async def read():
        stream = client.generate([65, 66], SamplingParams(**merged), request_id)
        async with aclosing(stream):
            return [output async for output in stream]

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    return task


async def test_a_full_queue_refuses_and_counts_every_answer():
    """n answers take n places; a place is free again when its request is done."""
    client = HandClient(max_num_queued_reqs=3)
    first = await begin(client, "a", n=2)
    with pytest.raises(Overloaded, match="max-num-queued-reqs"):
        await (await begin(client, "b", n=2))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    third = await begin(client, "c", n=3)
    assert not third.done()
    third.cancel()


async def test_a_full_queue_refuses_before_the_prompt_is_looked_at():
    """Nothing is done for a prompt that there is no place for, not even to find out what is wrong with it."""
    client = HandClient(max_num_queued_reqs=1)
    with client.preparing(1), pytest.raises(Overloaded):
        await anext(client.generate([10**6], SamplingParams(), "r"))
    with pytest.raises(BadRequest):
        await anext(client.generate([10**6], SamplingParams(), "r"))


async def test_queued_prompt_tokens_are_bounded_until_their_first_output():
    """A backlog of prompts refuses the next one; prefilled prompts do not count."""
    client = HandClient(max_num_queued_tokens=2)
    first = await begin(client, "a")
    with pytest.raises(Overloaded, match="max-num-queued-tokens"):
        await (await begin(client, "b"))
    client.say(client.engine_ids[0], [70])
    second = await begin(client, "c")
    assert len(client.engine_ids) == 2
    first.cancel()
    second.cancel()


async def test_outputs_that_come_while_nobody_reads_are_merged(client):
    """A slow reader gets one larger delta, not a queue of small ones (trap 14)."""
    task = await begin(client)
    (engine_id,) = client.engine_ids
    client.say(engine_id, [70])
    client.say(engine_id, [71])
    client.say(engine_id, [72], finish_reason=FinishReason.LENGTH)
    outputs = await task
    assert [output.outputs[0].token_ids for output in outputs] == [[70, 71, 72]]


async def test_a_stop_string_ends_the_answer_here_and_in_the_engine(client):
    """The engine knows no text, so it is told to stop that one answer, silently."""
    task = await begin(client, n=2, stop=["FG"])
    (engine_id,) = client.engine_ids
    client.say(engine_id, [70, 71, 72], index=1)  # "FGH"
    assert client.sent[-1] == Abort([engine_id], 1, is_silent=True)
    client.say(engine_id, [65], index=0, finish_reason=FinishReason.LENGTH)
    outputs = await task
    stopped = [c for o in outputs for c in o.outputs if c.index == 1][-1]
    assert (stopped.finish_reason, stopped.stop_reason) == (FinishReason.STOP, "FG")


async def test_an_engine_error_fails_that_request_alone(client):
    """The failed request raises the engine's sentence; its neighbour goes on."""
    bad, good = await begin(client, "bad"), await begin(client, "good")
    client.say(client.engine_ids[0], finish_reason=FinishReason.ERROR, error="row is not numbers")
    client.say(client.engine_ids[1], [70], finish_reason=FinishReason.LENGTH)
    with pytest.raises(GenerationError, match="row is not numbers"):
        await bad
    assert (await good)[-1].is_finished


async def test_death_fails_every_request_call_and_subscription(client):
    """Whoever waits for a dead engine learns so, and later calls are refused at once."""
    request = await begin(client)
    call = asyncio.create_task(client.reset_prefix_cache())
    subscription = asyncio.ensure_future(anext(client.subscribe_kv_events()))
    await asyncio.sleep(0)
    client._on_event(Failed("out of memory"))
    for waiting in (request, call, subscription):
        with pytest.raises(EngineDead, match="out of memory"):
            await waiting
    assert client.errored
    with pytest.raises(EngineDead):
        await client.check_health()
    with pytest.raises(EngineDead):
        await client.reset_mm_cache()
    with pytest.raises(EngineDead):
        await client.reset_encoder_cache()
    with pytest.raises(EngineDead):
        await (await begin(client, "late"))
    assert client.num_active_requests == 0


async def test_an_event_that_cannot_be_handled_is_the_engines_death(client):
    """Its requests fail at once, and the engine is stopped."""
    task = await begin(client)
    client._on_event(object())
    with pytest.raises(EngineDead, match="could not be handled"):
        await task
    assert client.errored
    assert client.sent[-1] == Stop(0.0)


async def test_a_pause_aborts_and_clears_the_cache_unless_it_is_to_do_otherwise(client):
    """As vLLM's does."""
    task = asyncio.create_task(client.pause_generation())
    await until(lambda: bool(client.sent))
    pause = client.sent[-1]
    assert pause == Pause(pause.call_id, "abort", clear_cache=True)
    client._on_event(Reply(pause.call_id))
    await task


async def test_an_engine_that_answers_nothing_is_unhealthy(client):
    """Health pings through the engine's mailbox and fails when the answer stays out; never by a request."""
    client._calls.last_event_at -= 5
    await client.check_health()
    (ping,) = [command for command in client.sent if isinstance(command, Ping)]
    for stamp in ("last_event_at", "_pinged_at"):  # time passes
        setattr(client._calls, stamp, getattr(client._calls, stamp) - STALL_S - 1)
    with pytest.raises(Unavailable, match="has not answered"):
        await client.check_health()
    client._on_event(Reply(ping.call_id, load=LOAD))
    await client.check_health()


async def test_load_of_a_busy_engine_is_that_of_its_last_step(client):
    """A long step does not make the load wait."""
    started = time.monotonic()
    assert await client.get_loads() == [LOAD]
    assert is_within(time.monotonic() - started, 5)


async def test_shutdown_refuses_new_requests_and_is_idempotent(client):
    """One Stop with the time to drain; then every request is refused as unavailable."""
    client.shutdown(timeout=7)
    client.shutdown(timeout=1)
    assert [c for c in client.sent if isinstance(c, Stop)] == [Stop(7)]
    with pytest.raises(Unavailable, match="shutting down"):
        await (await begin(client))
    with pytest.raises(Unavailable, match="shutting down"):
        client.subscribe_kv_events()
    assert client.is_running is False


GRAMMAR = StructuredOutputsParams(regex="[a-c]{2}")


async def test_a_shutdown_waits_for_requests_that_the_engine_does_not_have_yet(client):
    """A request whose grammar is being checked is open, and drained like those that the engine has."""
    task = await begin(client, structured_outputs=GRAMMAR)
    client.shutdown(timeout=60)
    assert not [c for c in client.sent if isinstance(c, Stop)]
    await until(lambda: client.engine_ids)
    (stop,) = [c for c in client.sent if isinstance(c, Stop)]
    assert client.sent.index(stop) > 0
    assert 0 < stop.timeout_s <= 60
    client.say(client.engine_ids[0], [97], finish_reason=FinishReason.LENGTH)
    assert [output.is_finished for output in await task] == [True]
    client._requests._grammars.close()


async def test_a_shutdown_does_not_wait_for_a_request_that_has_left(client):
    """The last request that the engine does not have leaves: nothing is to be waited for."""
    task = await begin(client, structured_outputs=GRAMMAR)
    client.shutdown(timeout=60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert isinstance(client.sent[-1], Stop)
    client._requests._grammars.close()


@pytest.mark.parametrize("timeout", [None, 0.001])
async def test_a_shutdown_without_time_aborts_what_the_engine_does_not_have(client, timeout):
    """It ends as requests do that the engine has: with "abort", and once."""
    task = await begin(client, structured_outputs=GRAMMAR)
    client.shutdown(timeout=timeout)
    (output,) = await task
    assert output.outputs[0].finish_reason is FinishReason.ABORT
    assert not client.engine_ids
    assert client.sent[-1] == Stop(0.0)
    client._requests._grammars.close()


async def test_an_abort_does_not_wait_for_the_check_of_a_grammar(client):
    """Whoever aborts has the end at once, however many grammars are checked before."""
    hostile = [StructuredOutputsParams(regex=f"{i}((a{{1,99}}){{1,99}}){{1,99}}") for i in range(4)]
    before = [await begin(client, "before", structured_outputs=one) for one in hostile]
    task = await begin(client, "r", structured_outputs=GRAMMAR)
    await client.abort("r")
    (output,) = await task
    assert output.outputs[0].finish_reason is FinishReason.ABORT
    assert not all(one.done() for one in before)
    client._die(EngineDead())
    await asyncio.gather(*before, return_exceptions=True)


async def test_a_stream_that_fails_ends_its_own_request_alone(client):
    """The other outputs of that step are delivered, and the engine stops the one that failed."""
    bad, good = await begin(client, "bad"), await begin(client, "good")
    bad_id, good_id = client.engine_ids
    outputs = [
        SequenceOutput(engine_id=bad_id, index=7, token_ids=[70]),  # there is no such answer
        SequenceOutput(engine_id=bad_id, index=0, token_ids=[70]),
        SequenceOutput(
            engine_id=good_id, index=0, token_ids=[70], finish_reason=FinishReason.LENGTH
        ),
    ]
    client._on_event(StepOutput(outputs=outputs, load=LOAD))
    assert [output.is_finished for output in await good] == [True]
    with pytest.raises(IndexError):
        await bad
    assert client.sent[-1] == Abort([bad_id], is_silent=True)
    assert client.num_active_requests == 0


async def test_a_request_id_may_be_used_twice_and_abort_ends_both(client):
    """The caller's id is a label: outputs never mix, abort means every request of that label (trap 15)."""
    tasks = [await begin(client, "same"), await begin(client, "same")]
    first, second = client.engine_ids
    assert first != second
    client.say(second, [72])
    await client.abort("same")
    outputs = [await task for task in tasks]
    assert [o[-1].outputs[0].finish_reason for o in outputs] == [FinishReason.ABORT] * 2
    assert [t for o in outputs[0] for t in o.outputs[0].token_ids] == []
    assert [t for o in outputs[1] for t in o.outputs[0].token_ids] == [72]


async def test_late_outputs_of_a_closed_request_are_dropped(client):
    """What was on its way when the reader left harms nobody."""
    task = await begin(client)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    client.say(client.engine_ids[0], [70], finish_reason=FinishReason.LENGTH)
    assert isinstance(client.sent[-1], Abort)
    assert client.num_active_requests == 0


def batch(number):
    """An event batch."""
    return KvEventBatch(sequence_number=number, timestamp=0.0, events=[AllBlocksCleared()])


async def test_a_late_subscriber_gets_what_is_buffered_and_then_what_is_new():
    """Replay from a sequence number, without a gap to the live batches."""
    feed = KvEventFeed()
    for number in range(5):
        feed.publish(batch(number))
    stream = feed.subscribe(3)
    seen = [(await anext(stream)).sequence_number for _ in range(2)]
    feed.publish(batch(5))
    seen.append((await anext(stream)).sequence_number)
    assert seen == [3, 4, 5]
    await stream.aclose()
