"""`AttachedServer`: the supervisor's object for one API server: the server's requests, and its calls to the engines."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeAlias, TypeVar, assert_never

import msgspec

from weft.core.aio.tasks import unbroken
from weft.core.config.engine import EngineConfig
from weft.core.errors import EngineDead, GenerationError, Unsupported, WeftError
from weft.core.values.controls import SERVER_HUNG_S
from weft.core.values.kv_cache import KvEventBatch
from weft.core.values.kv_transfer import remote_prompt
from weft.core.values.types import LoRARequest, Request
from weft.engine.api_servers.calls import (
    ANSWERS,
    CHECK_HEALTH,
    EXPOSE,
    GET_LOADS,
    SUBSCRIBE,
    Health,
    Loads,
    with_structures,
)
from weft.engine.api_servers.faults import Fault
from weft.engine.api_servers.messages import (
    Aborted,
    Acknowledged,
    Answer,
    Cancel,
    Collect,
    Collected,
    Family,
    Finished,
    Forward,
    FromServer,
    Item,
    Opened,
    Prepared,
    RequestFailed,
    State,
)
from weft.engine.clients.data_parallel import DataParallelClient
from weft.engine.front.client import FrontClient
from weft.engine.ipc.channel import Channel
from weft.engine.ipc.messages import Abort, Add, ReleaseRemote

log = logging.getLogger("weft.engine")

K = TypeVar("K")

COLLECT_S = 2.0  # maximum wait of `/metrics` for the series of one process
USE_S = 5.0  # maximum wait of a call until one process has applied a change

Engines: TypeAlias = FrontClient | DataParallelClient  # the client that all API servers share


class AttachedServer:
    """One connected API server, as the supervisor sees it; exists as long as the server's channel.

    `changed` is awaited after each call that may change the state that all API servers share.
    """

    def __init__(
        self,
        channel: Channel[FromServer],
        client: Engines,
        changed: Callable[[], Awaitable[None]],
        expose: Callable[[], Awaitable[bytes]],
    ) -> None:
        self.channel = channel
        self.heartbeat = channel.beat(SERVER_HUNG_S)
        self._client = client
        self._changed = changed
        self._expose = expose
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._ids = itertools.count()
        self._queries: dict[int, asyncio.Future[Any]] = {}
        self.families: list[Family] = []
        self.is_closed = False
        loop = asyncio.get_running_loop()
        self.prepared: asyncio.Future[None] = loop.create_future()
        self.opened: asyncio.Future[int | None] = loop.create_future()

    async def serve(self) -> None:
        """Serves the API server until it disconnects; then aborts its requests and cancels its calls."""
        try:
            async for message in self.channel.messages():
                self._take(message)
        finally:
            self.is_closed = True
            self.channel.close()
            waited: list[asyncio.Future[Any]] = [
                self.prepared,
                self.opened,
                *self._queries.values(),
            ]
            for future in waited:
                if not future.done():
                    future.set_exception(EngineDead("an API server has ended"))
                    future.exception()
            tasks = [*self._requests.values(), *self._calls.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def use(self, config: EngineConfig, adapters: list[LoRARequest]) -> None:
        """Announces a new configuration and new adapters to the API server.

        Returns when the server has applied them, has disconnected, or has not answered in time.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(USE_S):
                await self._query(lambda call_id: State(call_id, config, adapters))

    async def collect(self) -> list[Family]:
        """Returns the API server's metric series; the last known ones if the server has disconnected or does not
        answer.
        """
        try:
            families = await asyncio.wait_for(self._query(Collect), COLLECT_S)
        except TimeoutError:
            return self.families
        if families is not None:
            self.families = families
        return self.families

    async def _query(self, make: Callable[[int], msgspec.Struct]) -> Any:
        call_id = next(self._ids)
        future = self._queries[call_id] = asyncio.get_running_loop().create_future()
        try:
            if self.is_closed:
                return None
            self.channel.send(make(call_id))
            return await future
        except EngineDead:
            return None
        finally:
            del self._queries[call_id]

    def _take(self, message: FromServer) -> None:
        match message:
            case Add():
                self._begin_request(message.request)
            case Abort():
                self._abort(message)
            case Finished():
                self._client.confirm(message.engine_id)
            case ReleaseRemote():
                self._client.release_remote(message.source)
            case Forward():
                _begin(self._calls, message.call_id, self._answer(message))
            case Cancel():
                _cancel(self._calls, message.call_id)
            case Prepared() | Opened():
                self._take_start(message)
            case Collected() | Acknowledged():
                query = self._queries.get(message.call_id)
                if query is not None:
                    _finish(query, getattr(message, "families", None))
            case _:
                assert_never(message)

    def _take_start(self, message: Prepared | Opened) -> None:
        if isinstance(message, Prepared):
            _finish(self.prepared, None)
        else:
            _finish(self.opened, message.grpc_port)

    def _begin_request(self, request: Request) -> None:
        """Starts a request.

        If the request is cancelled before its task begins, its blocks at another engine are released.
        """
        has_begun = False

        async def run() -> None:
            nonlocal has_begun
            has_begun = True
            await self._run(request)

        def release(_: asyncio.Task[None]) -> None:
            source = None if has_begun else remote_prompt(request.params.extra_args)
            if source is not None:
                self._client.release_remote(source)

        _begin(self._requests, request.engine_id, run())
        self._requests[request.engine_id].add_done_callback(release)

    def _abort(self, message: Abort) -> None:
        for engine_id in message.engine_ids:
            if message.index is None:
                _cancel(self._requests, engine_id)
            else:
                self._client.end_answer(engine_id, message.index)

    async def _run(self, request: Request) -> None:
        """Runs a request until its reader has all outputs.

        Sends the API server only ends of answers that the engine's outputs do not show.
        """
        try:
            async with aclosing(self._client.run_counted(request)) as ends:
                async for end in ends:
                    if end.is_aborted:
                        self.channel.send(Aborted(request.engine_id))
        except Exception as error:  # noqa: BLE001 - concerns this request only; its reader gets the error
            self.channel.send(RequestFailed(request.engine_id, _fault(error)))

    async def _answer(self, call: Forward) -> None:
        try:
            value = await self._call(call)
            answer = Answer(call.call_id, msgspec.Raw(msgspec.msgpack.encode(value)))
        except Exception as error:  # noqa: BLE001 - concerns this call only; its caller gets the error
            answer = Answer(call.call_id, fault=_fault(error))
        self.channel.send(answer)

    async def _call(self, call: Forward) -> Any:
        client, method = self._client, call.method
        if method == CHECK_HEALTH:
            await client.check_health()
            return Health(client.is_degraded)
        if method == GET_LOADS:
            return Loads(await client.get_loads(), client.num_active_requests)
        if method == EXPOSE:
            return await self._expose()
        if method == SUBSCRIBE:
            return await self._pass_on(call, client.subscribe_kv_events(*call.arguments))
        if method not in ANSWERS:
            raise Unsupported(f"{method[:80]!a} cannot be called with several API servers")
        with_structures(method, call.arguments, call.named)
        doing = self._change(getattr(client, method)(*call.arguments, **call.named))
        # Scaling continues without its caller, and all API servers must learn its result.
        return await (unbroken(doing) if method == "scale_elastic_ep" else doing)

    async def _change(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        finally:
            await self._changed()

    async def _pass_on(self, call: Forward, batches: AsyncGenerator[KvEventBatch, None]) -> None:
        async with aclosing(batches):
            async for batch in batches:
                item = msgspec.Raw(msgspec.msgpack.encode(batch))
                self.channel.send(Item(call.call_id, item))
                await self.channel.drain()


def _finish(future: asyncio.Future[Any], value: Any) -> None:
    """Sets the future's result, unless the caller that waits for it has given up: a signal may stop the start."""
    if not future.done():
        future.set_result(value)


def _begin(tasks: dict[K, asyncio.Task[None]], key: K, work: Coroutine[Any, Any, None]) -> None:
    task = tasks[key] = asyncio.create_task(work)
    task.add_done_callback(lambda _: tasks.pop(key, None))


def _cancel(tasks: dict[K, asyncio.Task[None]], key: K) -> None:
    """Cancels the task of `key`, unless it has ended."""
    if (task := tasks.get(key)) is not None:
        task.cancel()


def _fault(error: Exception) -> Fault:
    if isinstance(error, WeftError):
        return Fault.of(error)
    log.error("the supervisor of API servers failed", exc_info=error)
    return Fault.of(GenerationError(f"{type(error).__name__} in the server; its log has details"))
