"""Stored objects behind several workers: each request reaches the worker that has the object that it names."""

import asyncio
import json
from collections.abc import Iterator

import httpx2
import pytest

from tests.busy import until
from tests.cli.test_epp_up import Up, line_with, up
from weft.core.checks.object_ids import store_of

pytestmark = pytest.mark.slow

NUM = 12
INPUT = {"input": "hello", "max_output_tokens": 2}
LINE = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"prompt": "hello", "max_tokens": 2},
}
MESSAGE = {"max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def stack() -> Iterator[Up]:
    """Two workers behind a picker and Envoy."""
    with up() as stack:
        yield stack


def posted(client: httpx2.Client, path: str, body: object) -> dict:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def read(client: httpx2.Client, path: str) -> dict:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def responses(client: httpx2.Client) -> list[dict]:
    """Responses to prompts that begin differently, so that each worker has some."""
    inputs = [{**INPUT, "input": f"{number} {'hello ' * 30}"} for number in range(NUM)]
    made = [posted(client, "/v1/responses", each) for each in inputs]
    assert len({store_of(each["id"]) for each in made}) == 2
    return made


def test_responses_are_continued_and_read_where_they_are(stack: Up):
    """Every one of them, by its id, by the ids of its items, and in the calls that compute nothing."""
    with stack.client() as client:
        made = responses(client)
        for first in made:
            path = f"/v1/responses/{first['id']}"
            assert read(client, path)["output"] == first["output"]
            assert read(client, f"{path}/input_items")["data"]
            body = {**INPUT, "previous_response_id": first["id"]}
            second = posted(client, "/v1/responses", body)
            assert store_of(second["id"]) == store_of(first["id"])
            reference = {"type": "item_reference", "id": first["output"][0]["id"]}
            question = {"role": "user", "content": "and?"}
            posted(client, "/v1/responses", {**INPUT, "input": [reference, question]})
            counted = posted(
                client,
                "/v1/responses/input_tokens",
                {"input": "x", "previous_response_id": first["id"]},
            )
            assert counted["input_tokens"] > 1
            assert client.delete(path).status_code == 200


def test_background_responses_are_cancelled_where_they_are(stack: Up):
    """A path with an id, without a body."""
    with stack.client() as client:
        for _ in range(4):
            body = {**INPUT, "max_output_tokens": 500, "background": True}
            made = posted(client, "/v1/responses", body)
            ended = posted(client, f"/v1/responses/{made['id']}/cancel", None)
            assert ended["id"] == made["id"]


def test_conversations_are_found_where_they_are(stack: Up):
    """Read, changed, continued by a response, and listed."""
    with stack.client() as client:
        for _ in range(6):
            item = {"role": "user", "content": "hello"}
            made = posted(client, "/v1/conversations", {"items": [item]})
            path = f"/v1/conversations/{made['id']}"
            assert posted(client, path, {"metadata": {"a": "b"}})["metadata"] == {"a": "b"}
            posted(client, "/v1/responses", {**INPUT, "conversation": made["id"]})
            assert len(read(client, f"{path}/items")["data"]) == 3
            assert read(client, path)["id"] == made["id"]


def test_batches_run_where_their_files_are(stack: Up):
    """OpenAI's, whose file names the worker, and Anthropic's."""
    with stack.client() as client:
        for _ in range(3):
            files = {"file": ("a.jsonl", json.dumps(LINE).encode())}
            file = client.post("/v1/files", files=files, data={"purpose": "batch"}).json()
            assert read(client, f"/v1/files/{file['id']}")["id"] == file["id"]
            body = {
                "input_file_id": file["id"],
                "endpoint": "/v1/completions",
                "completion_window": "1h",
            }
            batch = posted(client, "/v1/batches", body)
            other = posted(
                client,
                "/v1/messages/batches",
                {"requests": [{"custom_id": "a", "params": MESSAGE}]},
            )
            path, other_path = f"/v1/batches/{batch['id']}", f"/v1/messages/batches/{other['id']}"
            asyncio.run(until(lambda path=path: read(client, path)["status"] == "completed"))
            asyncio.run(
                until(lambda path=other_path: read(client, path)["processing_status"] == "ended")
            )
            output = read(client, path)["output_file_id"]
            assert client.get(f"/v1/files/{output}/content").status_code == 200
            assert client.get(f"{other_path}/results").status_code == 200


def test_objects_of_a_dead_worker_are_said_to_be_lost():
    """404 with the reason, also once a new worker is in its place; those of the other worker are still there."""
    with up() as stack, stack.client() as client:
        ids = {store_of(each["id"]): each["id"] for each in responses(client)}
        next(child for child in stack.children if "serve" in child.cmdline()).kill()

        def is_said() -> bool:
            answers = [client.get(f"/v1/responses/{each}") for each in ids.values()]
            lost = [one for one in answers if "in the memory of a server that" in one.text]
            return sorted(one.status_code for one in answers) == [200, 404] and len(lost) == 1

        asyncio.run(until(is_said))
        line_with(stack, "worker 1 is back")
        asyncio.run(until(is_said))


def test_workers_that_share_a_file_continue_each_others_responses(tmp_path):
    """All ids name the file, and the load decides which worker answers."""
    with (
        up(f"--worker-args=--store-file={tmp_path / 'weft.db'}") as stack,
        stack.client() as client,
    ):
        made = [posted(client, "/v1/responses", INPUT) for _ in range(4)]
        assert len({store_of(each["id"]) for each in made}) == 1
        for first in made:
            posted(client, "/v1/responses", {**INPUT, "previous_response_id": first["id"]})
            assert read(client, f"/v1/responses/{first['id']}")["id"] == first["id"]
