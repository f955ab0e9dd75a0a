"""`Fleet`: several servers of one model as one engine. A request goes to the healthy server with the lowest load.

A request that a server could not take goes to another one, once. A request whose server is lost continues at a server
with the same fingerprint. Without a fingerprint, as for other engines, a request whose response has begun is never sent
again.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from weft.core.aio.tasks import gather_available
from weft.core.errors import BadRequest, ConfigError
from weft.core.observe.metrics import Metrics
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.media import Media
from weft.core.values.types import LoRARequest, PoolingRequestOutput, Request, RequestOutput
from weft.rpc.client import RemoteClient, RpcClient
from weft.rpc.connection import NO_CREDENTIALS, Credentials
from weft.rpc.failover.continuing import Continuing

log = logging.getLogger("weft.rpc")

T = TypeVar("T")


class Fleet(RemoteClient):
    """Made by `connect`, inside a running event loop."""

    def __init__(self, clients: Sequence[RpcClient]) -> None:
        super().__init__()
        self._continuing = Continuing(clients, self._check_open)
        self._members = self._continuing.members
        first = clients[0]
        self.info, self.vllm_config = first.info, first.vllm_config
        self.model_config = first.model_config
        self.renderer = first.renderer
        self._first = first
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
        return ", ".join(member.target for member in self._members.all)

    # -- requests -----------------------------------------------------------------------------

    async def prepare(self, *args: Any, **kwargs: Any) -> Request:
        """Prepares a request; all servers have the same model, so any of them can run it."""
        self._check_open()
        request = await self._first.prepare(*args, **kwargs)
        if request.media is not None and len(self._members) > 1:
            _check_complete(request.media)
        return request

    def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        return self._continuing.run(request, self._first.stream_of(request))

    def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        return self._continuing.begin(request, lambda client: client.run_pooling(request))

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Aborts requests at all servers; ids are unique among them."""
        ids = self._continuing.abort(request_id)
        if self._members.healthy:  # else the requests wait here
            await self._each(lambda client: client.abort(ids))

    async def fingerprint(self, lora: LoRARequest | None) -> str:
        """Returns the fingerprint of all healthy servers that have the adapter; empty if they differ."""
        name = None if lora is None else lora.lora_name
        able = [member for member in self._members.healthy if member.has_adapter(name)]
        found = {member.fingerprint_with(lora) for member in able}
        return found.pop() if len(found) == 1 else ""

    # -- state --------------------------------------------------------------------------------

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        """The adapters of the servers, by name; a request goes to a server that has its adapter."""
        return self._members.loras

    @property
    def num_active_requests(self) -> int:
        """Number of open requests of this client."""
        return sum(member.num_open for member in self._members.all)

    async def check_health(self) -> None:
        """Raises `Unavailable` if no server was healthy at the last check, at most about a second ago."""
        self._members.choose()

    async def do_log_stats(self) -> None:
        """Logs one line per server."""
        for member in self._members.all:
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
        return await self._members.choose().client.get_tokenizer_files()

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
            self._closing = asyncio.create_task(self.close(), name="weft-rpc-fleet-close")

    # -- members ------------------------------------------------------------------------------

    async def _each(self, call: Callable[[RpcClient], Awaitable[T]]) -> list[T]:
        """Calls every healthy server and returns the results; raises the first error if all fail."""
        self._members.choose()
        return await gather_available(call(member.client) for member in self._members.healthy)

    async def close(self) -> None:
        """Leave the servers; open calls end and their requests are aborted. Idempotent."""
        self._closed.set()
        await self._members.close()
        await asyncio.gather(*(member.client.close() for member in self._members.all))

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise self.dead_error


def _check_complete(media: Media) -> None:
    """Refuses an item that is only a uuid: each server knows only the items that it has received itself."""
    if any(item.data is None and item.url is None for item in media.items):
        raise BadRequest(
            "uuid",
            "uuid without the item itself is not supported by several servers: each has its own cache",
        )


def _check_same_model(one: RpcClient, other: RpcClient) -> None:
    """Compares names, vocabulary and context, which must be equal for the servers to be interchangeable."""
    for name in ("served_model_names", "vocab_size", "max_model_len", "eos_token_ids"):
        ours, theirs = getattr(one.model_config, name), getattr(other.model_config, name)
        if ours != theirs:
            raise ConfigError(
                f"{other.target} serves another model than {one.target}: {name} is {theirs}, not {ours}"
            )
