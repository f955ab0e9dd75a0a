"""`ApiServerClient`: the client by which one of several API servers uses the engines.

Requests go through the supervisor, which owns the queue and the adapters and chooses an engine. Outputs come directly
from the engines, so that each output costs time only in the API server that reads it.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import msgspec
import zmq

from weft.core.aio.failover import nothing, run_on
from weft.core.client import Sink
from weft.core.config.engine import EngineConfig
from weft.core.config.ranks import served_ranks
from weft.core.engine_info import EngineInfo
from weft.core.errors import EngineDead, Overloaded
from weft.core.observe.kv_feed import MAX_BUFFERED_BATCHES
from weft.core.values.controls import SERVER_HUNG_S
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import KvEventBatch
from weft.core.values.types import LoRARequest, PoolingRequestOutput, Request, RequestOutput
from weft.engine.api_servers.calls import (
    ABORT,
    ANSWERS,
    CHECK_HEALTH,
    EXPOSE,
    GET_LOADS,
    LOG_STATS,
    SUBSCRIBE,
    ForwardedCalls,
    Health,
    Loads,
    plain,
)
from weft.engine.api_servers.faults import Fault
from weft.engine.api_servers.messages import (
    Aborted,
    Acknowledged,
    Answer,
    Cancel,
    Collect,
    Collected,
    Drain,
    EnginesStopped,
    Family,
    Finished,
    Forward,
    Item,
    Open,
    RequestFailed,
    Start,
    State,
    ToServer,
)
from weft.engine.front.client import FrontClient
from weft.engine.front.event_socket import EventSocket
from weft.engine.front.lora_table import LoadedAdapter, LoraTable
from weft.engine.front.pooling_stream import PoolingStream
from weft.engine.ipc.channel import Channel
from weft.engine.ipc.messages import (
    MAX_FRAME_BYTES,
    Abort,
    Add,
    Command,
    Event,
    ReleaseRemote,
)
from weft.engine.ipc.output_ports import SEPARATOR
from weft.text.outputs.request_stream import RequestStream
from weft.text.prepare import InputProcessor
from weft.text.tokenizer import Tokenizer


class _Adapters(LoraTable):
    """The adapters that the supervisor has announced. The supervisor loads them, and keeps them loaded for requests."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, _load_nothing, lambda command: None)
        self.known: Mapping[str, LoRARequest] = {}

    @property
    def requests(self) -> Mapping[str, LoRARequest]:
        return self.known

    async def hold(self, request: LoRARequest, *, unless: asyncio.Event) -> LoadedAdapter | None:
        """Returns None: the supervisor, not the API server, keeps adapters loaded for requests."""
        del request, unless
        return None


class ApiServerClient(FrontClient):
    """Client of one API server. Made by `open`, inside a running event loop.

    `collect` returns the metric series of this process.
    """

    def __init__(
        self,
        name: str,
        channel: Channel[ToServer],
        config: EngineConfig,
        tokenizer: Tokenizer,
        collect: Callable[[], list[Family]] = list,
    ) -> None:
        self._adapters = _Adapters(config)
        super().__init__(config, tokenizer, loras=self._adapters)
        self._ready.set_result(None)  # the engines were ready before this process started
        self._name = name
        self._channel = channel
        self._requests.on_finished = lambda engine_id: channel.send(Finished(engine_id))
        self._collect = collect
        self.controls = ForwardedCalls(self.forward, self._pictures)
        self._call_ids = itertools.count()
        self._answers: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._items: dict[int, asyncio.Queue[msgspec.Raw | None]] = {}
        self._is_degraded = False
        self._num_elsewhere = 0
        self.is_tracing = False
        self.is_orphaned = False
        self._may_open = asyncio.Event()
        # A drain before the server listens ends the server: the message `Open` will never come.
        self.on_drain: Callable[[], None] = self.shutdown
        self._use(config)
        assert config.api_server_directory is not None
        self._context = zmq.Context()
        self._outputs = self._context.socket(zmq.PULL)
        self._outputs.set_hwm(0)
        self._outputs.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._outputs.bind(f"ipc://{Path(config.api_server_directory, name)}")
        self._events: EventSocket[Event] = EventSocket(self._outputs, Event, self._on_event)
        self._reading: asyncio.Task[None] | None = None
        self._heartbeat = channel.expect_beats(SERVER_HUNG_S)
        self._silence: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        name: str,
        channel: Channel[ToServer],
        config: EngineConfig,
        tokenizer: Tokenizer,
        collect: Callable[[], list[Family]] = list,
    ) -> "ApiServerClient":
        """Creates the client: listens for outputs in the directory of `config`, and for the supervisor on `channel`."""
        client = cls(name, channel, config, tokenizer, collect)
        client._events.watch()
        client._reading = asyncio.create_task(client._read(), name="weft-supervisor")
        client._silence = asyncio.create_task(client._end_silent(), name="weft-supervisor-beats")
        return client

    # -- requests -----------------------------------------------------------------------------

    def _send(self, command: Command) -> None:
        """Sends a command about one request to the supervisor; other commands are never sent by this method."""
        assert isinstance(command, Add | Abort | ReleaseRemote)
        self._channel.send(command)

    def run_into(self, request: Request, sink: Sink | None) -> AsyncGenerator[RequestOutput, None]:
        stream = RequestStream(request, self.renderer, sink=sink)
        return run_on(
            request, stream, partial(self._requests.run, stream=stream, on_advance=nothing)
        )

    def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        stream = PoolingStream(request)
        return run_on(
            request, stream, partial(self._requests.run, stream=stream, on_advance=nothing)
        )

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Aborts requests by their ids, also requests of other API servers."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        await super().abort(ids)
        await self.forward(ABORT, ids)

    @property
    def num_active_requests(self) -> int:
        """Number of running requests of all API servers; for the other servers as of the last `get_loads`."""
        return super().num_active_requests + self._num_elsewhere

    # -- calls --------------------------------------------------------------------------------

    async def forward(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Requests that the supervisor calls a method of its client; returns the result."""
        self._check_alive()
        call_id = next(self._call_ids)
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._answers[call_id] = answer
        given = {name: plain(value) for name, value in named.items()}
        self._channel.send(Forward(call_id, method, [*map(plain, arguments)], given))
        try:
            return msgspec.msgpack.decode(await answer, type=ANSWERS[method])
        finally:
            if self._answers.pop(call_id, None) is not None and not answer.done():
                self._channel.send(Cancel(call_id))

    async def do_log_stats(self) -> None:
        await self.forward(LOG_STATS)

    async def check_health(self) -> None:
        """Raises if the supervisor reports that the engines are not healthy."""
        health: Health = await self.forward(CHECK_HEALTH)
        self._is_degraded = health.is_degraded

    @property
    def is_degraded(self) -> bool:
        """True if an engine was down at the last health check."""
        return self._is_degraded

    async def get_loads(self) -> list[EngineLoad]:
        answer: Loads = await self.forward(GET_LOADS)
        self._num_elsewhere = max(0, answer.num_active_requests - super().num_active_requests)
        return answer.loads

    async def expose(self) -> bytes:
        """Returns the metric series of all processes, as the body of `/metrics`."""
        series: bytes = await self.forward(EXPOSE)
        return series

    async def is_tracing_enabled(self) -> bool:
        return self.is_tracing

    async def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        self._check_alive()
        call_id = next(self._call_ids)
        items = self._items[call_id] = asyncio.Queue()
        answer = self._answers[call_id] = asyncio.get_running_loop().create_future()
        self._channel.send(Forward(call_id, SUBSCRIBE, [start_sequence_number]))
        try:
            while (item := await items.get()) is not None:
                yield msgspec.msgpack.decode(item, type=KvEventBatch)
            await answer
        finally:
            del self._items[call_id]
            if self._answers.pop(call_id, None) is not None and not answer.done():
                self._channel.send(Cancel(call_id))

    # -- state --------------------------------------------------------------------------------

    def _open_publisher(self) -> None:
        """Returns None: the supervisor, not the API server, publishes cache events."""

    def _use(self, config: EngineConfig) -> None:
        self.vllm_config = config
        self.info = EngineInfo.of(config)
        # The engines read from the prefix of a request's id which API server gets the outputs.
        prefix = f"{self._name}{SEPARATOR}"
        self._inputs = InputProcessor(
            config, self.renderer, engine_id_prefix=prefix, items=self._pictures
        )
        # The limits of all engines together; the supervisor enforces each engine's limits.
        scheduler, size = config.scheduler_config, len(served_ranks(config))
        limits = msgspec.structs.replace(
            scheduler,
            max_num_queued_reqs=size * scheduler.max_num_queued_reqs,
            max_num_queued_tokens=size * scheduler.max_num_queued_tokens,
        )
        self._requests.open.use(limits)

    def shutdown(self, timeout: float | None = None) -> None:
        """Disconnects from the engines, which continue to run."""
        del timeout
        self._is_closing = True
        self._leave("the server is shutting down")

    async def wait_open(self) -> bool:
        """Waits for the supervisor's message; True if the server must listen, False if the server was stopped."""
        await self._may_open.wait()
        return not self._closed.is_set()

    def _leave(self, message: str) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._may_open.set()
        self._die(EngineDead(message))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EngineDead(message))
                answer.exception()
        for items in self._items.values():
            items.put_nowait(None)
        self._events.leave()
        self._outputs.close(0)
        self._context.term()
        for task in (self._reading, self._silence):
            if task is not None:
                task.cancel()
        self._channel.close()

    # -- messages of the supervisor -----------------------------------------------------------

    async def _end_silent(self) -> None:
        await self._heartbeat.silence()
        self._leave(f"the server's first process has not answered for {SERVER_HUNG_S:g} s")

    async def _read(self) -> None:
        async for message in self._channel.messages():
            self._take_message(message)
        self.is_orphaned = not self._closed.is_set()
        self._leave("the server's first process has ended")

    def _take_message(self, message: ToServer) -> None:
        match message:
            case RequestFailed() | Aborted():
                self._take_end(message)
            case State():
                if message.config != self.vllm_config:
                    self._use(message.config)
                self._adapters.known = {one.lora_name: one for one in message.adapters}
                self._channel.send(Acknowledged(message.call_id))
            case Item() | Answer():
                self._take_part(message)
            case Collect():
                self._channel.send(Collected(message.call_id, self._collect()))
            case Open():
                self._may_open.set()
            case Drain() | EnginesStopped():
                self._take_leave(message)
            case Start():
                raise AssertionError("`Start` is the first message, and is sent only once")
            case _:
                assert_never(message)

    def _take_leave(self, message: Drain | EnginesStopped) -> None:
        if isinstance(message, Drain):
            self.on_drain()
        else:
            self._leave(message.message)

    def _take_end(self, message: RequestFailed | Aborted) -> None:
        """Ends a request that failed or was aborted outside the engine's steps, unless the request has ended
        already.
        """
        opened = self._requests.open.get(message.engine_id)
        if opened is None or opened.is_over:
            return
        if isinstance(message, RequestFailed):
            opened.fail(message.fault.to_error())
        else:
            opened.abort()

    def _take_part(self, message: Item | Answer) -> None:
        if isinstance(message, Item):
            self._take_item(message)
        else:
            self._take_answer(message)

    def _take_answer(self, message: Answer) -> None:
        answer = self._answers.pop(message.call_id, None)
        if answer is not None and not answer.done():
            if message.fault is None:
                answer.set_result(message.value)
            else:
                answer.set_exception(message.fault.to_error())
                answer.exception()  # retrieves the error: the subscriber may have left
        if (items := self._items.get(message.call_id)) is not None:
            items.put_nowait(None)

    def _take_item(self, message: Item) -> None:
        items, answer = self._items.get(message.call_id), self._answers.get(message.call_id)
        if items is None or answer is None:
            return
        if items.qsize() < MAX_BUFFERED_BATCHES:
            items.put_nowait(message.value)
            return
        self._channel.send(Cancel(message.call_id))
        text = f"the subscriber is too slow: it left {items.qsize()} batches unread"
        self._take_answer(Answer(message.call_id, fault=Fault.of(Overloaded(text))))


async def _load_nothing(lora_id: int, path: str) -> Any:
    raise AssertionError("the supervisor loads adapters")
