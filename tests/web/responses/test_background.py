"""Responses in the background, and what becomes of a response when its client leaves."""

import asyncio
from dataclasses import replace
from functools import partial

import openai
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.fake_engine import FakeEngine
from tests.web.openai.calls import client_of
from tests.web.responses.serving_responses import (
    LONG,
    SLOW,
    TERMINAL,
    Handlers,
    comparable,
    event_of,
)
from tests.web.serving import ECHO, http_serving, serving
from weft.core.errors import BadRequest, EngineDead, Overloaded
from weft.web.http.endpoint import Events
from weft.web.responses.store import ResponseLimits


async def until(is_so) -> None:
    """Wait for what no event says."""
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)


async def test_a_background_response_goes_through_its_states(echoing):
    """Queued at once, in progress while it is made, completed; no client waits for it."""
    engine = FakeEngine()
    engine.hold()
    async with (
        http_serving(replace(echoing, client=engine)) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        made = await client.responses.create(
            model="fake-model", input="hello", background=True, max_output_tokens=30
        )
        seen = [made.status]

        async def is_at(status):
            seen.append((await client.responses.retrieve(made.id)).status)
            return seen[-1] == status

        await engine.allow(1)
        await until(partial(is_at, "in_progress"))
        await engine.run_freely()
        await until(partial(is_at, "incomplete"))
        final = await client.responses.retrieve(made.id)
        again = await client.responses.cancel(made.id)
    assert list(dict.fromkeys(seen)) == ["queued", "in_progress", "incomplete"]
    assert final.usage.output_tokens == 30
    assert again.status == "incomplete"


async def test_a_cancelled_response_stays_cancelled():
    """The engine stops, what is there so far stays, and cancelling again changes nothing."""
    async with client_of(SLOW) as (client, served):
        stream = await client.responses.create(model=SLOW, input=LONG, background=True, stream=True)
        events = aiter(stream)
        first = await anext(events)
        while (await anext(events)).type != "response.output_text.delta":
            pass
        cancelled = await client.responses.cancel(first.response.id)
        rest = [event async for event in events]
        again = await client.responses.cancel(first.response.id)
        stored = await client.responses.retrieve(first.response.id)
        active = served.client.num_active_requests
    assert cancelled.status == again.status == stored.status == "cancelled"
    assert rest[-1].type == "response.incomplete"
    assert rest[-1].response.status == "cancelled"
    assert stored.output[0].status == "incomplete"
    assert stored.output_text
    assert stored.usage is None
    assert active == 0


async def test_a_response_is_cancelled_before_it_begins(slow):
    """Its task may not have run yet; its followers get the end all the same."""
    handlers = Handlers(slow)
    answer = await handlers.call(
        "POST", "/v1/responses", {"input": LONG, "background": True, "stream": True}
    )
    (run,) = handlers.runs.open()
    ended = await handlers.of("POST", run.id, "/cancel")
    events = [event_of(event) async for event in answer.source]
    stored = await handlers.of("GET", run.id)
    assert ended["status"] == stored["status"] == "cancelled"
    assert [event["type"] for event in events] == [
        "response.created",
        "response.queued",
        "response.incomplete",
    ]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]


async def test_a_follower_takes_up_where_another_left():
    """The client leaves, the response goes on; every event is there once, from any point on."""
    async with client_of(SLOW) as (client, _):
        stream = await client.responses.create(
            model=SLOW, input="hello", background=True, stream=True, max_output_tokens=30
        )
        events = [await anext(aiter(stream))]
        await stream.close()
        response_id = events[0].response.id
        followed = await client.responses.retrieve(response_id, stream=True, starting_after=0)
        events += [event async for event in followed]
        replay = await client.responses.retrieve(response_id, stream=True)
        replayed = [event async for event in replay]
        nothing = await client.responses.retrieve(
            response_id, stream=True, starting_after=events[-1].sequence_number
        )
        left = [event async for event in nothing]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert events[0].response.status == "queued"
    assert [event.type in TERMINAL for event in events[-2:]] == [False, True]
    assert replayed == events
    assert left == []


async def test_a_client_that_leaves_cancels_its_response():
    """Not in the background, nobody else waits for it: the engine stops, and its state says so."""
    async with client_of(SLOW) as (client, served):
        stream = await client.responses.create(model=SLOW, input=LONG, stream=True)
        first = await anext(aiter(stream))
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
            await client.responses.cancel(first.response.id)
        await stream.close()

        async def is_cancelled():
            found = await client.responses.retrieve(first.response.id)
            return found.status == "cancelled"

        await until(is_cancelled)
        active = served.client.num_active_requests
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.retrieve(first.response.id, stream=True)
    assert active == 0
    assert refused.value.param == "stream"


async def test_whole_and_background_are_the_same_response():
    """Who waits for it changes nothing of what it is."""
    async with serving(ECHO, enable_prefix_caching=False) as served:
        handlers = Handlers(served)
        whole = await handlers.create(input="hello", max_output_tokens=4)
        queued = await handlers.create(input="hello", max_output_tokens=4, background=True)
        (run,) = handlers.runs.open()
        await asyncio.wait({run.task})
        later = await handlers.of("GET", queued["id"])
    assert comparable({**later, "background": False}) == comparable(whole)


async def test_a_deleted_response_ends(slow):
    """What nobody can read any more is not made."""
    handlers = Handlers(slow)
    queued = await handlers.create(input=LONG, background=True)
    deleted = await handlers.of("DELETE", queued["id"])
    assert deleted == {"id": queued["id"], "object": "response", "deleted": True}
    assert not handlers.runs.open()
    assert await handlers.num_stored() == 0
    await until_idle(slow)


async def until_idle(served) -> None:
    """Wait for the engine."""

    async def is_idle():
        return served.client.num_active_requests == 0

    await until(is_idle)


async def test_the_background_is_bounded(slow):
    """More is refused for now; what ends makes room."""
    handlers = Handlers(slow, ResponseLimits(max_background=1))
    queued = await handlers.create(input=LONG, background=True)
    with pytest.raises(Overloaded, match="in the background"):
        await handlers.create(input=LONG, background=True)
    await handlers.of("POST", queued["id"], "/cancel")
    assert (await handlers.create(input=LONG, background=True))["status"] == "queued"
    await handlers.of("DELETE", handlers.runs.open()[0].id)


async def test_the_end_of_the_server_ends_the_background(slow):
    """A drain waits for what is being made; a stop cancels it, and followers get the end."""
    handlers = Handlers(slow)
    answer = await handlers.call(
        "POST", "/v1/responses", {"input": LONG, "background": True, "stream": True}
    )
    assert isinstance(answer, Events)
    await anext(answer.source)
    is_idle = await handlers.state.wait_idle(0.05)
    handlers.state.cut_all(RuntimeError("the end"))
    assert await handlers.state.wait_idle(PATIENCE_S)
    events = [event async for event in answer.source]
    assert not is_idle
    assert b'"status":"cancelled"' in events[-1]


async def test_a_response_that_has_not_ended_is_no_past(slow):
    """What it will say is not known yet."""
    handlers = Handlers(slow)
    queued = await handlers.create(input=LONG, background=True)
    with pytest.raises(BadRequest, match="has not ended yet") as refused:
        await handlers.create(input="x", previous_response_id=queued["id"])
    await handlers.of("DELETE", queued["id"])
    assert refused.value.parameter == "previous_response_id"


async def test_an_engine_that_dies_fails_the_response(echoing):
    """Its followers and its readers get the error, and who waits for it in one piece gets the error itself."""
    engine = FakeEngine()
    engine.hold()
    handlers = Handlers(replace(echoing, client=engine))
    queued = await handlers.create(input="x", background=True)
    whole = asyncio.create_task(handlers.create(input="x", seed=1))
    stream = await handlers.call("POST", "/v1/responses", {"input": "x", "stream": True})
    first = asyncio.create_task(anext(stream.source))
    await engine.wait_for_open(3)
    await engine.allow(2)
    events = [await first]
    runs = handlers.runs.open()
    await engine.die()
    events += [event async for event in stream.source]
    await asyncio.wait({whole, *(run.task for run in runs if run.task)})
    failed = await handlers.of("GET", queued["id"])
    with pytest.raises(EngineDead):
        await handlers.create(input="x", stream=True)
    assert events[0].startswith(b"event: response.created\n")
    assert events[-1].startswith(b"event: response.failed\n")
    assert isinstance(whole.exception(), EngineDead)
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": "server_error", "message": str(EngineDead())}


async def test_a_request_that_the_engine_does_not_take_leaves_nothing(echoing):
    """A stream that never began has a status of its own, and there is no response to fetch."""
    engine = FakeEngine()
    handlers = Handlers(replace(echoing, client=engine))
    stream = await handlers.call("POST", "/v1/responses", {"input": "x", "stream": True})
    await engine.die()
    with pytest.raises(EngineDead):
        await anext(stream.source)
    assert not handlers.runs.open()
    assert await handlers.num_stored() == 0
