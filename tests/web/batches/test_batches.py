"""Files and batches with the official clients: answers, errors, cancelling, expiry, restarts, tenants, priority."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

import anthropic
import httpx2
import openai
import pytest

from tests.busy import PATIENCE_S
from tests.web.openai.calls import client_of
from tests.web.serving import ECHO, RANDOM, listening, serving
from weft.web.batches.places import Places
from weft.web.store.database import Store
from weft.web.store.store_options import StoreOptions

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
SLOW = ECHO + "?itl_ms=20"


def line(custom_id, url=CHAT, **body):
    """A request of an input file."""
    given = {"messages": HELLO, "max_tokens": 3, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": given})


def lines(number, **body):
    """An input file with that many requests."""
    return "\n".join(line(f"r{at}", **body) for at in range(number)).encode()


async def upload(client, content, **fields):
    """A stored file."""
    return await client.files.create(file=("in.jsonl", content), **{"purpose": "batch", **fields})


async def begin(client, content, endpoint=CHAT, **fields):
    """A batch of the requests."""
    file = await upload(client, content)
    settings = {"endpoint": endpoint, "completion_window": "24h", **fields}
    return await client.batches.create(input_file_id=file.id, **settings)


async def ended(client, batch_id):
    """The batch, once nothing of it is left."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await client.batches.retrieve(batch_id)
            if found.status in ("completed", "failed", "expired", "cancelled"):
                return found
            await asyncio.sleep(0.01)


async def read(client, file_id):
    """The lines of a file."""
    content = await client.files.content(file_id)
    return [json.loads(one) for one in content.text.splitlines()]


@asynccontextmanager
async def clients_at(served, store=None, **options):
    """The official clients of a server, OpenAI's and Anthropic's."""
    async with (
        listening(served, store, **options) as (_, port),
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0
        ) as one,
        anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{port}", api_key="k", max_retries=0
        ) as other,
    ):
        yield one, other


async def test_a_file_is_stored_listed_read_and_deleted():
    """With its name, its purpose and its expiry."""
    async with client_of(ECHO) as (client, _):
        made = await upload(client, b"abc")
        assert (made.filename, made.bytes, made.purpose) == ("in.jsonl", 3, "batch")
        assert made.expires_at == made.created_at + 30 * 24 * 3600
        kept = await upload(
            client,
            b"defg",
            purpose="user_data",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert kept.expires_at == kept.created_at + 3600
        assert await client.files.retrieve(made.id) == made
        assert (await client.files.content(made.id)).content == b"abc"
        assert [one.id async for one in client.files.list(limit=1)] == [kept.id, made.id]
        assert [one.id async for one in client.files.list(order="asc")] == [made.id, kept.id]
        assert [one.id async for one in client.files.list(purpose="batch")] == [made.id]
        assert (await client.files.delete(made.id)).deleted
        for call in (
            client.files.retrieve(made.id),
            client.files.content(made.id),
            client.files.delete(made.id),
        ):
            with pytest.raises(openai.NotFoundError) as gone:
                await call
            assert gone.value.param == "file_id"


async def test_a_batch_is_answered_in_files():
    """Each request once: answers in one file, refusals in the other, with their tokens counted."""
    bad = line("bad", temperature=9)
    async with client_of(ECHO) as (client, _):
        made = await begin(client, lines(5) + b"\n" + bad.encode(), metadata={"a": "b"})
        assert made.status == "validating"
        final = await ended(client, made.id)
        answers = await read(client, final.output_file_id)
        refusals = await read(client, final.error_file_id)
        alone = await client.chat.completions.create(model=ECHO, messages=HELLO, max_tokens=3)
        listed = [one.id async for one in client.batches.list()]
    assert final.status == "completed"
    assert final.metadata == {"a": "b"}
    assert final.request_counts.to_dict() == {"total": 6, "completed": 5, "failed": 1}
    assert sorted(one["custom_id"] for one in answers) == [f"r{at}" for at in range(5)]
    for one in answers:
        body = one["response"]["body"]
        assert one["response"]["status_code"] == 200
        assert body["choices"][0]["message"]["content"] == alone.choices[0].message.content
    assert [one["custom_id"] for one in refusals] == ["bad"]
    assert refusals[0]["response"]["body"]["error"]["param"] == "temperature"
    assert final.usage.output_tokens == 5 * alone.usage.completion_tokens
    assert final.usage.input_tokens == 5 * alone.usage.prompt_tokens
    assert listed == [made.id]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 2}),
    ],
)
async def test_other_endpoints_have_batches(endpoint, body):
    """Bodies are those of the endpoint."""
    request = json.dumps({"custom_id": "x", "url": endpoint, "body": body})
    async with client_of(ECHO) as (client, _):
        final = await ended(client, (await begin(client, request.encode(), endpoint)).id)
        (answer,) = await read(client, final.output_file_id)
    assert answer["response"]["status_code"] == 200
    assert final.usage.output_tokens == 2


async def test_an_embedding_has_batches():
    """On a server that embeds."""
    request = json.dumps({"custom_id": "x", "url": "/v1/embeddings", "body": {"input": "a"}})
    async with client_of(RANDOM, runner="pooling") as (client, _):
        final = await ended(client, (await begin(client, request.encode(), "/v1/embeddings")).id)
        (answer,) = await read(client, final.output_file_id)
    assert answer["response"]["body"]["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"no json", "invalid_request", 1),
        (lines(1) + b"\n" + lines(1), "invalid_request", 2),
        (line("x", url="/v1/completions").encode(), "invalid_request", 1),
        (line("x", stream=True).encode(), "invalid_request", 1),
    ],
)
async def test_an_input_that_is_not_valid_fails_its_batch(content, code, number):
    """With the line, and without any answer."""
    async with client_of(ECHO) as (client, _):
        final = await ended(client, (await begin(client, content)).id)
    assert final.status == "failed"
    assert (final.errors.data[0].code, final.errors.data[0].line) == (code, number)
    assert final.output_file_id is None


async def test_what_cannot_be_stored_or_begun_is_refused_by_name():
    """Before anything is stored."""
    async with client_of(ECHO) as (client, _):
        file = await upload(client, lines(1))
        other = await upload(client, lines(1), purpose="user_data")
        good = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        for fields, parameter in (
            ({"endpoint": "/v1/moderations"}, "endpoint"),
            ({"completion_window": "1d"}, "completion_window"),
            ({"completion_window": "169h"}, "completion_window"),
            ({"input_file_id": other.id}, "input_file_id"),
            ({"metadata": {"x" * 65: "y"}}, "metadata"),
            (
                {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
                "output_expires_after",
            ),
            ({"output_expires_after": {"anchor": "x", "seconds": 3600}}, "output_expires_after"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.batches.create(**{**good, **fields})
            assert refused.value.param == parameter
        for fields, parameter in (
            ({"purpose": "vision"}, "purpose"),
            ({"expires_after": {"anchor": "created_at", "seconds": 3599}}, "expires_after"),
            ({"expires_after": {"anchor": "x", "seconds": 3600}}, "expires_after"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await upload(client, b"x", **fields)
            assert refused.value.param == parameter
        for query in ({"limit": 0}, {"limit": 101}, {"after": "batch_x"}):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.batches.list(**query)
            assert refused.value.param == next(iter(query))
        for call in (
            client.batches.create(**{**good, "input_file_id": "file-x"}),
            client.batches.retrieve("batch_x"),
            client.batches.cancel("batch_x"),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        assert [one async for one in client.batches.list()] == []


async def test_a_cancelled_batch_has_its_answers_so_far():
    """It ends once; cancelling again changes nothing."""
    async with client_of(SLOW) as (client, served):
        made = await begin(client, lines(200, max_tokens=9))
        await has_answers(client, made.id)
        assert (await client.batches.cancel(made.id)).status in ("cancelling", "cancelled")
        final = await ended(client, made.id)
        again = await client.batches.cancel(made.id)
        answers = await read(client, final.output_file_id)
        assert served.client.num_active_requests == 0
    assert final.status == again.status == "cancelled"
    assert final.cancelled_at is not None
    assert 0 < len(answers) == final.request_counts.completed < 200


async def test_a_batch_expires(tmp_path):
    """Requests without an answer are reported in the error file, and the answers so far stay."""
    options = StoreOptions(store_file=tmp_path / "store.db", batch_concurrency=2)
    async with serving(SLOW) as served:
        async with clients_at(served, options) as (client, _):
            made = await begin(client, lines(40), completion_window="1h")
            await has_answers(client, made.id)
        later = Store(options, clock=lambda: time.time() + 3601)
        async with clients_at(served, later) as (client, _):
            final = await ended(client, made.id)
            answers = await read(client, final.output_file_id)
            errors = await read(client, final.error_file_id)
    assert final.status == "expired"
    assert final.expires_at == made.created_at + 3600
    assert {one["error"]["code"] for one in errors} == {"batch_expired"}
    assert len(answers) + len(errors) == 40
    assert {one["response"] for one in errors} == {None}


async def has_answers(client, batch_id):
    """Wait until the batch has an answer."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (await client.batches.retrieve(batch_id)).request_counts.completed:
                return
            await asyncio.sleep(0.01)


async def test_a_batch_continues_after_a_restart_and_answers_no_request_twice(tmp_path):
    """The answers of both processes are in one file."""
    store = StoreOptions(store_file=tmp_path / "store.db", batch_concurrency=2)
    async with serving(SLOW) as served:
        async with clients_at(served, store) as (client, _):
            made = await begin(client, lines(12))
            await has_answers(client, made.id)
            await client.files.delete(made.input_file_id)
        async with clients_at(served, store) as (client, _):
            final = await ended(client, made.id)
            answers = await read(client, final.output_file_id)
    assert final.status == "completed"
    assert sorted(one["custom_id"] for one in answers) == sorted(f"r{at}" for at in range(12))


async def test_a_tenant_has_its_own_files_and_batches(tmp_path):
    """Others find neither, and the batch runs with the rights of its tenant."""
    keys = tmp_path / "keys.json"
    keys.write_text('{"tenants": [{"name": "a", "keys": ["ka"]}, {"name": "b", "keys": ["kb"]}]}')
    async with serving(ECHO) as served, clients_at(served, api_key_file=keys) as (client, _):
        a, b = (client.with_options(api_key=key) for key in ("ka", "kb"))
        made = await begin(a, lines(2))
        final = await ended(a, made.id)
        assert final.request_counts.completed == 2
        for call in (
            b.batches.retrieve(made.id),
            b.batches.cancel(made.id),
            b.files.retrieve(final.output_file_id),
            b.batches.create(
                input_file_id=made.input_file_id, endpoint=CHAT, completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        assert [one async for one in b.batches.list()] == []
        assert [one async for one in b.files.list()] == []


class State:
    """How many requests are open."""

    num_open = 0


async def test_requests_of_callers_take_places_from_batches():
    """Down to one, which waits for nobody."""
    state = State()
    places = Places(state, 4)
    assert places.num_allowed == 4
    state.num_open = 3
    assert places.num_allowed == 1
    state.num_open = 9
    assert places.num_allowed == 1
    async with places.take():
        state.num_open = 10
        waiting = asyncio.create_task(places.take().__aenter__())
        await asyncio.sleep(0)
        assert not waiting.done()
        state.num_open = 1
        await waiting
    assert places.num_taken == 1


# -- Anthropic's ----------------------------------------------------------------------------------


def messages(number, **params):
    """Requests for that many messages."""
    given = {"model": "m", "max_tokens": 3, "messages": HELLO, **params}
    return [{"custom_id": f"r{at}", "params": given} for at in range(number)]


async def over(client, batch_id):
    """The batch of messages, once it has ended."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await client.messages.batches.retrieve(batch_id)
            if found.processing_status == "ended":
                return found
            await asyncio.sleep(0.01)


async def test_a_batch_of_messages_has_results():
    """Messages as /v1/messages writes them, and errors; then it is deleted."""
    async with (
        serving(ECHO, served_model_name=["m"]) as served,
        clients_at(served) as (_, client),
    ):
        requests = [*messages(3), {**messages(1, temperature=9)[0], "custom_id": "bad"}]
        made = await client.messages.batches.create(requests=requests)
        assert made.request_counts.processing == 4
        final = await over(client, made.id)
        results = {
            one.custom_id: one.result
            async for one in await client.messages.batches.results(made.id)
        }
        listed = [one.id async for one in client.messages.batches.list(limit=1)]
        alone = await client.messages.create(**messages(1)[0]["params"])
        deleted = await client.messages.batches.delete(made.id)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(made.id)
    counts = final.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (3, 1, 0)
    assert results.keys() == {"r0", "r1", "r2", "bad"}
    assert results["r0"].message.content == alone.content
    assert results["bad"].error.error.type == "invalid_request_error"
    assert listed == [made.id]
    assert deleted.type == "message_batch_deleted"


async def test_the_series_of_a_store_and_its_batches():
    """Objects and bytes by kind, batches by state, and requests by outcome; the page is that of /metrics."""
    content = "\n".join([line("good"), line("bad", temperature=9)]).encode()
    async with serving(ECHO) as served, clients_at(served) as (client, _):
        batch = await begin(client, content)
        await ended(client, batch.id)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                series = await series_of(client)
                if series.get('weft:batches_total{status="completed"}'):
                    break
                await asyncio.sleep(0.01)
    assert series['weft:store_objects{kind="file"}'] == 3  # input, output, errors
    assert series['weft:store_bytes{kind="file"}'] > len(content)
    assert series['weft:store_batches{state="ended"}'] == 1
    assert series['weft:store_batches{state="running"}'] == 0
    assert series['weft:batch_requests_total{outcome="completed"}'] == 1
    assert series['weft:batch_requests_total{outcome="failed"}'] == 1


async def series_of(client) -> dict[str, float]:
    """The series of a server, by name and labels."""
    address = str(client.base_url).removesuffix("/v1/")
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as http:
        page = (await http.get(f"{address}/metrics")).text
    rows = [row.rpartition(" ") for row in page.splitlines() if row and not row.startswith("#")]
    return {name: float(value) for name, _, value in rows}


async def test_a_cancelled_batch_of_messages_says_so_of_each_request():
    """Results so far stay."""
    async with (
        serving(SLOW, served_model_name=["m"]) as served,
        clients_at(served) as (_, client),
    ):
        made = await client.messages.batches.create(requests=messages(100, max_tokens=9))
        with pytest.raises(anthropic.BadRequestError, match="not ended"):
            await client.messages.batches.delete(made.id)
        with pytest.raises(anthropic.AnthropicError, match="in_progress"):
            await client.messages.batches.results(made.id)
        cancelled = await client.messages.batches.cancel(made.id)
        assert cancelled.processing_status in ("canceling", "ended")
        final = await over(client, made.id)
        results = [one.result.type async for one in await client.messages.batches.results(made.id)]
        pages = client.messages.batches
        assert [one.id async for one in pages.list(after_id=made.id)] == []
        assert [one.id async for one in pages.list(before_id=made.id)] == []
    counts = final.request_counts
    assert counts.canceled == results.count("canceled") > 0
    assert counts.succeeded + counts.canceled == len(results) == 100


async def test_a_batch_of_messages_is_checked_before_it_is_stored():
    """By the field's name."""
    async with serving(ECHO) as served, clients_at(served) as (_, client):
        for requests in ([], messages(1) * 2, messages(1, stream=True)):
            with pytest.raises(anthropic.BadRequestError, match="requests"):
                await client.messages.batches.create(requests=requests)
        for name in ("", "a b", "x" * 65):
            with pytest.raises(anthropic.BadRequestError):
                await client.messages.batches.create(
                    requests=[{**messages(1)[0], "custom_id": name}]
                )
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.batches.list(after_id="x", before_id="y")
        assert [one async for one in client.messages.batches.list()] == []


async def test_a_store_without_room_refuses_a_file():
    """409 with the flag; nothing else is dropped for it."""
    options = StoreOptions(store_max_bytes=2000)
    async with serving(ECHO) as served, clients_at(served, options) as (client, _):
        made = await upload(client, b"x" * 500)
        with pytest.raises(openai.ConflictError, match="--store-max-bytes"):
            await upload(client, b"x" * 2000)
        assert (await client.files.retrieve(made.id)).bytes == 500
    assert Store(options).options.limits.max_bytes == 2000
