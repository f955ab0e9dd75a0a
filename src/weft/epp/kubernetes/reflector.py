"""`Reflector`: lists the objects of one kind once and then watches them. During failures, the known objects stay."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from weft.core.aio.pauses import Pauses
from weft.epp.kubernetes.api import EXPIRED, FORESEEN, NOT_FOUND, ApiFailure, ApiServer, Status

_log = logging.getLogger(__name__)

_PAGE: Final = 100
_MAX_PAGE_BYTES: Final = 32 * 2**20
_MAX_LINE_BYTES: Final = 4 * 2**20  # etcd accepts objects of up to 1.5 MiB
_LEAST_S: Final = 0.01
# Statuses that do not mean that the position in the stream is invalid.
_BUSY: Final = {0, 429, 500, 502, 503}


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata that every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None


class Object(msgspec.Struct, frozen=True, rename="camel"):
    """Base class of the kinds of objects."""

    metadata: Meta


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[T]):
    """A kind of object: its path in the API, and the type that its objects are decoded to."""

    path: str
    type: type[T]
    params: Mapping[str, str] = field(default_factory=dict)
    is_optional: bool = False  # True if the cluster may lack this kind of object


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Timeouts and intervals; tests set shorter ones."""

    first_pause_s: float = 0.2
    max_pause_s: float = 10.0
    steady_s: float = 1.0  # a watch of at least this length resets the pauses between retries
    list_s: float = 60.0
    watch_s: float = 45.0  # length of one watch; a new request then detects a dead connection
    idle_s: float = 60.0  # longer than `watch_s`
    max_objects: int = 4096


USUAL: Final = Pace()


class Reflector(Generic[T]):
    """Keeps `objects` (by namespace/name) equal to the API server's objects until its task is cancelled."""

    def __init__(
        self, api: ApiServer, kind: Kind[T], changed: Callable[[], None], pace: Pace
    ) -> None:
        self.objects: dict[str, T] = {}
        self.has_listed = False
        self._api = api
        self._kind = kind
        self._changed = changed
        self._pace = pace
        self._version: str | None = None  # None: list the objects before watching them
        self._pauses = Pauses(pace.first_pause_s, pace.max_pause_s, pace.steady_s)
        self._is_lost = False
        self._is_full = False

    async def run(self) -> None:
        """Lists the objects, then watches them; starts again after each failure."""
        while True:
            wait_s = 0.0
            started: float | None = None
            try:
                if self._version is None:
                    async with asyncio.timeout(self._pace.list_s):
                        self._version = await self._list()
                started = time.monotonic()
                async with asyncio.timeout(self._pace.idle_s):
                    await self._watch()
            except Exception as error:  # noqa: BLE001 - whatever it was, what is known must be kept up to date
                wait_s = self._failed(error)
            is_steady = started is not None and self._pauses.lasted(time.monotonic() - started)
            if is_steady and not wait_s:
                continue
            # A stream that ends at once is not a failure, but must not become a busy loop. The pause is random, so
            # that several pickers do not retry together.
            await asyncio.sleep(max(self._pauses.next_s() * random.uniform(0.5, 1.0), wait_s))

    def _failed(self, error: Exception) -> float:
        """Records a failure; returns the minimum seconds until the next attempt."""
        wait_s, is_torn = 0.0, isinstance(error, TimeoutError)
        if isinstance(error, ApiFailure):
            wait_s = error.retry_after_s * random.uniform(1.0, 1.2)
            is_torn = error.status in _BUSY
        if not is_torn:
            self._version = None
        if not self._is_lost:
            said = str(error) or type(error).__name__
            is_absent = self._kind.is_optional and getattr(error, "status", 0) == NOT_FOUND
            level = logging.INFO if is_absent else logging.WARNING
            _log.log(
                level,
                "%s; the present %d objects are kept",
                said,
                len(self.objects),
                exc_info=None if isinstance(error, FORESEEN) else error,
            )
            self._is_lost = True
        return max(wait_s, _LEAST_S)

    def _answered(self) -> None:
        if self._is_lost:
            _log.info("%s: the API server answers again", self._kind.path)
        self._is_lost = False

    async def _list(self) -> str:
        """Lists all objects, page by page. Only a complete list replaces the known objects. Returns the position from
        which to watch.
        """
        found: dict[str, T] = {}
        params = {**self._kind.params, "limit": str(_PAGE)}
        while True:
            body = await self._api.get(self._kind.path, params, _MAX_PAGE_BYTES)
            page = msgspec.json.decode(body, type=_List)
            for raw in page.items or ():
                self._keep(found, raw)
            if not page.metadata.continue_:
                break
            params["continue"] = page.metadata.continue_
        self.objects = found
        self.has_listed = True
        self._answered()
        self._changed()
        return page.metadata.resource_version

    async def _watch(self) -> None:
        """Applies the events after the last known position until the stream ends."""
        timeout_s = self._pace.watch_s * random.uniform(0.8, 1.0)
        params = {
            **self._kind.params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        async with self._api.stream(self._kind.path, params, self._pace.idle_s) as chunks:
            self._answered()
            async for lines in _split(chunks):
                try:
                    for line in lines:
                        self._take(line)
                finally:
                    self._changed()  # called once for all events that arrived together

    def _take(self, line: bytes) -> None:
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise ApiFailure(f"{self._kind.path}: {status.message}", status.code)
        meta = msgspec.json.decode(event.object, type=Object).metadata
        if event.type == "DELETED":
            self.objects.pop(_key(meta), None)
        elif event.type in {"ADDED", "MODIFIED"}:
            self._keep(self.objects, event.object)
        elif event.type != "BOOKMARK":
            raise ApiFailure(f"{self._kind.path}: unknown event {event.type[:40]!r}", EXPIRED)
        self._version = meta.resource_version or self._version

    def _keep(self, into: dict[str, T], raw: msgspec.Raw) -> None:
        """Stores an object. If the object cannot be decoded, its earlier version stays."""
        meta = msgspec.json.decode(raw, type=Object).metadata
        key = _key(meta)
        try:
            value = msgspec.json.decode(raw, type=self._kind.type)
        except msgspec.ValidationError as error:
            _log.error("%s %s: %s; the object is ignored", self._kind.path, key, error)
            if key in self.objects:
                into[key] = self.objects[key]
            return
        if key not in into and len(into) >= self._pace.max_objects:
            if not self._is_full:
                limit = self._pace.max_objects
                _log.error("%s: more than %d objects; the rest is ignored", self._kind.path, limit)
            self._is_full = True
            return
        into[key] = value


async def _split(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yields the complete lines of each chunk together. An incomplete line at the end of the stream is dropped."""
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        end = rest.rfind(b"\n") + 1
        if end:
            lines = [line for line in bytes(rest[:end]).split(b"\n") if line.strip()]
            del rest[:end]
            yield lines
        if len(rest) > _MAX_LINE_BYTES:
            raise ApiFailure(f"an event has more than {_MAX_LINE_BYTES} bytes", EXPIRED)


def _key(meta: Meta) -> str:
    return f"{meta.namespace}/{meta.name}"
