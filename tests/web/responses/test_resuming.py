"""Background responses in a file: they outlive their server, and other servers of the same file see them."""

import asyncio
from contextlib import asynccontextmanager

import openai
import pytest

from tests.busy import PATIENCE_S
from tests.web.responses.serving_responses import LONG, SLOW
from tests.web.serving import RANDOM, listening, serving
from weft.web.http.options import HttpOptions
from weft.web.store.store_options import StoreOptions


@pytest.fixture
def store(tmp_path):
    """A file that the servers of a test share."""
    return StoreOptions(store_file=tmp_path / "store.db")


@asynccontextmanager
async def client_at(served, store, **options):
    """The official client of a server with that store."""
    async with (
        listening(served, store, **options) as (_, port),
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0
        ) as client,
    ):
        yield client


async def ended(client, response_id):
    """The response, once it has its last state."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await client.responses.retrieve(response_id)
            if found.status not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(0.01)


async def test_a_response_is_read_and_continued_after_a_restart(store):
    """With its items, and by the conversation that it belongs to."""
    async with serving(RANDOM) as served:
        async with client_at(served, store) as client:
            conversation = await client.conversations.create(metadata={"a": "b"})
            settings = {"model": RANDOM, "max_output_tokens": 4, "temperature": 0}
            made = await client.responses.create(
                **settings, input="one", conversation=conversation.id
            )
        async with client_at(served, store) as client:
            assert await client.responses.retrieve(made.id) == made
            chained = await client.responses.create(
                **settings, input="two", previous_response_id=made.id
            )
            again = await client.responses.create(
                **settings, input="two", conversation=conversation.id
            )
            assert await client.conversations.retrieve(conversation.id) == conversation
            listed = client.conversations.items.list(conversation.id)
            assert len([item async for item in listed]) == 4
    assert chained.output_text == again.output_text
    assert chained.usage.input_tokens == again.usage.input_tokens


async def test_a_stopped_server_leaves_its_background_responses_to_the_next(store):
    """They begin again with the same id, input and seed, and so end as they would have."""
    async with serving(SLOW) as served:
        async with client_at(served, store) as client:
            first = await client.responses.create(
                model=SLOW, input=LONG, background=True, max_output_tokens=20, stream=True
            )
            events = aiter(first)
            made = (await anext(events)).response
            items = await client.responses.input_items.list(made.id)
        with pytest.raises(openai.APIError):
            async for _ in events:
                pass
        async with client_at(served, store) as client:
            final = await ended(client, made.id)
            followed = await client.responses.retrieve(made.id, stream=True)
            types = [event.type async for event in followed]
            listed = await client.responses.input_items.list(made.id)
            whole = await client.responses.create(model=SLOW, input=LONG, max_output_tokens=20)
    assert final.status == "incomplete"
    assert final.created_at == made.created_at
    assert final.output_text == whole.output_text
    assert types[0] == "response.created"
    assert types[-1] == "response.incomplete"
    assert listed.data == items.data


async def test_a_sampled_response_is_the_same_after_a_restart(store):
    """A seed is drawn once, and stored with the request."""
    async with serving(RANDOM, enable_prefix_caching=False) as served:
        seeds = []
        original = served.client.prepare

        async def noting(prompt, params, options):
            seeds.append(params.seed)
            return await original(prompt, params, options)

        served.client.prepare = noting
        async with client_at(served, store) as client:
            await client.responses.create(
                model=RANDOM, input="x", background=True, temperature=1, max_output_tokens=900
            )
        async with client_at(served, store) as client:
            async with asyncio.timeout(PATIENCE_S):
                while len(seeds) < 2:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.01)
    assert seeds[0] is not None
    assert set(seeds) == {seeds[0]}


async def test_servers_of_one_file_see_and_end_each_others_responses(store):
    """Cancelled or deleted at another one than makes it; its events are at the one that makes it."""
    async with (
        serving(SLOW) as served,
        client_at(served, store) as one,
        client_at(served, store) as other,
    ):
        made, gone = [
            await one.responses.create(model=SLOW, input=LONG, background=True, stream=False)
            for _ in range(2)
        ]
        assert (await other.responses.retrieve(made.id)).status in ("queued", "in_progress")
        with pytest.raises(openai.InternalServerError, match="another API server"):
            await other.responses.retrieve(made.id, stream=True)
        assert (await other.responses.input_items.list(made.id)).data
        assert (await other.responses.cancel(made.id)).status == "cancelled"
        assert (await one.responses.retrieve(made.id)).status == "cancelled"
        await other.responses.delete(gone.id)
        async with asyncio.timeout(PATIENCE_S):
            while served.client.num_active_requests:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)
        with pytest.raises(openai.NotFoundError):
            await one.responses.retrieve(gone.id)


async def test_a_tenant_sees_only_its_own(store, tmp_path):
    """Other tenants' responses and conversations are not found, and go on for theirs after a restart."""
    keys = tmp_path / "keys.json"
    keys.write_text('{"tenants": [{"name": "a", "keys": ["ka"]}, {"name": "b", "keys": ["kb"]}]}')
    options = {"api_key_file": keys}
    assert HttpOptions(**options).has_api_keys
    async with serving(SLOW) as served:
        async with client_at(served, store, **options) as client:
            a, b = (client.with_options(api_key=key) for key in ("ka", "kb"))
            made = await a.responses.create(
                model=SLOW, input=LONG, background=True, max_output_tokens=20
            )
            conversation = await a.conversations.create()
            for call in (
                b.responses.retrieve(made.id),
                b.responses.delete(made.id),
                b.conversations.retrieve(conversation.id),
                b.responses.create(model=SLOW, input="x", conversation=conversation.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    await call
        async with client_at(served, store, **options) as client:
            a, b = (client.with_options(api_key=key) for key in ("ka", "kb"))
            assert (await ended(a, made.id)).status == "incomplete"
            with pytest.raises(openai.NotFoundError):
                await b.responses.retrieve(made.id)


async def test_a_response_that_cannot_begin_again_fails_with_the_reason(store, tmp_path):
    """Its tenant is gone, for one."""
    keys = tmp_path / "keys.json"
    keys.write_text('{"tenants": [{"name": "a", "keys": ["k"]}]}')
    async with serving(SLOW) as served:
        async with client_at(served, store, api_key_file=keys) as client:
            made = await client.responses.create(model=SLOW, input=LONG, background=True)
        other = tmp_path / "others.json"
        other.write_text('{"tenants": [{"name": "b", "keys": ["k"]}]}')
        async with (
            listening(served, store, api_key_file=other) as (server, _),
            asyncio.timeout(PATIENCE_S),
        ):
            while await _is_open(server, made.id):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)
        async with client_at(served, store, api_key_file=keys) as client:
            final = await client.responses.retrieve(made.id)
    assert final.status == "failed"
    assert "no longer" in final.error.message


async def _is_open(server, response_id):
    """Whether work is left on the response."""
    found = await server._state.store.run(lambda tables: tables.head("response", "a", response_id))
    return found.owner is not None


async def test_a_request_that_cannot_be_stored_is_not_accepted(store):
    """In the background; an answer that the client waits for is given all the same."""
    async with serving(RANDOM) as served, listening(served, store) as (server, port):
        await server._state.store.run(lambda tables: tables._run("ALTER TABLE records RENAME TO x"))
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0
        ) as client:
            settings = {"model": RANDOM, "input": "x", "max_output_tokens": 2}
            made = await client.responses.create(**settings)
            for call in (
                client.responses.create(**settings, background=True),
                client.conversations.create(),
                client.responses.retrieve(made.id),
            ):
                with pytest.raises(openai.InternalServerError, match="no such table") as failed:
                    await call
                assert failed.value.status_code == 503
    assert made.status == "incomplete"
