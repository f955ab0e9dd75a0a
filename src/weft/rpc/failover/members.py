"""`FleetMembers`: the servers of a fleet, their health and load, and the choice between them."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from weft.core.aio.failover import Resuming
from weft.core.errors import EngineDead, Unavailable, Unsupported, WeftError
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.types import LoRARequest, Request, RequestOutput
from weft.rpc.convert.incoming import ServerReport
from weft.rpc.metadata import FINGERPRINT_SEPARATOR
from weft.rpc.methods import DRAINING
from weft.text.outputs.request_stream import RequestStream

log = logging.getLogger("weft.rpc")

_WATCH_INTERVAL_S = 1.0
_WAITING_WEIGHT = 4  # a queue delays the first token more than a full batch does
# Time without an answer after which other servers continue the requests of a server.
GIVE_UP_S = 25.0


class MemberClient(Protocol):
    """The client of one server, as a fleet uses it."""

    @property
    def target(self) -> str:
        """host:port."""

    @property
    def first_report(self) -> ServerReport:
        """The server's report about itself when the client connected."""

    async def check_health(self) -> None:
        """Raises `Unavailable` if the server is unhealthy, or does not answer."""

    async def get_loads(self) -> list[EngineLoad]:
        """Returns the load of each rank."""

    async def get_server_info(self) -> ServerReport:
        """Returns the server's current report about itself."""

    def drop_streams(self, *, is_draining: bool) -> None:
        """Ends the streams of all requests."""

    def run_part(
        self, request: Request, stream: RequestStream
    ) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request, or the rest of it."""


ClientT = TypeVar("ClientT", bound=MemberClient)


@dataclass(slots=True, eq=False)
class FleetMember(Generic[ClientT]):
    """A server of the fleet. `num_taken` counts requests sent since `load` was reported.

    `fingerprint` is that of the server's model; empty if unknown. `adapters` has the digest of each of its adapters, by
    name. `suspects` has the engine ids of running requests
    that were lost with another server, without a token since; it is replaced when this server is lost.
    """

    client: ClientT
    is_healthy: bool = True
    load: int = 0
    num_taken: int = 0
    num_open: int = 0
    fingerprint: str = ""
    adapters: Mapping[str, str] = field(default_factory=dict)
    suspects: set[str] = field(default_factory=set)
    is_draining: bool = False
    failing_since: float | None = None

    @property
    def target(self) -> str:
        """host:port."""
        return self.client.target

    def rank(self) -> tuple[int, int]:
        """Sort key: the smallest is chosen."""
        return (self.load + self.num_taken, self.num_open)

    async def refresh(self) -> None:
        """Fetches the server's health, load, fingerprint and adapters."""
        try:
            await self.client.check_health()
            loads = await self._loads()
            if self.client.first_report.is_ours:
                report = await self.client.get_server_info()
                self.fingerprint, self.adapters = report.fingerprint, report.adapters
        except WeftError as error:
            self.is_draining = str(error) == DRAINING
            self.set_healthy(False, str(error))
            return
        self.is_draining = False
        self.load = sum(_WAITING_WEIGHT * one.num_waiting + one.num_running for one in loads)
        self.num_taken = 0
        self.set_healthy(True)

    def has_adapter(self, lora_name: str | None) -> bool:
        """True if the server had this adapter when it was last looked at, or if no adapter is needed."""
        return lora_name is None or lora_name in self.adapters

    def fingerprint_with(self, lora: LoRARequest | None) -> str:
        """Returns the fingerprint for requests with this adapter; empty if it is unknown."""
        if lora is None:
            return self.fingerprint
        parts = (self.fingerprint, self.adapters.get(lora.lora_name, ""))
        return FINGERPRINT_SEPARATOR.join(parts) if all(parts) else ""

    async def _loads(self) -> list[EngineLoad]:
        """Loads of the server; empty if an older server lacks the call: then only the requests sent to it are known."""
        try:
            return await self.client.get_loads()
        except Unsupported:
            return []

    def set_healthy(self, is_healthy: bool, why: str = "") -> None:
        """Excludes the server from the choice for new requests, or includes it again."""
        if is_healthy != self.is_healthy:
            log.warning("%s %s", self.target, "is back" if is_healthy else f"is out: {why}")
            self.failing_since = None if is_healthy else asyncio.get_running_loop().time()
        self.is_healthy = is_healthy

    def is_to_blame(self, request: Request, suspects: set[str]) -> bool:
        """Records that this server was lost while it ran a request; `suspects` is the set when the request began.

        Returns True if the request is the only one that was lost with another server too, without a token in between.
        """
        if self.suspects is suspects:
            self.suspects = set()
        before = request.resumption
        if before is None or request.engine_id not in suspects:
            return False
        return len(suspects) == 1 or before.num_losses > 1


class FleetMembers(Generic[ClientT]):
    """All servers of a fleet. `resuming` lets lost requests wait for a server that can continue them."""

    def __init__(self, clients: Sequence[ClientT], check_open: Callable[[], None]) -> None:
        self.all = [_member(client) for client in clients]
        # Adapters of all servers, by name; those of a server that is away too: it will be back.
        self.loras = self._find_loras()
        self._check_open = check_open
        self.resuming = Resuming(self._check, self._may_wait)
        self._watch = asyncio.create_task(self._watch_members(), name="weft-rpc-fleet")

    def __len__(self) -> int:
        return len(self.all)

    @property
    def healthy(self) -> list[FleetMember[ClientT]]:
        return [member for member in self.all if member.is_healthy]

    def choose(
        self, but: FleetMember[ClientT] | None = None, lora_name: str | None = None
    ) -> FleetMember[ClientT]:
        """Returns the least loaded server for a new request; one that has its adapter, if any is known to have it."""
        self._check_open()
        able = [one for one in self.healthy if one is not but]
        if not able:
            raise Unavailable("no server of this model is healthy")
        having = [one for one in able if one.has_adapter(lora_name)]
        return min(having or able, key=lambda one: one.rank())

    def choose_equal(self, request: Request) -> FleetMember[ClientT]:
        """Returns the least loaded server that can continue a request."""
        self._check(request)
        return min(self._equal(request), key=lambda one: one.rank())

    def _equal(self, request: Request) -> list[FleetMember[ClientT]]:
        assert request.resumption is not None
        fingerprint = request.resumption.fingerprint
        return [
            one
            for one in self.healthy
            if _is_equal(one.fingerprint, fingerprint) and one.has_adapter(request.lora_name)
        ]

    def _find_loras(self) -> dict[str, LoRARequest]:
        names = sorted({name for member in self.all for name in member.adapters})
        return {
            name: LoRARequest(lora_name=name, lora_int_id=place, lora_path=name)
            for place, name in enumerate(names, start=1)
        }

    def _check(self, request: Request) -> None:
        self._check_open()
        if not self._equal(request):
            raise EngineDead("no server with the same weights and settings is healthy")

    def _may_wait(self) -> bool:
        try:
            self._check_open()
        except EngineDead:
            return False
        return True

    async def refresh(self) -> None:
        """Looks at all servers."""
        await asyncio.gather(*(member.refresh() for member in self.all))
        self.loras = self._find_loras()
        self.resuming.announce()

    async def _watch_members(self) -> None:
        while True:
            await self.refresh()
            self._move_streams()
            await asyncio.sleep(_WATCH_INTERVAL_S)

    def _move_streams(self) -> None:
        """Lets other servers continue the requests of servers that are draining, or have not answered for
        `GIVE_UP_S`.
        """
        too_old = asyncio.get_running_loop().time() - GIVE_UP_S
        for member in self.all:
            is_silent = member.failing_since is not None and member.failing_since < too_old
            if (member.is_draining or is_silent) and any(
                _is_equal(one.fingerprint, member.fingerprint) for one in self.healthy
            ):
                member.client.drop_streams(is_draining=member.is_draining)

    async def close(self) -> None:
        """Ends the watch; requests that wait get their errors."""
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        self.resuming.announce()


def _member(client: ClientT) -> FleetMember[ClientT]:
    report = client.first_report
    return FleetMember(client, fingerprint=report.fingerprint, adapters=report.adapters)


def _is_equal(model: str, fingerprint: str) -> bool:
    """True if a server with this fingerprint of its model can continue a request; the server itself compares the
    adapter.
    """
    return bool(model) and model == fingerprint.partition(FINGERPRINT_SEPARATOR)[0]
