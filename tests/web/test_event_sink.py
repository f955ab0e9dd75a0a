"""Streams whose events go past the task that writes them, over a real connection."""

import dataclasses
import json

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.web.test_lagging_reader import listening

PROMPT = "abcdefgh" * 5
BODIES = {
    "/v1/completions": {"prompt": PROMPT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}]},
}


class CountedSink:
    """A sink that counts what goes through it."""

    def __init__(self, sink, counts):
        self._sink, self._counts = sink, counts

    @property
    def is_open(self):
        return self._sink.is_open

    def take(self, output):
        self._counts.append(output)
        self._sink.take(output)


class CountedClient:
    """An engine's client; `taken` are the outputs that went through sinks."""

    def __init__(self, client):
        self._client, self.taken = client, []

    def __getattr__(self, name):
        return getattr(self._client, name)

    def run_into(self, request, sink):
        return self._client.run_into(request, CountedSink(sink, self.taken))


def texts(path, events):
    """What each answer adds up to."""
    found = {}
    for event in events:
        for choice in event["choices"]:
            text = choice["text"] if path == "/v1/completions" else choice["delta"].get("content")
            found[choice["index"]] = found.get(choice["index"], "") + (text or "")
    return found


@pytest.mark.parametrize("path", BODIES)
async def test_events_that_go_past_the_task_add_up_to_the_answer(echoing, path):
    """Every choice has its text in order and whole, its usage and the end mark; most of it came by the sink."""
    body = {**BODIES[path], "n": 2, "max_tokens": 30, "ignore_eos": True}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    client = CountedClient(echoing.client)
    async with (
        listening(dataclasses.replace(echoing, client=client)) as (_, port),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http,
    ):
        whole = (await http.post(path, json=body)).json()
        lines = (await http.post(path, json=streamed)).text.splitlines()
    datas = [line.removeprefix("data: ") for line in lines if line]
    events = [json.loads(data) for data in datas[:-1]]
    answers = [one.get("text") or one["message"]["content"] for one in whole["choices"]]
    assert datas[-1] == "[DONE]"
    assert texts(path, events) == dict(enumerate(answers))
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 60
    assert client.taken
