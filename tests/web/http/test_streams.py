"""Event streams and callers who leave: nothing looks complete that is not, and nothing works for nobody."""

import asyncio
import json

import httpx2
import openai
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.fake_engine import reference_tokens
from tests.web.http.serving import PROMPT, Site, post, serving
from weft.core.errors import GenerationError, Overloaded
from weft.web.http.endpoint import Answer, Call, Events
from weft.web.http.exchange import Exchange
from weft.web.http.sse import named_event, write_events

URL = "/test/chat/completions"


async def stream(site: Site, **body) -> httpx2.Response:
    """The whole answer to a request for a stream."""
    return await site.http.post(URL, json={"stream": True, **body})


def datas(text: str) -> list[str]:
    """What each event holds."""
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


async def test_a_stream_is_its_events_and_their_end(site):
    """Headers that keep proxies from holding it back, an event a token, and the end."""
    answer = await stream(site)
    *events, last = datas(answer.text)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]
    assert [json.loads(event)["token_ids"] for event in events] == [
        [token_id] for token_id in reference_tokens(PROMPT, 3)
    ]
    assert last == "[DONE]"


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_what_fails_before_the_first_event_has_a_status(site, is_streamed: bool):
    """A refusal looks the same whether a stream was asked for or not."""
    site.engine.refusal = Overloaded("full")
    answer = await site.http.post(URL, json={"stream": is_streamed})
    site.engine.refusal = None
    await site.check_canary()
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["retry-after"] == "1"


async def begun(site: Site, url: str = URL) -> tuple[httpx2.Response, "asyncio.Task[str]"]:
    """A stream of which one event has come; the task reads the rest."""
    site.engine.hold()
    request = site.http.build_request("POST", url, json={"stream": True, "max_tokens": 9})
    sending = asyncio.create_task(site.http.send(request, stream=True))
    await site.engine.wait_for_open(1)
    await site.engine.allow(1)
    answer = await sending
    lines = answer.aiter_lines()
    assert (await anext(lines)).startswith("data: ")

    async def read() -> str:
        return "\n".join([line async for line in lines])

    return answer, asyncio.create_task(read())


@pytest.mark.parametrize(
    ("url", "start"),
    [(URL, 'data: {"error":'), ("/v1/messages/test", 'event: error\ndata: {"type":"error"')],
)
async def test_a_stream_that_fails_ends_in_an_error_event(site, url: str, start: str):
    """And does not say that it is done."""
    answer, rest = await begun(site, url)
    site.engine.failure = GenerationError("a row went wrong")
    await site.engine.run_freely()
    text = (await rest).strip()
    site.engine.failure = None
    await site.check_canary()
    assert answer.status_code == 200
    assert text.startswith(start)
    assert "a row went wrong" in text
    assert "[DONE]" not in text
    assert text.count("data: ") == 1


async def test_a_stream_whose_engine_dies_says_so(site):
    """Within the stream, and as a status to the next."""
    _, rest = await begun(site)
    await site.engine.die()
    text = await rest
    health = await site.http.get("/health")
    after = await site.http.post(URL, json={})
    assert '"error"' in text
    assert "[DONE]" not in text
    assert (health.status_code, after.status_code) == (503, 503)


async def test_health_tells_of_engines_that_are_absent(site):
    """Of several: it is healthy as long as any answers."""
    whole = await site.http.get("/health")
    site.engine.is_degraded = True
    degraded = await site.http.get("/health")
    assert (whole.status_code, whole.text) == (200, "")
    assert (degraded.status_code, degraded.text) == (200, "degraded")


async def test_openais_client_raises_what_a_stream_ends_in(site):
    """An error event is an error there as well."""
    site.engine.hold()
    client = openai.AsyncOpenAI(base_url=f"{site.url}/test", api_key="x", max_retries=0)
    asking = asyncio.create_task(
        client.chat.completions.create(model="m", messages=[], stream=True)
    )
    await site.engine.wait_for_open(1)
    await site.engine.allow(1)
    chunks = await asking
    site.engine.failure = GenerationError("a row went wrong")
    await site.engine.run_freely()
    with pytest.raises(openai.APIError, match="a row went wrong"):
        async for _ in chunks:
            pass
    await client.close()


async def test_a_caller_who_leaves_a_stream_ends_its_work(site):
    """The engine learns of it at once, without another token."""
    answer, rest = await begun(site)
    rest.cancel()
    await answer.aclose()
    async with asyncio.timeout(PATIENCE_S):
        await site.engine.wait_for_open(0)
    assert len(site.engine.dropped) == 1
    await site.engine.run_freely()
    await site.check_canary()


async def test_a_caller_who_leaves_before_an_answer_ends_its_work(site):
    """Not streamed: nothing is written to it until the end, and still it is noticed."""
    site.engine.hold()
    asking = asyncio.create_task(site.http.post(URL, json={}))
    await site.engine.wait_for_open(1)
    asking.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await site.engine.wait_for_open(0)
    assert len(site.engine.dropped) == 1
    await site.engine.run_freely()
    await site.check_canary()


async def test_silence_is_filled_with_comments():
    """Before the first event too: a long prompt must not look like a dead connection."""
    async with serving(ping_interval_s=0.05) as site:
        site.engine.hold()
        async with site.http.stream("POST", URL, json={"stream": True}) as answer:
            lines = answer.aiter_lines()
            before = [await anext(lines) for _ in range(4)]
            await site.engine.run_freely()
            text = "\n".join([line async for line in lines])
    assert before == [": ping", ""] * 2
    assert datas(text)[-1] == "[DONE]"
    assert len(datas(text)) == 4


async def test_no_comment_comes_between_quick_events(site):
    """They are for silence."""
    assert ": ping" not in (await stream(site, max_tokens=50)).text


async def test_a_reader_who_takes_nothing_is_hung_up_on():
    """After its time, whatever is still unsent; its source is closed."""
    closed = asyncio.Event()

    async def endless(_call: Call) -> Answer:
        async def source():
            try:
                while True:
                    yield named_event("x", "y" * 10_000)
                    await asyncio.sleep(0)
            finally:
                closed.set()

        return Events(source())

    async with serving(post("/endless", endless), write_timeout_s=0.2) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port, limit=1000)
        writer.write(
            b"POST /endless HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\n\r\n{}"
        )
        await reader.readline()
        async with asyncio.timeout(PATIENCE_S):
            await closed.wait()
        writer.close()
        await site.check_canary()


# -- the end of the server ------------------------------------------------------------------------


async def test_a_drain_lets_streams_finish_and_refuses_the_rest(site):
    """Readiness first; what is open is whole; what is new is told to come back elsewhere."""
    _, rest = await begun(site)
    draining = asyncio.create_task(site.server.drain(PATIENCE_S))
    await asyncio.sleep(0)
    ready = await site.http.get("/readyz")
    live = await site.http.get("/livez")
    new = await site.http.post(URL, json={})
    await site.engine.run_freely()
    text = await rest
    await draining
    assert (ready.status_code, live.status_code, new.status_code) == (503, 200, 503)
    assert new.headers["retry-after"] == "1"
    assert datas(text)[-1] == "[DONE]"


@pytest.mark.parametrize("url", [URL, "/v1/messages/test"])
async def test_a_stream_beyond_the_drain_ends_in_an_error_event(site, url: str):
    """It does not just stop, and never looks complete."""
    _, rest = await begun(site, url)
    await site.server.drain(0.05)
    text = await rest
    assert site.engine.num_active_requests == 0
    assert "the server is shutting down" in text
    assert "[DONE]" not in text


async def test_a_request_beyond_the_drain_gets_a_status(site):
    """Not streamed: 503, as if it had come later."""
    site.engine.hold()
    asking = asyncio.create_task(site.http.post(URL, json={}))
    await site.engine.wait_for_open(1)
    await site.server.drain(0.05)
    answer = await asking
    assert answer.status_code == 503


async def test_before_the_start_is_over_probes_alone_are_answered():
    """Everything else is told to come back, in its own form."""
    async with serving(is_open=False, api_keys=("k",)) as site:
        key = {"x-api-key": "k"}
        statuses = [
            (await site.http.get(f"/{path}")).status_code for path in ("livez", "readyz", "health")
        ]
        startup = (await site.http.get("/startupz")).json()
        ours = await site.http.post("/test/chat/completions", json={}, headers=key)
        theirs = await site.http.post("/v1/messages/test", json={}, headers=key)
        nobody = await site.http.get("/v1/models")
    assert statuses == [200, 503, 503]
    assert startup.keys() == {"phase", "fraction", "elapsed"}
    assert startup["fraction"] < 1
    assert (ours.status_code, theirs.status_code, nobody.status_code) == (503, 529, 401)
    assert ours.headers["retry-after"] == "1"
    assert theirs.json()["error"]["type"] == "overloaded_error"


async def test_a_stream_that_is_there_already_gives_others_their_turns():
    """No write waits for a client that keeps up, as where the events of a response that has ended are replayed."""
    loop = asyncio.get_running_loop()
    num_sent = num_turns = 0

    async def send(message) -> None:
        nonlocal num_sent
        num_sent += len(message.get("body", b""))

    def count() -> None:
        nonlocal num_turns, turn
        num_turns += 1
        turn = loop.call_soon(count)

    async def all_at_once():
        for _ in range(2**14):
            yield b"x" * 2**8

    exchange = Exchange({"method": "GET", "path": "/", "headers": []}, send, PATIENCE_S)
    turn = loop.call_soon(count)
    await write_events(exchange, Events(all_at_once()), PATIENCE_S)
    turn.cancel()
    assert num_sent == 2**22
    assert num_turns >= 2**22 // 2**17
