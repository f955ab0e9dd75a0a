"""`weft serve --store-file` that ends in the middle of its work: nothing that was accepted is lost."""

import asyncio
import json
import signal
from contextlib import asynccontextmanager

import openai
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import running

pytestmark = pytest.mark.slow

MODEL = "embedded:echo?itl_ms=5"
CHAT = "/v1/chat/completions"
NUM_BATCHES, NUM_RESPONSES, NUM_CONVERSATIONS, NUM_LINES = 50, 20, 10, 4
ENDED = ("completed", "incomplete", "failed", "cancelled", "expired")


def lines(batch):
    """Requests whose answers are all different."""
    bodies = [
        {"messages": [{"role": "user", "content": f"batch {batch} line {at}"}], "max_tokens": 30}
        for at in range(NUM_LINES)
    ]
    return "\n".join(
        json.dumps({"custom_id": f"r{at}", "url": CHAT, "body": body})
        for at, body in enumerate(bodies)
    ).encode()


@asynccontextmanager
async def client_of(server):
    """The official client."""
    async with openai.AsyncOpenAI(
        base_url=f"{server.http}/v1", api_key="k", max_retries=0
    ) as client:
        yield client


async def fill(server):
    """Ids of everything that the server accepted: batches, responses, and conversations with their texts."""
    async with client_of(server) as client:
        batches = {}
        for number in range(NUM_BATCHES):
            file = await client.files.create(file=("in.jsonl", lines(number)), purpose="batch")
            made = await client.batches.create(
                input_file_id=file.id, endpoint=CHAT, completion_window="24h"
            )
            batches[made.id] = number
        responses = {}
        for number in range(NUM_RESPONSES):
            made = await client.responses.create(
                model=MODEL, input=f"response {number}", background=True, max_output_tokens=100
            )
            responses[made.id] = number
        conversations = {}
        for number in range(NUM_CONVERSATIONS):
            made = await client.conversations.create(metadata={"number": str(number)})
            said = await client.responses.create(
                model=MODEL,
                input=f"conversation {number}",
                conversation=made.id,
                max_output_tokens=5,
            )
            conversations[made.id] = said.output_text
        return batches, responses, conversations


async def ended(read, one):
    """The object, once it has its last state."""
    async with asyncio.timeout(4 * PATIENCE_S):
        while True:
            found = await read(one)
            if found.status in ENDED:
                return found
            await asyncio.sleep(0.1)


async def check(server, batches, responses, conversations):
    """Everything is there and ends as if nothing had happened."""
    async with client_of(server) as client:
        for batch_id in batches:
            final = await ended(client.batches.retrieve, batch_id)
            assert final.status == "completed"
            assert final.request_counts.completed == NUM_LINES
            content = await client.files.content(final.output_file_id)
            ids = [json.loads(one)["custom_id"] for one in content.text.splitlines()]
            assert sorted(ids) == [f"r{at}" for at in range(NUM_LINES)]
        for response_id, number in responses.items():
            final = await ended(client.responses.retrieve, response_id)
            whole = await client.responses.create(
                model=MODEL, input=f"response {number}", max_output_tokens=100
            )
            assert final.output_text == whole.output_text
        for conversation_id, text in conversations.items():
            listed = client.conversations.items.list(conversation_id, order="asc")
            items = [item async for item in listed]
            assert len(items) == 2
            assert items[1].content[0].text == text
            more = await client.responses.create(
                model=MODEL, input="x", conversation=conversation_id, max_output_tokens=5
            )
            assert more.usage.input_tokens > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda one: one.name)
@pytest.mark.parametrize("count", ["1", "2"])
def test_a_server_that_ends_loses_nothing_that_it_accepted(tmp_path, number, count):
    """In the middle of 50 batches, 20 background responses and 10 conversations, with one API server or two."""
    argv = (
        *(MODEL, "--no-grpc", "--store-file", str(tmp_path / "store.db")),
        *("--batch-concurrency", "4", "--shutdown-timeout", "0.1", "--api-server-count", count),
    )
    with running(*argv) as server:
        accepted = asyncio.run(fill(server))
        for process in [server.front, *server.front.children(recursive=True)]:
            if number == signal.SIGKILL or process == server.front:
                process.send_signal(number)
        server.process.wait(PATIENCE_S)
    with running(*argv) as server:
        asyncio.run(check(server, *accepted))
