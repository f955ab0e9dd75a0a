"""`Node`: the engines of a machine without a server; each engine is connected to the head node.

An engine is a process, as with a server; the node relays commands of the head and events of the engine unchanged. When
the connection ends, the node ends the engine too, because no server follows its requests any more. Then the node starts
the engine and joins again.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from weft.core.aio.pauses import keep
from weft.core.aio.tasks import gather_all, is_set_within
from weft.core.config.engine import EngineConfig
from weft.core.config.ranks import LinkConfig, local_ranks
from weft.core.errors import ConfigError
from weft.engine.clients.child import EngineChild
from weft.engine.clients.process_client import launched
from weft.engine.front.event_socket import EventSocket
from weft.engine.ipc.channel import Channel
from weft.engine.ipc.handshake import PeerError
from weft.engine.ipc.messages import MAX_FRAME_BYTES
from weft.engine.ipc.weight_files import WeightFiles
from weft.engine.nodes.head import digest_of
from weft.engine.nodes.link import (
    FromHead,
    Join,
    JoinRefused,
    Leaving,
    MustLeave,
    connect,
    read_link_secret,
)
from weft.engine.weights.weight_store import has_shared_weights

log = logging.getLogger("weft.engine")

_KILL_GRACE_S = 10.0  # added to the drain timeout


class Node:
    """The engines of one node. Made inside a running event loop.

    `run` serves until it is cancelled or `leave` has ended it.
    """

    def __init__(self, config: EngineConfig, tokenizer_files: Mapping[str, bytes]) -> None:
        assert config.ranks is not None
        assert config.ranks.link is not None
        self._link: LinkConfig = config.ranks.link
        self._secret = read_link_secret(self._link)
        self._weights = WeightFiles() if has_shared_weights(config) else None
        tokenizer = digest_of(tokenizer_files)
        ranks = local_ranks(config)
        self._joins = [Join(config.of_rank(rank), tokenizer) for rank in ranks]
        self._channels: dict[int, Channel[FromHead]] = {}
        self._running: asyncio.Task[list[None]] | None = None
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        """Keeps all engines joined. Raises a `ConfigError` with the reason if the head refuses an engine finally."""
        self._running = asyncio.create_task(self._keep_all())
        try:
            await self._running
        finally:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def leave(self, timeout_s: float) -> None:
        """Makes the head send no more requests, and gives running requests `timeout_s` seconds to finish; then `run`
        returns.
        """
        self._leaving.set()
        for channel in self._channels.values():
            channel.send(Leaving(timeout_s))
        assert self._running is not None
        await asyncio.wait((self._running,), timeout=timeout_s + _KILL_GRACE_S)
        self._running.cancel()

    async def _keep_all(self) -> list[None]:
        return await gather_all(self._keep(joining) for joining in self._joins)

    async def _keep(self, joining: Join) -> None:
        """Joins an engine, serves, and joins again after each end, until the node leaves."""
        rank = joining.config.data_parallel_rank
        assert rank is not None

        async def run() -> str | None:
            why = None if self._leaving.is_set() else await self._join(rank, joining)
            return None if self._leaving.is_set() else why

        async def sleep(pause_s: float) -> None:
            await is_set_within(self._leaving, pause_s)

        await keep(f"engine {rank}", run, None, log, sleep=sleep)

    async def _join(self, rank: int, joining: Join) -> str:
        """Joins an engine and serves until the head or the engine has ended; returns the reason of the end."""
        try:
            connection = await asyncio.to_thread(connect, self._link, self._secret, joining)
            await self._serve(rank, await Channel.open(connection, FromHead), joining.config)
        except JoinRefused as error:
            raise ConfigError(f"engine {rank} cannot join: {error}") from None
        except (OSError, PeerError, msgspec.DecodeError, ValueError) as error:
            return f"has not joined: {error}"
        return "has ended, or the connection to the head has"

    async def _serve(self, rank: int, channel: Channel[FromHead], config: EngineConfig) -> None:
        """Runs an engine until it ends or the head disconnects."""
        log.info("engine %d has joined the head", rank)
        self._channels[rank] = channel
        try:
            if self._leaving.is_set():  # the node was told to leave while the engine was joining
                return
            child = await launched(config, self._weights)
            try:
                await _relay(child, channel)
            finally:
                await child.discard()
        finally:
            del self._channels[rank]
            channel.close()


async def _relay(child: EngineChild, channel: Channel[FromHead]) -> None:
    events: EventSocket[msgspec.Raw] = EventSocket(
        child.events, msgspec.Raw, lambda event: _pass_on(channel, event)
    )
    events.watch()
    commands = asyncio.create_task(_take_commands(child, channel))
    ended = asyncio.create_task(child.process.wait())
    try:
        await asyncio.wait((commands, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            await events.take_last()
            with suppress(OSError):
                await channel.drain()
        else:
            commands.result()
    finally:
        events.leave()
        for task in (commands, ended):
            task.cancel()
        await asyncio.gather(commands, ended, return_exceptions=True)


def _pass_on(channel: Channel[FromHead], event: msgspec.Raw) -> None:
    if channel.num_unsent > MAX_FRAME_BYTES:  # the head does not read the events
        channel.close()
    channel.send(event)


async def _take_commands(child: EngineChild, channel: Channel[FromHead]) -> None:
    """Passes commands of the head to the engine until the head disconnects."""
    encoder = msgspec.msgpack.Encoder()
    async for command in channel.messages():
        if isinstance(command, MustLeave):
            raise JoinRefused(command.reason)
        child.send(encoder.encode(command))
