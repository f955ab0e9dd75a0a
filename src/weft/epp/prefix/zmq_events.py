"""Cache events over ZeroMQ: either one SUB socket per endpoint, with replay, or one socket that all engines connect to.

A socket with queued messages returns at once, so code that reads must explicitly let other tasks run.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import zmq
import zmq.asyncio

from weft.core.address import join_host_port
from weft.core.aio.turns import Turns
from weft.core.errors import ConfigError
from weft.epp.pool.endpoint import Endpoint
from weft.epp.prefix.feed import EventFeed, Step

_log = logging.getLogger(__name__)

REPLAY_TIMEOUT_S = 5.0
_END = (1 << 64) - 1  # the sequence number that ends a replay
# Limit of one message part: a longer part ends the connection. A part above the size of a batch is read and dropped.
_MAX_MESSAGE_BYTES = 8 << 20


class ZmqSubscriber:
    """Subscription to the event publisher of one endpoint."""

    def __init__(
        self,
        context: "zmq.asyncio.Context",
        feed: EventFeed,
        endpoint: Endpoint,
        topic: str,
        replays: asyncio.Semaphore,
    ) -> None:
        self._context = context
        self._feed = feed
        self._host = endpoint.host
        self._topic = topic.encode()
        # Limits concurrent replays; live messages wait in the socket meanwhile.
        self._replays = replays

    async def run(self, port: int, replay_port: int | None) -> None:
        """Receives and applies events until the task is cancelled."""
        socket = self._context.socket(zmq.SUB)
        try:
            _prepare(socket, self._host)
            socket.subscribe(self._topic)
            socket.connect(f"tcp://{join_host_port(self._host, port)}")
            if replay_port is not None:
                await self._replay(0, None, replay_port)
            turns = Turns()
            while True:
                await self._take(await socket.recv_multipart(), replay_port)
                await turns.yield_if_due()
        finally:
            socket.close(linger=0)

    async def _take(self, frames: Sequence[bytes], replay_port: int | None) -> None:
        feed = self._feed
        message = split_message(frames)
        if message is None:
            feed.note("malformed")
            return
        topic, sequence, payload = message
        feed.name_model(model_of(topic))
        step = feed.step(sequence)
        if step is Step.REPEATED:
            return
        if step is Step.GAP and replay_port is not None:
            assert feed.last is not None
            if await self._replay(feed.last + 1, sequence, replay_port):
                step = feed.step(sequence)
                if step is Step.REPEATED:
                    return
        if step is not Step.NEXT:
            await feed.clear("gap" if step is Step.GAP else "restart")
        await feed.apply_payload(sequence, payload)

    async def _replay(self, start: int, until: int | None, port: int) -> bool:
        """Requests the batches from sequence number `start` on; returns True if all before `until` arrived."""
        async with self._replays:
            has_ended = await self._request_replay(start, port)
        if has_ended:
            self._feed.replayed()
        last = self._feed.last
        return has_ended and (until is None or (last is not None and last + 1 >= until))

    async def _request_replay(self, start: int, port: int) -> bool:
        """Requests the batches from `start` on and applies them; returns True if the replay was complete."""
        # A DEALER, since a REQ socket would take only the first of the batches.
        socket = self._context.socket(zmq.DEALER)
        try:
            _prepare(socket, self._host)
            socket.connect(f"tcp://{join_host_port(self._host, port)}")
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            turns = Turns()
            async with asyncio.timeout(REPLAY_TIMEOUT_S):
                while await self._take_replayed(await socket.recv_multipart()):
                    await turns.yield_if_due()
        except (TimeoutError, zmq.ZMQError) as error:
            _log.warning("replay of prefix-cache events from %s failed: %r", self._host, error)
            return False
        finally:
            socket.close(linger=0)
        return True

    async def _take_replayed(self, frames: Sequence[bytes]) -> bool:
        """Applies one message of a replay; returns True if more messages follow."""
        if len(frames) < 2 or len(frames[-2]) != 8:
            self._feed.note("malformed")
            return True
        sequence, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        if sequence == _END or not payload:
            return False
        if self._feed.step(sequence) is Step.GAP:
            await self._feed.clear("gap")
        if self._feed.step(sequence) is Step.NEXT:
            await self._feed.apply_payload(sequence, payload)
        return True


class ZmqHub:
    """A bound socket to which many endpoints publish events. The topic of a message names the endpoint."""

    def __init__(
        self,
        context: "zmq.asyncio.Context",
        find_feed: Callable[[str], EventFeed | None],
        note_unknown: Callable[[], None],
    ) -> None:
        self._context = context
        self._find_feed = find_feed
        self._note_unknown = note_unknown
        self._socket: zmq.asyncio.Socket | None = None

    def bind(self, address: str, topic: str) -> None:
        """Opens the socket. Raises `ConfigError`."""
        socket = self._context.socket(zmq.SUB)
        try:
            _prepare(socket, address)
            socket.subscribe(topic.encode())
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ConfigError(f"zmqEndpoint: cannot bind {address!r}: {error}") from error
        self._socket = socket

    async def run(self) -> None:
        """Receives and applies events until the task is cancelled."""
        assert self._socket is not None
        turns = Turns()
        try:
            while True:
                await self._take(await self._socket.recv_multipart())
                await turns.yield_if_due()
        finally:
            self._socket.close(linger=0)

    async def _take(self, frames: Sequence[bytes]) -> None:
        message = split_message(frames)
        feed = self._find_feed(pod_of(message[0])) if message else None
        if message is None or feed is None:
            self._note_unknown()
            return
        topic, sequence, payload = message
        feed.name_model(model_of(topic))
        step = feed.step(sequence)
        if step is not Step.NEXT:
            await feed.clear("gap" if step is Step.GAP else "restart")
        await feed.apply_payload(sequence, payload)


def split_message(frames: Sequence[bytes]) -> tuple[str, int, bytes] | None:
    """Returns topic, sequence number and payload of a message; None if its frames have another form."""
    if len(frames) != 3 or len(frames[1]) != 8:
        return None
    return frames[0].decode("utf-8", "replace"), int.from_bytes(frames[1], "big"), frames[2]


def pod_of(topic: str) -> str:
    """Returns the publisher in a topic "kv@POD@MODEL"."""
    parts = topic.split("@", 2)
    return parts[1] if len(parts) == 3 else ""


def model_of(topic: str) -> str:
    """Returns the model in a topic "kv@POD@MODEL"; "" for a topic of another form."""
    parts = topic.split("@", 2)
    return parts[2] if len(parts) == 3 else ""


def _prepare(socket: "zmq.asyncio.Socket", host: str) -> None:
    socket.setsockopt(zmq.RCVHWM, 100_000)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5000)
    if ":" in host.removeprefix("tcp://").rpartition(":")[0] or host.count(":") > 1:
        socket.setsockopt(zmq.IPV6, 1)
