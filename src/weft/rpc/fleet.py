"""`Fleet`: several servers of one model as one engine. A request goes to the healthy server with the lowest load.

A request that a server could not take, or that was lost before anything of it came, goes to another
one, once. A request whose response has begun is never
sent again.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from weft.core.aio.tasks import gather_available
from weft.core.errors import (
    ConfigError,
    Overloaded,
    Unavailable,
    Unsupported,
    WeftError,
)
from weft.core.observe.metrics import Metrics
from weft.core.values.types import (
    EngineLoad,
    PoolingRequestOutput,
    Request,
    RequestOutput,
)
from weft.rpc.client import RemoteClient, RpcClient
from weft.rpc.connection import NO_CREDENTIALS, Credentials

log = logging.getLogger("weft.rpc")

T = TypeVar("T")

_WATCH_INTERVAL_S = 1.0
_WAITING_WEIGHT = 4  # a queue delays the first token more than a full batch does


@dataclass(slots=True, eq=False)
class _Member:
    """A server of the fleet. `num_taken` counts requests sent since `load` was reported."""

    client: RpcClient
    is_healthy: bool = True
    load: int = 0
    num_taken: int = 0
    num_open: int = 0

    @property
    def target(self) -> str:
        """host:port."""
        return self.client.target

    def rank(self) -> tuple[int, int]:
        """Sort key: the smallest is chosen."""
        return (self.load + self.num_taken, self.num_open)

    async def refresh(self) -> None:
        """Fetches the server's health and load."""
        try:
            await self.client.check_health()
            loads = await self._loads()
        except WeftError as error:
            self.set_healthy(False, str(error))
            return
        self.load = sum(_WAITING_WEIGHT * one.num_waiting + one.num_running for one in loads)
        self.num_taken = 0
        self.set_healthy(True)

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
        self.is_healthy = is_healthy


class Fleet(RemoteClient):
    """Made by `connect`, inside a running event loop."""

    def __init__(self, clients: Sequence[RpcClient]) -> None:
        super().__init__()
        self._members = [_Member(client) for client in clients]
        first = clients[0]
        self.info, self.vllm_config = first.info, first.vllm_config
        self.model_config = first.model_config
        self.renderer = first.renderer
        self._first = first
        self._watch = asyncio.create_task(self._watch_members(), name="weft-rpc-fleet")
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        targets: Sequence[str],
        *,
        credentials: Credentials = NO_CREDENTIALS,
        timeout_s: float = 10.0,
        metrics: Metrics | None = None,
    ) -> "Fleet":
        """Connects to every server of `targets` (host:port), which must serve the same model.

        In `metrics` each server is an engine.
        """
        connecting = [
            asyncio.ensure_future(
                RpcClient.connect(
                    target, credentials=credentials, timeout_s=timeout_s, metrics=metrics
                )
            )
            for target in targets
        ]
        results = await asyncio.gather(*connecting, return_exceptions=True)
        clients = [result for result in results if isinstance(result, RpcClient)]
        try:
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            for client in clients[1:]:
                _check_same_model(clients[0], client)
            return cls(clients)
        except BaseException:
            await asyncio.gather(*(client.close() for client in clients))
            raise

    @property
    def target(self) -> str:
        return ", ".join(member.target for member in self._members)

    # -- requests -----------------------------------------------------------------------------

    async def prepare(self, *args: Any, **kwargs: Any) -> Request:
        """Prepares a request; all servers have the same model, so any of them can run it."""
        self._check_open()
        return await self._first.prepare(*args, **kwargs)

    def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        return self._follow(lambda client: client.run(request))

    def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        return self._follow(lambda client: client.run_pooling(request))

    async def _follow(
        self, run: Callable[[RpcClient], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[T, None]:
        """The outputs of the chosen server, or of the next one if that server did not accept the request."""
        member, refused_by, has_begun = self._choose(), None, False
        while True:
            member.num_taken += 1
            member.num_open += 1
            try:
                async with aclosing(run(member.client)) as outputs:
                    async for output in outputs:
                        has_begun = True
                        yield output
                return
            except (Unavailable, Overloaded) as error:
                if isinstance(error, Unavailable):
                    member.set_healthy(False, str(error))
                if has_begun or refused_by is not None or len(self._members) == 1:
                    raise
                refused_by = member
            finally:
                member.num_open -= 1
            member = self._choose(but=refused_by)

    def _choose(self, but: _Member | None = None) -> _Member:
        self._check_open()
        able = [one for one in self._members if one.is_healthy and one is not but]
        if not able:
            raise Unavailable("no server of this model is healthy")
        return min(able, key=_Member.rank)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Aborts requests at all servers; ids are unique among them."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        await self._each(lambda client: client.abort(ids))

    # -- state --------------------------------------------------------------------------------

    @property
    def num_active_requests(self) -> int:
        """Number of open requests of this client."""
        return sum(member.num_open for member in self._members)

    async def check_health(self) -> None:
        """Raises `Unavailable` if no server was healthy at the last check, at most about a second ago."""
        self._choose()

    async def do_log_stats(self) -> None:
        """Logs one line per server."""
        for member in self._members:
            log.info(
                "%s: healthy=%s load=%d open here=%d",
                member.target,
                member.is_healthy,
                member.load,
                member.num_open,
            )

    async def get_loads(self) -> list[EngineLoad]:
        """Returns the loads of all ranks, of each server that answers, server after server."""
        loads = await self._each(lambda client: client.get_loads())
        return [load for one in loads for load in one]

    async def get_tokenizer_files(self) -> dict[str, bytes]:
        """The files of the model's tokenizer, by name."""
        return await self._choose().client.get_tokenizer_files()

    # -- control ------------------------------------------------------------------------------

    async def is_paused(self) -> bool:
        """True if all servers that answer are paused."""
        return all(await self._each(lambda client: client.is_paused()))

    async def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Resets the prefix caches of all servers that answer."""
        done = await self._each(lambda client: client.reset_prefix_cache(*args, **kwargs))
        return all(done)

    def shutdown(self, timeout: float | None = None) -> None:
        """Leave the servers alone and close the connections; open requests are aborted."""
        del timeout
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="weft-rpc-fleet-close")

    # -- members ------------------------------------------------------------------------------

    async def _each(self, call: Callable[[RpcClient], Awaitable[T]]) -> list[T]:
        """Calls every healthy server and returns the results; raises the first error if all fail."""
        self._choose()
        return await gather_available(
            call(member.client) for member in self._members if member.is_healthy
        )

    async def _watch_members(self) -> None:
        while True:
            await asyncio.gather(*(member.refresh() for member in self._members))
            await asyncio.sleep(_WATCH_INTERVAL_S)

    async def _close(self) -> None:
        self._closed.set()
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await asyncio.gather(*(member.client.close() for member in self._members))

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise self.dead_error


def _check_same_model(one: RpcClient, other: RpcClient) -> None:
    """Compares names, vocabulary and context, which must be equal for the servers to be interchangeable."""
    for name in ("served_model_names", "vocab_size", "max_model_len", "eos_token_ids"):
        ours, theirs = getattr(one.model_config, name), getattr(other.model_config, name)
        if ours != theirs:
            raise ConfigError(
                f"{other.target} serves another model than {one.target}: {name} is {theirs}, not {ours}"
            )
