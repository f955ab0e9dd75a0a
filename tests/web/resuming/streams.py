"""A server whose streams can be continued, a client that reads them in groups, and the sum of their events."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httpx2
from prometheus_client import CollectorRegistry

from tests.busy import PATIENCE_S
from weft.web.admin.probes import probe_endpoints
from weft.web.http.options import HttpOptions
from weft.web.http.server import HttpServer
from weft.web.http.state import ServerState
from weft.web.resuming.position import HEADER, NEW
from weft.web.resuming.resumable import ResumingServer, resumable
from weft.web.routes import all_endpoints
from weft.web.served import Served

SECRET = b"a secret that equal servers share"
SAME = "weights, settings"


async def same(_lora: object) -> str:
    """The fingerprint of all servers, unless a test says otherwise."""
    return SAME


@asynccontextmanager
async def resumable_site(
    served: Served, secret: bytes = SECRET, fingerprint_of=same
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server of all APIs, whose streams can be continued."""
    registry = CollectorRegistry()
    state = ServerState(registry, monotonic())
    server = HttpServer(
        state, HttpOptions(port=0, resume_secret_file="given"), probe_endpoints(state)
    )
    port = await server.start()
    server.open(
        served, resumable(all_endpoints(state), ResumingServer.of(secret, fingerprint_of, registry))
    )
    try:
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S
        ) as client:
            yield client
    finally:
        await server.stop()


@dataclass
class Read:
    """A stream as a client reads it: groups of events, each ended by a comment; and what follows the last comment."""

    status: int
    outcome: str | None = None
    groups: list[list[str]] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    is_done: bool = False
    is_off: bool = False
    error: Any = None

    def position(self, num_groups: int) -> str:
        """What a client sends that has so many groups."""
        return ".".join((*self.parts[:num_groups], self.tags[num_groups - 1]))

    def events(self, num_groups: int | None = None) -> list[str]:
        """The events of the first groups, or all."""
        if num_groups is None:
            return [event for group in (*self.groups, self.rest) for event in group]
        return [event for group in self.groups[:num_groups] for event in group]


async def read(
    client: httpx2.AsyncClient, path: str, body: dict, resume: str | None = NEW, **headers: str
) -> Read:
    """Send a request and read its stream to the end."""
    if resume is not None:
        headers[HEADER] = resume
    async with client.stream(
        "POST", path, json={"stream": True, **body}, headers=headers
    ) as response:
        found = Read(response.status_code, response.headers.get(HEADER))
        if response.status_code != 200:
            found.error = json.loads(await response.aread())
            return found
        text = (await response.aread()).decode()
    for event in text.split("\n\n")[:-1]:
        _take(found, event)
    return found


def _take(found: Read, event: str) -> None:
    start = f": {HEADER} "
    if not event.startswith(start):
        found.rest.append(event)
        return
    words = event.removeprefix(start).split(" ")
    if words in (["done"], ["off"]):
        found.is_done, found.is_off = (
            found.is_done or words == ["done"],
            found.is_off or words == ["off"],
        )
        return
    found.parts.append(words[0])
    found.tags.append(words[1])
    found.groups.append(found.rest)
    found.rest = []


def summed(events: list[str]) -> list[Any]:
    """The events as objects, in the order of answers; consecutive ones that differ in streamed text are one."""
    data = [event.partition("data: ")[2] for event in events if not event.startswith(":")]
    objects = [json.loads(text) for text in data if text and text != "[DONE]"]
    objects.sort(key=_index)
    total: list[Any] = []
    for one in (part for whole in objects for part in _parts(whole)):
        one.pop("sequence_number", None)
        if "response" in one:
            one["response"].pop("completed_at", None)
        skeleton, streamed = _split(one)
        if total and total[-1][0] == skeleton and streamed:
            total[-1][1].append(streamed)
        else:
            total.append((skeleton, [streamed]))
    return [(skeleton, _joined(streamed)) for skeleton, streamed in total]


def _parts(one: dict) -> list[dict]:
    """A chunk, and apart from it the names of its calls and its finish reason: text may come with them or alone."""
    choice = (one.get("choices") or [{}])[0]
    before, after = [], []
    for call in choice.get("delta", {}).get("tool_calls", ()):
        name = call["function"].pop("name", None)
        if name is not None:
            before.append({"call": [call["index"], call.pop("id"), call.pop("type"), name]})
    if choice.get("finish_reason") is not None:
        after.append({"end": [choice["finish_reason"], choice.get("stop_reason")]})
        choice["finish_reason"] = None
    choice.pop("stop_reason", None)
    is_empty = bool(after) and not (choice.get("delta") or choice.get("text") or choice["logprobs"])
    return [*before, *([] if is_empty else [one]), *after]


def sequence_numbers(events: list[str]) -> list[int]:
    """The numbers of events, in the Responses API."""
    objects = [json.loads(event.partition("data: ")[2]) for event in events]
    return [one["sequence_number"] for one in objects]


def _index(one: dict) -> int:
    choices = one.get("choices")
    return 99 if choices == [] else choices[0]["index"] if choices else 0


_STREAMED = {
    "content",
    "reasoning",
    "reasoning_content",
    "arguments",
    "text",
    "thinking",
    "partial_json",
    "logprobs",
    "delta",
}


def _split(value: Any) -> tuple[Any, dict[str, Any]]:
    """An event without its streamed text and log-probabilities, and these by their place."""
    streamed: dict[str, Any] = {}

    def walk(one: Any, place: str) -> Any:
        if isinstance(one, list):
            return [walk(each, f"{place}.{number}") for number, each in enumerate(one)]
        if not isinstance(one, dict):
            return one
        left = {}
        for name, each in one.items():
            at = f"{place}.{name}"
            is_text = isinstance(each, str) and ("delta" in at or "choices" in at)
            if name in _STREAMED and (is_text or name == "logprobs"):
                streamed[at] = each
                left[name] = None
            else:
                left[name] = walk(each, at)
        return left

    return walk(value, ""), streamed


def _joined(streamed: list[dict[str, Any]]) -> dict[str, Any]:
    def join(before: Any, each: Any) -> Any:
        if before is None or each is None:
            return each if before is None else before
        if isinstance(each, dict):
            return {name: join(before.get(name), part) for name, part in each.items()}
        return before + each

    total: dict[str, Any] = {}
    for one in streamed:
        for name, part in one.items():
            total[name] = join(total.get(name), part)
    return total
