"""Followed responses behind a real Envoy outlive the picker: one that drains, stops or dies cuts none."""

import asyncio

import pytest

from tests.busy import PATIENCE_S, until
from tests.e2e import scenes
from tests.e2e.scenes import STREAMED, Scene, scene
from tests.e2e.test_buffered_bodies import Relay
from weft.epp.decision.tickets import Ending
from weft.epp.request.values import Usage

MODES = pytest.mark.usefixtures("body_mode")
NUM_STREAMS = 6


class Listening:
    """A client of one stream: the text so far, and the whole of it at the end."""

    def __init__(self, here: Scene, body: bytes = STREAMED) -> None:
        self.text = ""
        self._task = asyncio.create_task(self._read(here, body))

    async def _read(self, here: Scene, body: bytes) -> None:
        path = "/v1/chat/completions"
        async with here.client.stream("POST", path, content=body) as answer:
            async for text in answer.aiter_text():
                self.text += text

    async def whole(self) -> str:
        await self._task
        return self.text


async def under_way(here: Scene) -> list[Listening]:
    """Streams whose worker has sent all but the end."""
    worker = here.http[1]
    worker.may_end.clear()
    streams = [Listening(here) for _ in range(NUM_STREAMS)]
    await until(lambda: all(one.text.count("data: ") == worker.num_events for one in streams))
    return streams


async def are_whole(here: Scene, streams: list[Listening]) -> None:
    """Let the worker end its streams: every event arrives, once and in order."""
    worker = here.http[1]
    worker.may_end.set()
    texts = {await one.whole() for one in streams}
    events = [f'data: {{"model":"m","n":{n}}}\n\n' for n in range(worker.num_events)]
    (text,) = texts
    assert text.startswith("".join(events))
    assert text.endswith("data: [DONE]\n\n")
    assert text.count("data: ") == worker.num_events + 2


@MODES
async def test_a_picker_that_stops_lets_go_of_running_responses():
    """Between two events of each: Envoy carries the responses on by itself."""
    async with scene(tracks_response=True) as here:
        streams = await under_way(here)
        await here.server.drain(0.0)
        assert here.director.endings == [Ending.UNFOLLOWED] * NUM_STREAMS
        await are_whole(here, streams)


@MODES
async def test_a_picker_that_stops_lets_go_of_responses_that_have_not_begun():
    """The workers still compute the prompts: nothing of the response has come."""
    async with scene(tracks_response=True) as here:
        worker = here.http[1]
        worker.may_answer.clear()
        streams = [Listening(here) for _ in range(NUM_STREAMS)]
        await until(lambda: len(worker.seen) == NUM_STREAMS)
        await here.server.drain(0.0)
        worker.may_answer.set()
        await are_whole(here, streams)


@MODES
async def test_a_picker_that_drains_follows_to_the_end_while_it_may():
    """Usage is counted of every response that ends within the drain time."""
    async with scene(tracks_response=True) as here:
        streams = await under_way(here)
        draining = asyncio.create_task(here.server.drain(60.0))
        async with asyncio.timeout(PATIENCE_S):
            await here.envoy.wait_for("/clusters?filter=^picker$", b"failed_active_hc")
        await are_whole(here, streams)
        await draining
        assert here.director.endings == [Ending.NATURAL] * NUM_STREAMS
        usage = Usage(num_prompt_tokens=7, num_completion_tokens=5)
        assert here.director.usages == [usage] * NUM_STREAMS


async def test_a_picker_that_dies_takes_no_response_with_it(monkeypatch: pytest.MonkeyPatch):
    """Its connections break in the middle of the streams, without a word. Envoy buffers the bodies of requests: it
    does not fail open once it has streamed a body.
    """
    monkeypatch.setattr(scenes, "buffered_bytes", scenes.MAX_BODY_BYTES)
    relay = Relay()
    async with scene(through=relay.start, tracks_response=True) as here:
        streams = await under_way(here)
        relay.die()
        await until(lambda: here.director.endings == [Ending.DISCONNECTED] * NUM_STREAMS)
        await are_whole(here, streams)


@MODES
async def test_a_response_with_a_renamed_model_goes_on_under_the_name_it_is_served_by():
    """The picker that stops has renamed the events before."""
    async with scene(rewritten_model="m") as here:
        body = STREAMED.replace(b'"model":"m"', b'"model":"mine"')
        worker = here.http[1]
        worker.may_end.clear()
        stream = Listening(here, body)
        await until(lambda: stream.text.count('"model":"mine"') == worker.num_events)
        await here.server.drain(0.0)
        worker.may_end.set()
        text = await stream.whole()
        assert text.count('"model":"m"') == 1
        assert text.endswith("data: [DONE]\n\n")
