"""`LoraTable`: the LoRA adapters that requests may name, and the adapters that are loaded in the engine now.

The front decides, because it knows every open request: an adapter is removed from the engine only when no request
runs with it. Every load has an id of its own, which is part of the hashes of its KV blocks: an adapter that was
loaded again never uses blocks that its earlier load has cached.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec

from weft.core.checks.lora import validate_lora
from weft.core.config.engine import EngineConfig
from weft.core.errors import BadRequest, FailedPrecondition, NotFound, Overloaded
from weft.core.values.types import LoRARequest
from weft.engine.ipc.messages import Command, RemoveLora, Reply

MAX_NAMES = 1024  # maximum number of known adapters, loaded or not


@dataclass(eq=False, slots=True)
class LoadedAdapter:
    """An adapter in the engine. An adapter that was replaced or removed is retired; it is dropped when idle."""

    lora_id: int
    num_open: int = 0
    is_retired: bool = False


@dataclass(eq=False, slots=True)
class _Entry:
    """A named adapter. `load` is None while the adapter is not in the engine; `task` loads it."""

    request: LoRARequest
    load: LoadedAdapter | None = None
    task: asyncio.Task[None] | None = None
    is_begun: bool = (
        False  # True if the engine has the load command: the task cannot be cancelled any more
    )
    num_waiting: int = 0
    used_at: int = 0  # orders entries by last use
    is_pinned: bool = False

    @property
    def is_idle(self) -> bool:
        """True if the adapter may be evicted for another."""
        is_free = self.load is not None and not self.load.num_open
        return is_free and not self.num_waiting and not self.is_pinned


class LoraTable:
    """Adapters of one engine. One event loop owns it. `load` has the engine load a path under an id; `send` never
    blocks.
    """

    def __init__(
        self,
        config: EngineConfig,
        load: Callable[[int, str], Awaitable[Reply]],
        send: Callable[[Command], None],
    ) -> None:
        self._limits = config.lora_config
        self._model = config.model_config
        self._send_load = load
        self._send = send
        self._entries: dict[str, _Entry] = {}
        # adapters that are being loaded: new names, or replacements of loaded adapters
        self._arriving: dict[str, _Entry] = {}
        # Loaded adapters, retired ones included: a retired adapter takes room until it is idle.
        self._loads: set[LoadedAdapter] = set()
        self._num_loading = 0
        self._ids = itertools.count(1)
        self._uses = itertools.count(1)
        self._has_room = asyncio.Event()
        self._error: BaseException | None = None

    # -- what there is ------------------------------------------------------------------------

    @property
    def requests(self) -> Mapping[str, LoRARequest]:
        """The adapters that requests may name."""
        return {name: entry.request for name, entry in self._entries.items()}

    @property
    def loaded_ids(self) -> set[int]:
        """Callers' ids of the adapters in the engine."""
        entries = self._entries.values()
        return {e.request.lora_int_id for e in entries if e.load is not None}

    def usage(self) -> tuple[int, list[str], list[str]]:
        """Returns the maximum number of loaded adapters, the names that open requests use, and the names that
        requests wait for.
        """
        entries = {**self._entries, **self._arriving}.items()
        return (
            0 if self._limits is None else self._limits.max_loras,
            sorted(n for n, e in entries if e.load is not None and e.load.num_open),
            sorted(n for n, e in entries if e.load is None and e.num_waiting),
        )

    # -- names come and go --------------------------------------------------------------------

    async def add(self, request: LoRARequest) -> None:
        """Loads an adapter; a name that exists already is loaded again only with `load_inplace`."""
        self.check(request)
        stored = msgspec.structs.replace(request, load_inplace=False)
        while request.load_inplace and (other := self._arriving.get(request.lora_name)):
            assert other.task is not None
            await asyncio.wait((other.task,))
        entry = _Entry(stored) if request.load_inplace else self._entry(stored)
        self.release(await self._hold(entry))

    def remove(self, lora_int_id: int) -> bool:
        """Forgets an adapter, whose open requests run to their end. Returns False if no adapter has the id."""
        name = self._named(lora_int_id)
        if name is None:
            return False
        self._retire(self._entries.pop(name))
        return True

    async def pin(self, lora_int_id: int) -> bool:
        """Keeps an adapter loaded, whatever other adapters are requested. Returns False if no adapter has the id."""
        name = self._named(lora_int_id)
        if name is None:
            return False
        entry = self._entries[name]
        self.release(await self._hold(entry))
        entry.is_pinned = True
        return True

    def check(self, request: LoRARequest) -> None:
        """Rejects a request that contradicts the model or the known adapters; the error names the field."""
        if self._limits is None:
            raise BadRequest("lora_request", "lora_request needs an engine with --enable-lora")
        validate_lora(request, self._model)
        name = request.lora_name
        owner = self._owner(request.lora_int_id)
        if owner not in (None, name):
            raise BadRequest(
                "lora_int_id", f"lora_int_id {request.lora_int_id} belongs to the adapter {owner!a}"
            )
        known = self._entries.get(name) or self._arriving.get(name)
        if known is None and len(self._entries) + len(self._arriving) >= MAX_NAMES:
            raise Overloaded(f"the maximum of {MAX_NAMES} adapters is reached; remove one first")
        if known and not request.load_inplace and known.request.lora_path != request.lora_path:
            raise BadRequest(
                "lora_name",
                f"lora_name {name!a} exists already, with another lora_path; set load_inplace "
                "to replace it",
            )

    def fail(self, error: BaseException) -> None:
        """Marks the engine as dead: every caller that waits for room gets `error`."""
        self._error = error
        self._has_room.set()

    # -- requests -----------------------------------------------------------------------------

    async def hold(self, request: LoRARequest, *, unless: asyncio.Event) -> LoadedAdapter | None:
        """Makes sure that the adapter is in the engine, and keeps it there until `release`.

        Waits while other adapters that are in use take all the room. Returns None if `unless` is set first.
        """
        self.check(request)
        if request.load_inplace:
            raise BadRequest("lora_request", "load_inplace is for add_lora, not for a request")
        held = asyncio.create_task(self._hold(self._entry(request)))
        ended = asyncio.create_task(unless.wait())
        try:
            await asyncio.wait((held, ended), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if held.done() and not held.cancelled() and held.exception() is None:
                self.release(held.result())
            raise
        finally:
            ended.cancel()
            is_held = held.done()
            held.cancel()
        return held.result() if is_held else None

    def release(self, held: LoadedAdapter) -> None:
        """Ends one request's use of the adapter."""
        held.num_open -= 1
        self._drop_if_over(held)
        self._has_room.set()

    def _entry(self, request: LoRARequest) -> _Entry:
        name = request.lora_name
        return self._entries.get(name) or self._arriving.get(name) or _Entry(request)

    async def _hold(self, entry: _Entry) -> LoadedAdapter:
        """Returns the entry's load, counted as open; loads it into the engine first if needed."""
        entry.num_waiting += 1
        try:
            while entry.load is None:
                if entry.task is None:
                    self._begin(entry)
                assert entry.task is not None
                await asyncio.shield(entry.task)  # other callers may wait for the task too
            entry.load.num_open += 1
            entry.used_at = next(self._uses)
            return entry.load
        finally:
            entry.num_waiting -= 1
            self._call_off(entry)

    # -- into the engine and out of it --------------------------------------------------------

    def _begin(self, entry: _Entry) -> None:
        name = entry.request.lora_name
        if self._entries.get(name) is not entry:
            self._arriving[name] = entry
        entry.task = asyncio.create_task(self._bring(entry))
        # Reads the task's exception, because perhaps no caller waits for the task any more.
        entry.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _call_off(self, entry: _Entry) -> None:
        """If no caller waits for the entry's adapter any more, cancels a load that has not begun, and drops a retired
        adapter.
        """
        if entry.num_waiting:
            return
        if entry.task is not None and not entry.is_begun:
            entry.task.cancel()
            self._forget_task(entry)
        if entry.load is not None:
            self._drop_if_over(entry.load)

    def _forget_task(self, entry: _Entry) -> None:
        entry.task, entry.is_begun = None, False
        name = entry.request.lora_name
        if self._arriving.get(name) is entry:
            del self._arriving[name]

    async def _bring(self, entry: _Entry) -> None:
        """Makes room for one adapter and loads the entry's adapter into the engine."""
        name = entry.request.lora_name
        try:
            while not self._make_room():
                await self._has_room.wait()
            load = await self._load(entry)
            is_wanted = entry in (self._arriving.get(name), self._entries.get(name))
            self._loads.add(load)
            entry.load = load
            if is_wanted:
                self._install(name, entry)
            else:  # the adapter was removed during the load: only requests that wait already may use it
                load.is_retired = True
        finally:
            if entry.task is asyncio.current_task():  # else the load was cancelled
                self._forget_task(entry)
            self._call_off(entry)
            self._has_room.set()

    async def _load(self, entry: _Entry) -> LoadedAdapter:
        request, load = entry.request, LoadedAdapter(next(self._ids))
        entry.is_begun = True
        self._num_loading += 1
        try:
            reply = await self._send_load(load.lora_id, request.lora_path)
        finally:
            self._num_loading -= 1
        if reply.refusal is None:
            return load
        text = f"lora_name {request.lora_name!a} was not loaded: {reply.refusal}"
        raise NotFound(text) if reply.is_missing else BadRequest("lora_path", text)

    def _install(self, name: str, entry: _Entry) -> None:
        former = self._entries.get(name)
        self._entries[name] = entry
        if former is not None and former is not entry:
            entry.is_pinned = former.is_pinned
            self._retire(former)

    def _make_room(self) -> bool:
        """Makes room for one more adapter, if necessary by evicting the least recently used idle adapter. Returns False
        if no adapter is idle.
        """
        if self._error is not None:
            raise self._error
        assert self._limits is not None
        if len(self._loads) + self._num_loading < self._limits.max_loras:
            return True
        if sum(e.is_pinned for e in self._entries.values()) >= self._limits.max_loras:
            raise FailedPrecondition(
                f"all {self._limits.max_loras} adapters that may be loaded (--max-loras) are pinned"
            )
        idle = [entry for entry in self._entries.values() if entry.is_idle]
        if not idle:
            self._has_room.clear()
            return False
        self._retire(min(idle, key=lambda entry: entry.used_at))
        return True

    def _retire(self, entry: _Entry) -> None:
        load, entry.load = entry.load, None
        if load is not None:
            load.is_retired = True
            self._drop_if_over(load)
            self._has_room.set()

    def _drop_if_over(self, load: LoadedAdapter) -> None:
        if load.is_retired and not load.num_open and load in self._loads:
            self._loads.remove(load)
            if self._error is None:
                self._send(RemoveLora(load.lora_id))

    def _named(self, lora_int_id: int) -> str | None:
        """Returns the name of an adapter that requests may name already."""
        owner = self._owner(lora_int_id)
        return owner if owner in self._entries else None

    def _owner(self, lora_int_id: int) -> str | None:
        """Returns the name that has this id."""
        both = (*self._entries.items(), *self._arriving.items())
        return next((n for n, e in both if e.request.lora_int_id == lora_int_id), None)
