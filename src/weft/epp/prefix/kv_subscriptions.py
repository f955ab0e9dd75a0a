"""Keeps one subscription to cache events per endpoint, over gRPC or ZeroMQ."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from time import monotonic
from typing import Literal

import zmq.asyncio

from weft.core.aio.pauses import Pauses
from weft.epp.config.parameters import AtLeastOne, Part, Port
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.pool import Pool
from weft.epp.prefix.engine import EngineConnection, EngineFailed
from weft.epp.prefix.feed import EventFeed, Step, clear_in_turns
from weft.epp.prefix.precise import PreciseIndex
from weft.epp.prefix.zmq_events import ZmqHub, ZmqSubscriber

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 15.0


def parse_selector(text: str) -> dict[str, str]:
    """Converts "key=value,..." to a dictionary. Raises `ValueError`."""
    labels = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key or key.endswith("!"):
            raise ValueError(f"podLabelSelector: {part!r} is not key=value")
        labels[key.strip()] = value.removeprefix("=").strip()
    return labels


class PodDiscoveryConfig(Part, frozen=True, kw_only=True):
    """Selects the endpoints that publish events over ZeroMQ, and configures their publishers' addresses."""

    socket_port: Port = 5557
    replay_socket_port: Port | None = None
    pod_label_selector: str = ""
    pod_namespace: str = ""  # empty: pods of every namespace

    def __post_init__(self) -> None:
        parse_selector(self.pod_label_selector)


class KvEventsConfig(Part, frozen=True, kw_only=True):
    """Sources of cache events. Endpoints that speak the VllmEngine protocol always send events over gRPC."""

    zmq_endpoint: str | None = None  # address that the picker binds, for engines that connect to it
    topic_filter: str = "kv@"
    # Defines the meaning of array positions in events.
    engine_type: Literal["vllm", "sglang"] = "vllm"
    concurrency: AtLeastOne = 4  # number of replays that are read at once
    discover_pods: bool = True
    pod_discovery_config: PodDiscoveryConfig = PodDiscoveryConfig()


class KvSubscriptions:
    """Runs one subscription task per endpoint, for as long as the endpoint is in the pool."""

    def __init__(
        self,
        index: PreciseIndex,
        events: KvEventsConfig,
        pool: Pool,
        metrics: PickerMetrics,
        is_grpc: Callable[[Endpoint], bool],
        connect: Callable[[Endpoint], EngineConnection],
    ) -> None:
        self._index = index
        self._events = events
        self._pool = pool
        self._metrics = metrics
        self._is_grpc = is_grpc
        self._connect = connect
        self._context = zmq.asyncio.Context()
        # One socket per endpoint.
        self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))
        self._selector = parse_selector(events.pod_discovery_config.pod_label_selector)
        self._tasks: dict[Endpoint, asyncio.Task[None]] = {}
        # A replay may bring an engine's whole history: only a few run at once in a large pool.
        self._replays = asyncio.Semaphore(events.concurrency)
        self._hub: asyncio.Task[None] | None = None
        self._hub_feeds: dict[Endpoint, EventFeed] = {}
        if events.zmq_endpoint:
            self._hub = asyncio.create_task(self._bound_hub().run(), name="kv-events hub")
        pool.join_by(*self._selector)
        pool.on_left(self._stop)
        pool.on_joined(self._start)

    def _bound_hub(self) -> ZmqHub:
        hub = ZmqHub(self._context, self._find_feed, self._note_unknown)
        events = self._events
        try:
            hub.bind(events.zmq_endpoint or "", events.topic_filter)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        return hub

    async def close(self) -> None:
        """Ends every subscription."""
        tasks = [*self._tasks.values(), *([self._hub] if self._hub else [])]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)

    def _start(self, endpoint: Endpoint) -> None:
        run = self._follow_grpc if self._is_grpc(endpoint) else self._follow_zmq
        if run == self._follow_zmq and not self._publishes(endpoint):
            return
        name = f"kv-events {endpoint.host_port}"
        self._tasks[endpoint] = asyncio.create_task(self._follow(run, endpoint), name=name)

    async def _follow(self, run: Callable[[Endpoint], Awaitable[None]], endpoint: Endpoint) -> None:
        """Runs a subscription, and starts it again after each failure, so that no engine's events are lost for good."""
        while True:
            try:
                await run(endpoint)
            except Exception:  # noqa: BLE001 - the root of the task; the endpoint is followed anew
                _log.exception("reading prefix-cache events of %s failed", endpoint.host_port)
            await clear_in_turns(self._index, endpoint)
            await asyncio.sleep(_MAX_PAUSE_S)

    def _stop(self, endpoint: Endpoint) -> None:
        if (feed := self._hub_feeds.pop(endpoint, None)) is not None:
            feed.close()
        task = self._tasks.pop(endpoint, None)
        if task is not None:
            task.cancel()

    def _publishes(self, endpoint: Endpoint) -> bool:
        namespace = self._events.pod_discovery_config.pod_namespace
        is_followed = self._events.discover_pods and namespace in {"", endpoint.spec.namespace}
        return is_followed and all(
            endpoint.labels.get(key) == value for key, value in self._selector.items()
        )

    def _feed(self, endpoint: Endpoint) -> EventFeed:
        return EventFeed(self._index, endpoint, self._metrics, self._events.engine_type)

    # -- ZeroMQ -------------------------------------------------------------------------------

    async def _follow_zmq(self, endpoint: Endpoint) -> None:
        config = self._events
        ports = config.pod_discovery_config
        subscriber = ZmqSubscriber(
            self._context, self._feed(endpoint), endpoint, config.topic_filter, self._replays
        )
        await subscriber.run(ports.socket_port, ports.replay_socket_port)

    def _find_feed(self, pod: str) -> EventFeed | None:
        for endpoint in self._pool:
            if pod in {endpoint.host_port, endpoint.host, endpoint.spec.name, endpoint.name}:
                if endpoint not in self._hub_feeds:
                    self._hub_feeds[endpoint] = self._feed(endpoint)
                return self._hub_feeds[endpoint]
        return None

    def _note_unknown(self) -> None:
        self._metrics.kv_events.labels("unknown").inc()

    # -- gRPC ---------------------------------------------------------------------------------

    async def _follow_grpc(self, endpoint: Endpoint) -> None:
        connection = self._connect(endpoint)
        pauses, last_error = Pauses(_FIRST_PAUSE_S, _MAX_PAUSE_S, steady_s=_MAX_PAUSE_S), ""
        try:
            while True:
                started = monotonic()
                try:
                    await self._subscribe(endpoint, connection)
                    error: Exception = EngineFailed("the stream ended")
                except EngineFailed as failed:
                    error = failed
                # Events were missed, and the engine may have restarted: all blocks of the endpoint are dropped.
                await clear_in_turns(self._index, endpoint)
                self._metrics.kv_events.labels("disconnected").inc()
                pauses.lasted(monotonic() - started)
                # Logged once, not for each attempt while the engine is down.
                if str(error) != last_error:
                    last_error = str(error)
                    _log.warning("prefix-cache events of %s: %s", endpoint.host_port, error)
                await asyncio.sleep(pauses.next_s() * random.uniform(0.5, 1.0))
        finally:
            await connection.close()

    async def _subscribe(self, endpoint: Endpoint, connection: EngineConnection) -> None:
        feed = self._feed(endpoint)
        feed.name_model(await connection.model_name())
        async with aclosing(connection.batches()) as batches:
            async for batch in batches:
                if batch.load is not None:
                    endpoint.observe_part(batch.load, polled_at=asyncio.get_running_loop().time())
                if batch.is_load_only:
                    continue
                step = feed.step(batch.sequence)
                if step is Step.RESTARTED:
                    return
                if step is Step.GAP:
                    await feed.clear("gap")
                await feed.apply(batch.sequence, batch.events)
