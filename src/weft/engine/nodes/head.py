"""`NodeListener`: accepts connections of other nodes' engines at the head node."""

import asyncio
import hashlib
import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from weft.core.address import join_host_port
from weft.core.config.engine import EngineConfig
from weft.core.config.ranks import local_ranks, served_ranks
from weft.core.errors import ConfigError, WeftError
from weft.core.observe.metrics import Metrics
from weft.engine.clients.child import EngineChild
from weft.engine.clients.data_parallel import DataParallelClient
from weft.engine.clients.process_client import OnLoading
from weft.engine.ipc.channel import Channel
from weft.engine.ipc.handshake import PeerError
from weft.engine.ipc.unproven import UnprovenConnections
from weft.engine.nodes.link import (
    FromNode,
    Join,
    Joined,
    LinkSocket,
    Verdict,
    difference,
    read_link_secret,
)
from weft.engine.nodes.node_client import NodeClient
from weft.model.open import Checkpoint
from weft.text.tokenizer import TOKENIZER_FILE, Tokenizer

log = logging.getLogger("weft.engine")

MAX_HANDSHAKES = 32  # at the same time
_OTHER_MODEL = "its weights, or the instruction set of its CPU, differ from those of the others"
_REPORT_S = 10.0  # period of log lines about ranks that have not joined


class NodeListener:
    """Listens for engines of other nodes. Made by `open`, inside a running event loop, on which the listener runs."""

    def __init__(self, config: EngineConfig, tokenizer: str, listener: socket.socket) -> None:
        assert config.ranks is not None
        assert config.ranks.link is not None
        self._config = config
        self._tokenizer = tokenizer
        self._secret = read_link_secret(config.ranks.link)
        self._listener = listener
        self._waiting = {
            rank: asyncio.Queue[Joined](1)
            for rank in served_ranks(config)
            if rank not in local_ranks(config)
        }
        self._joined: dict[int, Channel[FromNode]] = {}
        self._fingerprint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._meetings: dict[asyncio.Task[None], LinkSocket] = {}
        self._unproven = UnprovenConnections(MAX_HANDSHAKES)
        # A thread pool of its own: silent peers must not occupy threads that other work needs.
        self._threads = ThreadPoolExecutor(MAX_HANDSHAKES, "weft-nodes")
        self._accepting = asyncio.create_task(self._accept())

    @classmethod
    def open(cls, config: EngineConfig, tokenizer_files: Mapping[str, bytes]) -> Self:
        """Starts to listen for nodes; raises `ConfigError` if the address cannot be used."""
        assert config.ranks is not None
        link = config.ranks.link
        assert link is not None
        place = join_host_port(link.host, link.port)
        family = socket.AF_INET6 if ":" in link.host else socket.AF_INET
        try:
            listener = socket.create_server((link.host, link.port), family=family)
        except OSError as error:
            raise ConfigError(
                f"--data-parallel-address: the head cannot listen on {place} ({error.strerror})"
            ) from error
        listener.setblocking(False)
        try:
            made = cls(config, digest_of(tokenizer_files), listener)
        except BaseException:
            listener.close()
            raise
        log.info("the head waits for its nodes on %s", place)
        return made

    def expect(self, fingerprint: str) -> None:
        """Sets the fingerprint of the weights that every joining engine must have; only the first call has an
        effect.
        """
        if not self._fingerprint.done():
            self._fingerprint.set_result(fingerprint)

    async def join(
        self,
        rank: int,
        tokenizer: Tokenizer,
        metrics: Metrics | None,
        on_loading: OnLoading = lambda num_bytes, all_bytes: None,
        on_leaving: Callable[[], None] = lambda: None,
    ) -> NodeClient:
        """Waits until the engine of that rank has joined and loaded; returns its client. `on_leaving` is called when
        its node begins to shut down.

        An engine that fails to start or has another model is disconnected, and the next attempt is awaited.
        """
        while True:
            joined = await self._next(rank)
            try:
                client = await NodeClient.start_with(joined, tokenizer, metrics, on_loading)
                [found] = await client.collective_rpc("fingerprint")
            except WeftError as error:
                log.warning("engine %d has joined, and could not be started: %s", rank, error)
                continue
            if not local_ranks(self._config):
                self.expect(found)
            if found == await self._fingerprint:
                client.on_leaving = on_leaving
                return client
            log.warning("engine %d is refused: %s", rank, _OTHER_MODEL)
            client.refuse(_OTHER_MODEL)
            await client.wait_closed()

    async def _next(self, rank: int) -> Joined:
        while True:
            try:
                async with asyncio.timeout(_REPORT_S):
                    return await self._waiting[rank].get()
            except TimeoutError:
                log.info("engine %d is on another node, and has not joined yet", rank)

    def close(self) -> None:
        """Stops accepting engines."""
        self._accepting.cancel()
        self._listener.close()
        for task, meeting in self._meetings.items():
            task.cancel()
            meeting.hang_up()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for channel in self._joined.values():  # includes engines whose client was never made
            channel.close()

    # -- connections --------------------------------------------------------------------------

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:  # no free file descriptor: retry later
                await asyncio.sleep(0.1)
                continue
            try:
                meeting = LinkSocket(connection)
            except OSError:  # the peer has disconnected
                connection.close()
                continue
            task = asyncio.create_task(self._meet(meeting))
            self._meetings[task] = meeting
            task.add_done_callback(self._meetings.pop)

    async def _meet(self, meeting: LinkSocket) -> None:
        """Serves a connection from its first byte until its engine has joined or has been refused."""
        loop = asyncio.get_running_loop()
        with meeting:
            try:
                with self._unproven.proving(meeting):
                    joining = await loop.run_in_executor(self._threads, meeting.meet, self._secret)
                channel: Channel[FromNode] = await Channel.open(meeting.detach(), FromNode)
            # RuntimeError: no memory for a thread. The node connects again.
            except (OSError, PeerError, RuntimeError, MemoryError) as error:
                log.info("a connection could not join as a node: %s", error)
                return
        rank, verdict = joining.config.data_parallel_rank, self._judge(joining)
        channel.send(verdict)
        if verdict.refusal is not None or rank is None:
            log.warning("engine %s of a node is refused: %s", rank, verdict.refusal)
            channel.close()
            return
        log.info("engine %d has joined", rank)
        self._joined[rank] = channel
        self._waiting[rank].put_nowait(Joined(joining.config, channel))

    def _judge(self, joining: Join) -> Verdict:
        config, rank = joining.config, joining.config.data_parallel_rank
        if rank not in self._waiting:
            own = ", ".join(map(str, self._waiting))
            return Verdict(f"rank {rank} is not a rank of a node; these are {own}", True)
        different = difference(self._config, config)
        if different is not None:
            return Verdict(different, is_final=True)
        if joining.tokenizer != self._tokenizer:
            return Verdict("its tokenizer differs from the head's", is_final=True)
        former = self._joined.get(rank)
        if former is not None and not former.is_closing:
            return Verdict(f"rank {rank} has joined already")
        waiting = self._waiting[rank]
        while not waiting.empty():  # an earlier engine left before a client took it
            waiting.get_nowait()
        return Verdict()


async def start_head(
    checkpoint: Checkpoint,
    config: EngineConfig,
    metrics: Metrics | None = None,
    child: EngineChild | None = None,
    on_loading: OnLoading = lambda num_bytes, all_bytes: None,
) -> DataParallelClient:
    """Starts a head node: its engines, and a listener for other nodes. Returns when all nodes have joined."""
    nodes = NodeListener.open(config, checkpoint.tokenizer_files)
    try:
        return await DataParallelClient.start(checkpoint, config, metrics, child, on_loading, nodes)
    except BaseException:
        nodes.close()
        raise


def digest_of(tokenizer_files: Mapping[str, bytes]) -> str:
    """Returns a digest that identifies a tokenizer by the content of its files."""
    return hashlib.sha256(tokenizer_files.get(TOKENIZER_FILE, b"")).hexdigest()
