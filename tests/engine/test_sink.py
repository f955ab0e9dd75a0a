"""Outputs that go past the task which reads them."""

import asyncio
from contextlib import aclosing

import pytest

from tests.engine.test_front import HandClient
from tests.engine.test_pace import turns
from weft.core.values.types import FinishReason, OutputKind, RequestOptions, SamplingParams
from weft.engine.front.open_requests import Pace


class HandSink:
    """Keeps what it takes; the test opens it."""

    def __init__(self):
        self.is_open = True
        self.tokens = []
        self.failure = None

    def take(self, output):
        if self.failure is not None:
            raise self.failure
        self.tokens += [answer.token_ids for answer in output.outputs]


class SunkReader:
    """A request with a sink, and what its reader has received all the same."""

    def __init__(self, client):
        self.client, self.sink, self.tokens = client, HandSink(), []
        self.task = asyncio.create_task(self._read())

    async def _read(self):
        params = SamplingParams(max_tokens=50, output_kind=OutputKind.DELTA)
        request = await self.client.prepare([65, 66], params, RequestOptions(request_id="r"))
        async with aclosing(self.client.run_into(request, self.sink)) as outputs:
            async for output in outputs:
                self.tokens += [answer.token_ids for answer in output.outputs]

    async def say(self, *steps, finish_reason=None):
        """Steps that come in one turn of the loop; the reader has had its turn afterwards."""
        [engine_id] = self.client.engine_ids
        for token_id in steps:
            self.client.say(engine_id, [token_id], finish_reason=finish_reason)
        await turns()


async def begun():
    """A reader that waits, of a client without a pace."""
    client = HandClient()
    client._requests._pace = Pace(0.0, asyncio.get_running_loop())
    reader = SunkReader(client)
    await turns()
    return reader


async def test_an_open_sink_takes_the_outputs_and_the_reader_is_left_to_wait():
    """Only the last output wakes it: with that the stream ends."""
    reader = await begun()
    await reader.say(70)
    await reader.say(71)
    await reader.say(72, finish_reason=FinishReason.LENGTH)
    await reader.task
    assert (reader.sink.tokens, reader.tokens) == ([[70], [71]], [[72]])


async def test_a_sink_takes_what_comes_in_one_turn_of_the_loop_in_one_piece():
    """As a reader would: a front that lags merges tokens instead of writing each."""
    reader = await begun()
    await reader.say(70, 71, 72)
    reader.task.cancel()
    assert reader.sink.tokens == [[70, 71, 72]]


async def test_a_closed_sink_leaves_outputs_to_the_reader_in_their_order():
    """Nothing is lost or changes places where a sink closes and opens again."""
    reader = await begun()
    await reader.say(70)
    reader.sink.is_open = False
    await reader.say(71)
    reader.sink.is_open = True
    await reader.say(72)
    reader.task.cancel()
    assert (reader.sink.tokens, reader.tokens) == ([[70], [72]], [[71]])


async def test_what_a_sink_raises_ends_its_own_request():
    """The reader raises it, and the engine is to stop the request."""
    reader = await begun()
    reader.sink.failure = ValueError("cannot be written")
    await reader.say(70)
    with pytest.raises(ValueError, match="cannot be written"):
        await reader.task
    assert reader.client.num_active_requests == 0


async def test_a_request_that_is_aborted_while_its_output_is_due_ends_by_its_reader():
    """The sink gets nothing behind the end."""
    reader = await begun()
    [engine_id] = reader.client.engine_ids
    reader.client.say(engine_id, [70])
    await reader.client.abort("r")
    await reader.task
    assert (reader.sink.tokens, reader.tokens) == ([], [[70]])
