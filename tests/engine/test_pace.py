"""When readers are woken: at once, or together with what comes within the interval."""

import asyncio
from contextlib import aclosing

from hypothesis import given
from hypothesis import strategies as st

from tests.busy import PATIENCE_S
from tests.engine.test_front import HandClient, begin
from weft.core.values.types import FinishReason, OutputKind, SamplingParams
from weft.engine.front.open_requests import Pace

INTERVAL_S = 0.025


class HandLoop:
    """A clock that the test turns, and the calls that are due when it does."""

    def __init__(self):
        self.now = 100.0
        self.calls = []
        self.num_timers = 0

    def time(self):
        return self.now

    def call_at(self, when, callback):
        self.num_timers += 1
        call = HandTimer(when, callback, self)
        self.calls.append(call)
        return call

    def turn(self, seconds):
        """Let time pass, and call what is due on its way."""
        end = self.now + seconds
        while due := [call for call in self.calls if call.when <= end]:
            call = min(due, key=lambda call: call.when)
            self.calls.remove(call)
            self.now = max(self.now, call.when)
            call.callback()
        self.now = end


class HandTimer:
    """One call to come."""

    def __init__(self, when, callback, loop):
        self.when, self.callback, self.loop = when, callback, loop

    def cancel(self):
        self.loop.calls.remove(self)


def paced(interval_s=INTERVAL_S):
    """A client whose clock the test turns."""
    client, loop = HandClient(), HandLoop()
    client._requests._pace = Pace(interval_s, loop)
    return client, loop


class Reader:
    """One request and what its reader has received of it, output by output."""

    def __init__(self, client, request_id="r", **params):
        self.outputs = []
        self._client = client
        self._params = {"max_tokens": 50, "output_kind": OutputKind.DELTA, **params}
        self.task = asyncio.create_task(self._read(request_id))

    async def _read(self, request_id):
        stream = self._client.generate([65, 66], SamplingParams(**self._params), request_id)
        async with aclosing(stream):
            async for output in stream:
                self.outputs.append(output)

    @property
    def received(self):
        """The tokens of each output."""
        return [answer.token_ids for output in self.outputs for answer in output.outputs]


async def turns():
    """Let every reader read."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_the_first_token_leaves_at_once():
    """However soon after another stream's."""
    client, _ = paced()
    first, second = Reader(client, "a"), Reader(client, "b")
    await turns()
    client.say(client.engine_ids[0], [70])
    await turns()
    client.say(client.engine_ids[1], [71])
    await turns()
    assert (first.received, second.received) == ([[70]], [[71]])
    first.task.cancel()
    second.task.cancel()


async def test_tokens_within_the_interval_leave_together_when_it_is_over():
    """Counted from what was told last, not from what came first."""
    client, loop = paced()
    reader = Reader(client)
    await turns()
    [engine_id] = client.engine_ids
    for token_id in (70, 71, 72):
        client.say(engine_id, [token_id])
        await turns()
        loop.turn(0.008)
    assert reader.received == [[70]]
    loop.turn(0.002)
    await turns()
    assert reader.received == [[70], [71, 72]]
    reader.task.cancel()


async def test_a_model_slower_than_the_interval_is_never_waited_for():
    """Every token is there without the clock's help."""
    client, loop = paced()
    reader = Reader(client)
    await turns()
    for token_id in range(70, 75):
        client.say(client.engine_ids[0], [token_id])
        await turns()
        assert reader.received[-1] == [token_id]
        loop.turn(0.026)
    assert loop.num_timers == 0
    reader.task.cancel()


async def test_without_an_interval_every_token_leaves_by_itself():
    """`--stream-interval-ms 0`."""
    client, loop = paced(0.0)
    reader = Reader(client)
    await turns()
    for token_id in range(70, 75):
        client.say(client.engine_ids[0], [token_id])
        await turns()
    assert reader.received == [[70], [71], [72], [73], [74]]
    assert loop.num_timers == 0
    reader.task.cancel()


async def test_the_end_leaves_at_once_with_all_that_waited():
    """A reader of a whole answer does not wait for a clock."""
    client, loop = paced()
    reader = Reader(client)
    await turns()
    [engine_id] = client.engine_ids
    client.say(engine_id, [70])
    await turns()
    client.say(engine_id, [71])
    client.say(engine_id, [72], finish_reason=FinishReason.LENGTH)
    await reader.task
    assert reader.received == [[70], [71, 72]]
    assert reader.outputs[-1].is_finished
    loop.turn(1.0)


async def test_an_abort_and_an_error_leave_at_once():
    """Neither waits for what is waiting."""
    client, _ = paced()
    aborted, failed = Reader(client, "a"), Reader(client, "b")
    await turns()
    for engine_id in client.engine_ids:
        client.say(engine_id, [70])
    await turns()
    for engine_id in client.engine_ids:
        client.say(engine_id, [71])
    await client.abort("a")
    client.say(client.engine_ids[1], finish_reason=FinishReason.ERROR, error="no numbers")
    await asyncio.wait({aborted.task, failed.task}, timeout=PATIENCE_S)
    assert aborted.received == [[70], [71]]
    assert aborted.outputs[-1].outputs[0].finish_reason is FinishReason.ABORT
    assert "no numbers" in str(failed.task.exception())


async def test_one_timer_serves_all_streams():
    """However many wait."""
    client, loop = paced()
    readers = [Reader(client, f"r{number}") for number in range(20)]
    await turns()
    for token_id in (70, 71, 72):
        for engine_id in client.engine_ids:
            client.say(engine_id, [token_id])
        await turns()
        loop.turn(0.005)
    assert len(loop.calls) == loop.num_timers == 1
    loop.turn(INTERVAL_S)
    await turns()
    assert [reader.received for reader in readers] == [[[70], [71, 72]]] * 20
    for reader in readers:
        reader.task.cancel()


async def test_a_reader_that_left_is_not_waited_for():
    """What waited for it goes with it."""
    client, loop = paced()
    task = await begin(client)
    client.say(client.engine_ids[0], [70])
    await turns()
    client.say(client.engine_ids[0], [71])
    task.cancel()
    await asyncio.wait({task})
    assert not client._requests._pace._waiting
    loop.turn(1.0)


async def test_a_whole_answer_wakes_its_reader_once():
    """Nobody looks before the end."""
    client, loop = paced()
    reader = Reader(client, output_kind=OutputKind.FINAL_ONLY)
    await turns()
    [engine_id] = client.engine_ids
    client.say(engine_id, [70])
    assert not client._requests.open.get(engine_id).is_woken
    client.say(engine_id, [71], finish_reason=FinishReason.LENGTH)
    await reader.task
    assert reader.received == [[70, 71]]
    assert loop.num_timers == 0


async def test_an_interval_in_tokens_counts_too():
    """Both must be over; an interval in time does not make events of fewer tokens than were asked for."""
    client, loop = paced()
    reader = Reader(client, stream_interval=3)
    await turns()
    [engine_id] = client.engine_ids
    for token_id in (70, 71, 72):
        client.say(engine_id, [token_id])
        await turns()
        loop.turn(0.030)
    assert reader.received == [[70]]
    client.say(engine_id, [73])
    client.say(engine_id, [74])
    await turns()
    assert reader.received == [[70], [71, 72, 73, 74]]
    reader.task.cancel()


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 0.04)), max_size=40))
def test_no_token_waits_longer_than_the_interval_and_none_is_lost(steps):
    """Whatever comes when; events of one stream are in order."""

    async def play():
        client, loop = paced()
        readers = [Reader(client, f"r{number}") for number in range(3)]
        await turns()
        sent = [[], [], []]
        for number, (which, pause_s) in enumerate(steps):
            sent[which].append(number + 3)
            client.say(client.engine_ids[which], [number + 3])
            await turns()
            loop.turn(pause_s)
            await turns()
            assert (
                not client._requests._pace._waiting or loop.calls[0].when <= loop.now + INTERVAL_S
            )
        loop.turn(INTERVAL_S)
        await turns()
        received = [[token for event in reader.received for token in event] for reader in readers]
        for reader in readers:
            reader.task.cancel()
        await asyncio.wait({reader.task for reader in readers})
        return sent, received

    sent, received = asyncio.run(play())
    assert received == sent
