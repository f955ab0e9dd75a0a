"""`weft serve --api-server-count K`: starts several API server processes; the supervisor process owns the engines."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from weft.cli.arguments.flags import pick
from weft.cli.options import ServeOptions
from weft.cli.process.limits import hold_port
from weft.cli.serving.servers import Servable, Serving
from weft.core.aio.pauses import keep
from weft.core.aio.tasks import gather_all
from weft.core.client import EngineClient
from weft.core.errors import Unavailable
from weft.core.values.controls import SERVER_HUNG_S
from weft.engine.api_servers.attached import AttachedServer
from weft.engine.api_servers.messages import Drain, EnginesStopped, Family, FromServer, Open, Start
from weft.engine.api_servers.series import SUPERVISOR, families_of, is_own, page, summed
from weft.engine.front.socket_directory import SocketDirectory
from weft.engine.ipc.channel import Channel
from weft.rpc.options import RpcOptions
from weft.web.http.options import HttpOptions

if TYPE_CHECKING:
    from weft.engine.start.fit import Fitted

log = logging.getLogger("weft.cli")

_KILL_GRACE_S = 10.0  # time after the drain timeout


@dataclass(slots=True)
class _Process:
    """The process of an API server, and the channel to it."""

    process: asyncio.subprocess.Process
    channel: Channel[FromServer]

    @classmethod
    async def spawn(cls) -> "_Process":
        """Starts the process. Until it receives `Start`, it only imports modules."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "weft.cli.serving.api_server",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
            )
        return cls(process, await Channel.open(ours, FromServer))

    def kill(self) -> None:
        """Kills the process, unless it has ended."""
        with suppress(ProcessLookupError):
            self.process.kill()

    async def end(self, within_s: float) -> None:
        """Waits for the end of the process, and kills it after `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                await self.process.wait()
        except TimeoutError:
            log.warning("killing an API server that has not ended within %g s", within_s)
            self.kill()
            await self.process.wait()
        self.channel.close()


@dataclass(slots=True)
class _Place:
    """The place of one API server among all. A restarted server has the same place and a new name."""

    number: int
    process: _Process
    server: AttachedServer | None = None
    serving: asyncio.Task[None] | None = None
    num_starts: int = 0

    @property
    def live(self) -> list[AttachedServer]:
        """A list with the running server; empty if no server runs."""
        return [] if self.server is None or self.server.is_closed else [self.server]


class ApiServers:
    """All API server processes, which `Serving` handles like one server. `spawn` creates the object; `start` admits
    requests.
    """

    def __init__(self, places: list[_Place]) -> None:
        self._places = places
        self._supervisors: list[asyncio.Task[None]] = []
        self._client: Any = None
        self._known: tuple[Any, list[Any]] = (None, [])
        self._sharing = asyncio.Lock()
        self._ended: list[Family] = []

    @classmethod
    async def spawn(cls, count: int) -> "ApiServers":
        """Starts `count` processes, which import modules until `start` is called."""
        return cls([_Place(number, await _Process.spawn()) for number in range(count)])

    async def start(
        self,
        client: Any,
        families: Callable[[], list[Family]],
        make: Callable[[str], Start],
        on_prepared: Callable[[], Any],
    ) -> int | None:
        """Prepares all API servers, awaits `on_prepared`, then lets all of them listen. Returns the gRPC port."""
        self._client, self._families, self._make = client, families, make
        self._known = client.vllm_config, []
        await gather_all(self._prepare(place) for place in self._places)
        await on_prepared()
        ports = await gather_all(self._open(place) for place in self._places)
        self._supervisors = [asyncio.create_task(self._supervise(one)) for one in self._places]
        return ports[0]

    async def drain(self, timeout_s: float) -> None:
        """Makes all API servers drain at the same time, and waits for their end."""
        self._end_supervision()
        for place in self._places:
            place.process.channel.send(Drain())
        await self._wait(timeout_s + _KILL_GRACE_S)

    async def stop(self) -> None:
        self._end_supervision()
        is_dead = self._client is not None and self._client.errored
        why = str(self._client.dead_error) if is_dead else "the server is shutting down"
        for place in self._places:
            place.process.channel.send(EnginesStopped(why))
            if place.server is None:  # the process has no server to stop
                place.process.kill()
        await self._wait(_KILL_GRACE_S)

    def _end_supervision(self) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()

    async def _wait(self, within_s: float) -> None:
        await asyncio.gather(*(place.process.end(within_s) for place in self._places))
        await asyncio.gather(*(one.serving for one in self._places if one.serving is not None))

    # -- one API server -----------------------------------------------------------------------

    async def _prepare(self, place: _Place) -> None:
        name = f"{place.number}.{place.num_starts}"
        place.num_starts += 1
        channel = place.process.channel
        server = AttachedServer(channel, self._client, self._share_state, self._expose)
        place.server = server
        place.serving = asyncio.create_task(_follow(place.number, place.process, server))
        channel.send(self._make(name))
        await server.prepared
        await server.use(*self._state())

    async def _open(self, place: _Place) -> int | None:
        assert place.server is not None
        place.server.channel.send(Open())
        return await place.server.opened

    async def _supervise(self, place: _Place) -> None:
        """Restarts the process of an API server each time it ends."""

        async def run() -> str:
            status = await place.process.process.wait()
            assert place.server is not None
            assert place.serving is not None
            await place.serving
            self._keep_counts(place.server)
            return f"has ended (status {status})"

        async def start() -> None:
            place.process = await _Process.spawn()
            try:
                await self._prepare(place)
                await self._open(place)
            except Exception:
                place.process.kill()
                await place.process.process.wait()
                raise

        await keep(f"API server {place.number}", run, start, log)

    # -- state that all API servers share ------------------------------------------------------

    def _state(self) -> tuple[Any, list[Any]]:
        """Returns the configuration and the adapters of the engines. While no engine runs, returns the last known
        state, which new engines are given too.
        """
        with suppress(Unavailable):
            return self._client.vllm_config, list(self._client.lora_requests.values())
        return self._known

    async def _share_state(self) -> None:
        """Sends a changed state of the engines to every API server, and returns when each of them has it."""
        async with self._sharing:
            state = self._state()
            if state != self._known:
                self._known = state
                servers = [server for place in self._places for server in place.live]
                await asyncio.gather(*(server.use(*state) for server in servers))

    async def _expose(self) -> bytes:
        servers = {
            f"api_server_{place.number}": server for place in self._places for server in place.live
        }
        collected = await asyncio.gather(*(server.collect() for server in servers.values()))
        families = dict(zip(servers, collected, strict=True))
        return page(summed({SUPERVISOR: self._families(), "": self._ended, **families}))

    def _keep_counts(self, server: AttachedServer) -> None:
        """Adds the last metrics of an API server that has ended to the sums, so that no counter goes back."""
        counted = [family for family in server.families if not is_own(family)]
        self._ended = summed({"": self._ended, "it": counted})


async def _follow(number: int, process: _Process, server: AttachedServer) -> None:
    """Handles the messages of an API server until its process ends. Kills the process if it stops answering
    heartbeats.
    """

    async def end_hung() -> None:
        await server.heartbeat.silence()
        log.error("killing API server %d, which has not answered for %g s", number, SERVER_HUNG_S)
        process.kill()

    hung = asyncio.create_task(end_hung())
    try:
        await server.serve()
    finally:
        hung.cancel()


class SupervisedServing(Serving):
    """`Serving` for the supervisor process, which has the engines and no clients; see `ApiServers`."""

    def __init__(
        self, model: str | None, options: ServeOptions, http_options: HttpOptions, started: float
    ) -> None:
        self._held = ExitStack()
        rpc = pick(options, RpcOptions)
        host = http_options.host
        self._ports: dict[str, int | None] = {"http": None, "grpc": None}
        for name, is_served, port, flag in (
            ("http", options.http, http_options.port, "--port"),
            ("grpc", options.grpc, rpc.port, "--grpc-port"),
        ):
            if is_served:
                held = self._held.enter_context(hold_port(host, port, flag))
                self._ports[name] = int(held.getsockname()[1])
        http = replace(http_options, shares_port=True, port=self._ports["http"] or 0)
        super().__init__(model, options, http, started)
        self._sockets = SocketDirectory()
        self._directory = str(self._sockets.path)

    def close(self) -> None:
        super().close()
        self._held.close()
        self._sockets.remove()

    async def run(self) -> int:
        self._api_servers = await ApiServers.spawn(self._options.api_server_count)
        try:
            return await super().run()
        finally:
            await self._api_servers.stop()

    def _find(self) -> "Fitted":
        found = super()._find()
        config = msgspec.structs.replace(found.config, api_server_directory=self._directory)
        return replace(found, config=config)

    async def _open(self, loaded: Servable, client: EngineClient, http_port: int | None) -> None:
        """Lets the API servers accept requests. Before, this process has answered health probes."""
        from weft.cli.serving.api_serving import plain_options  # noqa: PLC0415 - imported by now

        options = plain_options(self._options)

        def make(name: str) -> Start:
            return Start(
                name=name,
                directory=self._directory,
                options=options,
                config=client.vllm_config,  # type: ignore[attr-defined]  # of all that are ours
                http_port=self._ports["http"],
                grpc_port=self._ports["grpc"],
                store_name=self._state.store.name,
            )

        self._servers[:] = [self._api_servers]
        grpc_port = await self._signals.unless(
            self._api_servers.start(
                client, lambda: families_of(self._metrics.registry), make, self._http.stop
            )
        )
        self._announce(loaded, http_port, grpc_port)
