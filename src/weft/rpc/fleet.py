"""`Fleet`: several servers of one model as one engine. A request goes to the healthy server with the lowest load.

A request that a server could not take goes to another one, once. A request whose server is lost continues at a server
with the same fingerprint. Without a fingerprint, as for other engines, a request whose response has begun is never sent
again.
"""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, TypeVar

from weft.core.aio.failover import RESUME_S, nothing, run_on
from weft.core.aio.tasks import gather_available
from weft.core.errors import (
    BadRequest,
    ConfigError,
    EngineDead,
    EngineDrained,
    EngineLost,
    FailedPrecondition,
    GenerationError,
    Overloaded,
    Unavailable,
)
from weft.core.observe.metrics import Metrics
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.media import Media
from weft.core.values.types import LoRARequest, PoolingRequestOutput, Request, RequestOutput
from weft.rpc.client import RemoteClient, RpcClient
from weft.rpc.connection import NO_CREDENTIALS, Credentials
from weft.rpc.convert.request import wire_id
from weft.rpc.members import FleetMember, FleetMembers
from weft.text.outputs.request_stream import RequestStream

log = logging.getLogger("weft.rpc")

T = TypeVar("T")

_BLAMED = "the request is given up: two servers have ended while they ran it, at the same place of its answer"
_RETRY_S = 0.25  # between attempts to continue a request that servers refuse


class Fleet(RemoteClient):
    """Made by `connect`, inside a running event loop."""

    def __init__(self, clients: Sequence[RpcClient]) -> None:
        super().__init__()
        self._members = FleetMembers(clients, self._check_open)
        first = clients[0]
        self.info, self.vllm_config = first.info, first.vllm_config
        self.model_config = first.model_config
        self.renderer = first.renderer
        self._first = first
        self._wire_ids: dict[str, str] = {}  # of continued requests, by request id
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
        stream = self._first.stream_of(request)
        return run_on(request, stream, partial(self._run_part, stream))

    def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        return self._begin(request, lambda client: client.run_pooling(request))

    async def _run_part(
        self, stream: RequestStream, request: Request
    ) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request, or the rest of it. Raises `EngineLost` if another server can continue it."""
        if request.resumption is None:
            running = self._begin(request, lambda client: client.run_part(request, stream))
        else:
            running = self._continue(request, stream)
        async with aclosing(running) as outputs:
            async for output in outputs:
                yield output

    async def _begin(
        self, request: Request, run: Callable[[RpcClient], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[T, None]:
        """The outputs of the chosen server, or of the next one if that server did not accept the request."""
        name = request.lora_name
        member, refused_by, has_begun = self._members.choose(lora_name=name), None, False
        while True:
            try:
                async with aclosing(self._at(member, request, run)) as outputs:
                    async for output in outputs:
                        has_begun = True
                        yield output
                return
            except EngineLost:
                raise
            except (Unavailable, Overloaded):
                if has_begun or refused_by is not None or len(self._members) == 1:
                    raise
                refused_by = member
            member = self._members.choose(but=refused_by, lora_name=name)

    async def _continue(
        self, request: Request, stream: RequestStream
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of the rest of a request; waits while no server can continue it, or servers refuse it."""
        resuming, loop = self._members.resuming, asyncio.get_running_loop()
        deadline = loop.time() + RESUME_S
        run = partial(RpcClient.run_part, request=request, stream=stream)
        with self._known_as(wire_id(request), request.request_id) as is_wanted:
            while is_wanted() and await resuming.wait_for_engine(request):
                member = self._members.choose_equal(request)
                try:
                    with resuming.turn(request) as on_advance:
                        async with aclosing(self._at(member, request, run, on_advance)) as outputs:
                            async for output in outputs:
                                yield output
                    return
                except EngineLost:
                    raise
                except FailedPrecondition as error:
                    member.fingerprint = ""  # until the next look at this server
                    if loop.time() > deadline:
                        raise EngineDead(str(error)) from error
                except (Unavailable, Overloaded):
                    if loop.time() > deadline:
                        raise
                await asyncio.sleep(_RETRY_S)
        stream.abort()
        if (end := stream.pop()) is not None:
            yield end

    async def _at(
        self,
        member: FleetMember,
        request: Request,
        run: Callable[[RpcClient], AsyncGenerator[T, None]],
        on_advance: Callable[[], None] = nothing,
    ) -> AsyncGenerator[T, None]:
        """The outputs of one server. Raises `GenerationError` for the request that ends one server after the other."""
        member.num_taken += 1
        member.num_open += 1
        suspects, is_first, is_lost = member.suspects, True, False
        if request.resumption is not None:
            suspects.add(request.engine_id)
        try:
            async with aclosing(run(member.client)) as outputs:
                async for output in outputs:
                    if is_first:
                        is_first = False
                        suspects.discard(request.engine_id)
                        on_advance()
                    yield output
        except Unavailable as error:
            is_lost = isinstance(error, EngineLost) and not isinstance(error, EngineDrained)
            member.set_healthy(False, str(error))
            if is_lost and member.is_to_blame(request, suspects):
                raise GenerationError(_BLAMED) from error
            raise
        finally:
            member.num_open -= 1
            if not is_lost:
                suspects.discard(request.engine_id)

    @contextmanager
    def _known_as(self, wire_id: str, request_id: str) -> Iterator[Callable[[], bool]]:
        """Records the id that servers know a continued request by; the yielded function returns False once the request
        is aborted.
        """
        self._wire_ids[request_id] = wire_id
        try:
            yield lambda: request_id in self._wire_ids
        finally:
            self._wire_ids.pop(request_id, None)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Aborts requests at all servers; ids are unique among them."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        self._members.resuming.abort(ids)
        ids += [self._wire_ids.pop(one) for one in ids if one in self._wire_ids]
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
            self._closing = asyncio.create_task(self._close(), name="weft-rpc-fleet-close")

    # -- members ------------------------------------------------------------------------------

    async def _each(self, call: Callable[[RpcClient], Awaitable[T]]) -> list[T]:
        """Calls every healthy server and returns the results; raises the first error if all fail."""
        self._members.choose()
        return await gather_available(call(member.client) for member in self._members.healthy)

    async def _close(self) -> None:
        self._closed.set()
        await self._members.close()

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
