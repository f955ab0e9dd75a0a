"""A small Kubernetes API server: lists in pages, watches, writes with versions, reviews, compaction, faults on demand.

An HTTP server over a log of changes, as etcd keeps one. It stands up, falls and stands up again at one port.
"""

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

PODS = "api/v1/namespaces/ns/pods"
POOLS = "apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"


@dataclass
class Asked:
    """A request as it came."""

    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    method: str = "GET"
    body: bytes = b""

    @property
    def is_watch(self) -> bool:
        return "watch" in self.params


@dataclass
class ApiServerDouble:
    """Objects by collection and name. Change them with `put` and `delete`."""

    port: int = 0
    page: int = 250
    revision: int = 100
    compacted: int = 0  # watches from before are gone
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[tuple[int, str, dict[str, Any] | None, dict[str, Any] | None]] = field(
        default_factory=list
    )
    asked: list[Asked] = field(default_factory=list)
    refusals: deque[tuple[int, str]] = field(default_factory=deque)  # status and headers, in order
    users: dict[str, dict[str, Any]] = field(default_factory=dict)  # by token
    readers: set[tuple[str, str]] = field(default_factory=set)  # name of a user, path they may get
    watch_bytes: deque[bytes] = field(default_factory=deque)  # what the next watches say, and end
    is_mute: bool = False  # takes requests, answers none

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._news = asyncio.Event()

    @property
    def watches(self) -> list[Asked]:
        return [each for each in self.asked if each.is_watch]

    @property
    def lists(self) -> list[Asked]:
        return [each for each in self.asked if not each.is_watch]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Be lost: nobody listens, and what was open is cut."""
        assert self._server is not None
        self._server.close()
        await self.tear()

    async def tear(self) -> None:
        """Cut every connection, watches in the middle of a line."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def put(self, collection: str, made: dict[str, Any]) -> None:
        """Create or replace an object."""
        self.revision += 1
        made["metadata"] = {**made["metadata"], "resourceVersion": str(self.revision)}
        named = self.objects.setdefault(collection, {})
        former = named.get(made["metadata"]["name"])
        named[made["metadata"]["name"]] = made
        self._note(collection, former, made)

    def delete(self, collection: str, name: str) -> None:
        self.revision += 1
        former = self.objects[collection].pop(name)
        self._note(collection, former, None)

    def compact(self) -> None:
        """Forget how it came to be as it is."""
        self.log.clear()
        self.compacted = self.revision

    def _note(self, collection: str, former: Any, now: Any) -> None:
        self.log.append((self.revision, collection, former, now))
        self._news.set()
        self._news = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *headers = head.split("\r\n")
                target = urlsplit(line.split()[1])
                params = {name: values[0] for name, values in parse_qs(target.query).items()}
                pairs = (each.split(": ", 1) for each in headers if each)
                found = {k.lower(): v for k, v in pairs}
                body = await reader.readexactly(int(found.get("content-length", "0")))
                asked = Asked(target.path.strip("/"), params, found, line.split()[0], body)
                self.asked.append(asked)
                await self._answer(asked, writer)
        except asyncio.CancelledError:
            with suppress(ConnectionError):
                writer.write(b'{"type": "MODI')  # half a line
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if self.is_mute:
            await asyncio.sleep(3600)
        if self.refusals:
            status, headers = self.refusals.popleft()
            _write(
                writer, status, json.dumps({"kind": "Status", "message": "no"}).encode(), headers
            )
        elif asked.path.endswith("reviews"):
            _write(writer, 201, json.dumps(self._review(json.loads(asked.body))).encode())
        elif asked.path.split("/")[-2] in {"leases", "endpointslices"} or asked.method == "POST":
            _write(writer, *self._one(asked))
        elif not asked.is_watch:
            _write(writer, 200, json.dumps(self._list(asked)).encode())
        elif self.watch_bytes:
            writer.write(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + self.watch_bytes.popleft()
            )
            await writer.drain()
            raise ConnectionResetError
        elif int(asked.params["resourceVersion"]) < self.compacted:
            status = {"kind": "Status", "code": 410, "message": "too old resource version"}
            _write(writer, 200, json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        else:
            await self._watch(asked, writer)
        await writer.drain()

    def _one(self, asked: Asked) -> tuple[int, bytes]:
        """Read, create or replace one object; only the version that was read is replaced."""
        collection, _, name = asked.path.rpartition("/")
        if asked.method == "POST":
            collection, name = asked.path, json.loads(asked.body)["metadata"]["name"]
        found = self.objects.get(collection, {}).get(name)
        if asked.method != "GET":
            made = json.loads(asked.body)
            version = found and found["metadata"]["resourceVersion"]
            if version != made["metadata"].get("resourceVersion"):
                return 409, b'{"kind": "Status", "message": "the object has been modified"}'
            self.put(collection, made)
            found = made
        if found is None:
            return 404, b'{"kind": "Status", "message": "not found"}'
        return 200, json.dumps(found).encode()

    def _review(self, review: dict[str, Any]) -> dict[str, Any]:
        """Fill in who a token is of, or whether a user may."""
        spec = review["spec"]
        if review["kind"] == "TokenReview":
            user = self.users.get(spec["token"])
            return {**review, "status": {"user": user, "authenticated": True} if user else {}}
        wanted = (spec["user"], spec["nonResourceAttributes"]["path"])
        is_allowed = wanted in self.readers and spec["nonResourceAttributes"]["verb"] == "get"
        return {**review, "status": {"allowed": is_allowed}}

    def _list(self, asked: Asked) -> dict[str, Any]:
        found = sorted(self.objects.get(asked.path, {}).items())
        found = [(name, each) for name, each in found if _selects(asked, each)]
        after = asked.params.get("continue", "")
        rest = [(name, each) for name, each in found if name > after]
        size = min(self.page, int(asked.params.get("limit", "1000")))
        page = rest[:size]
        metadata = {"resourceVersion": str(self.revision)}
        if len(rest) > size:
            metadata["continue"] = page[-1][0]
        return {"metadata": metadata, "items": [each for _, each in page]}

    async def _watch(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        seen = int(asked.params["resourceVersion"])
        deadline = asyncio.get_running_loop().time() + int(asked.params["timeoutSeconds"])
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            news = self._news
            for revision, collection, former, now in [*self.log]:
                if revision > seen and collection == asked.path:
                    event = _event(asked, former, now, revision)
                    if event is not None:
                        _chunk(writer, json.dumps(event).encode() + b"\n")
            seen = max(seen, self.revision)
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await news.wait()
        writer.write(b"0\r\n\r\n")


def _event(asked: Asked, former: Any, now: Any, revision: int) -> dict[str, Any] | None:
    was, is_ = (each is not None and _selects(asked, each) for each in (former, now))
    if is_:
        return {"type": "MODIFIED" if was else "ADDED", "object": now}
    if not was:
        return None
    metadata = {**former["metadata"], "resourceVersion": str(revision)}
    return {"type": "DELETED", "object": {**former, "metadata": metadata}}


def _selects(asked: Asked, made: dict[str, Any]) -> bool:
    metadata = made["metadata"]
    name = asked.params.get("fieldSelector", "").removeprefix("metadata.name=")
    labels = metadata.get("labels", {}).items()
    wanted = [pair for pair in asked.params.get("labelSelector", "").split(",") if pair]
    return name in {"", metadata["name"]} and all(
        tuple(pair.split("=")) in labels for pair in wanted
    )


def _write(writer: asyncio.StreamWriter, status: int, body: bytes, headers: str = "") -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    writer.write(head.encode() + body)


def _chunk(writer: asyncio.StreamWriter, line: bytes) -> None:
    writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
