"""`Continuing`: runs requests at the servers of a fleet, and lets equal servers continue those of a lost one."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Generic, TypeVar

from weft.core.aio.failover import RESUME_S, nothing, run_on
from weft.core.errors import (
    EngineDead,
    EngineDrained,
    EngineLost,
    FailedPrecondition,
    GenerationError,
    Overloaded,
    Unavailable,
)
from weft.core.values.types import Request, RequestOutput
from weft.rpc.convert.request import wire_id
from weft.rpc.failover.members import ClientT, FleetMember, FleetMembers
from weft.text.outputs.request_stream import RequestStream

T = TypeVar("T")

_BLAMED = "the request is given up: two servers have ended while they ran it, at the same place of its answer"
_RETRY_S = 0.25  # between attempts to continue a request that servers refuse


class Continuing(Generic[ClientT]):
    """Made inside a running event loop. `check_open` raises once no request may run any more."""

    def __init__(self, clients: Sequence[ClientT], check_open: Callable[[], None]) -> None:
        self.members = FleetMembers(clients, check_open)
        self._wire_ids: dict[str, str] = {}  # of continued requests, by request id

    def run(self, request: Request, stream: RequestStream) -> AsyncGenerator[RequestOutput, None]:
        """Yields the outputs of a request, over as many servers as it takes. `stream` collects them."""
        return run_on(request, stream, partial(self._run_part, stream))

    async def _run_part(
        self, stream: RequestStream, request: Request
    ) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request, or the rest of it. Raises `EngineLost` if another server can continue it."""
        if request.resumption is None:
            running = self.begin(request, lambda client: client.run_part(request, stream))
        else:
            running = self._continue(request, stream)
        async with aclosing(running) as outputs:
            async for output in outputs:
                yield output

    async def begin(
        self, request: Request, run: Callable[[ClientT], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[T, None]:
        """The outputs of the chosen server, or of the next one if that server did not accept the request."""
        name, members = request.lora_name, self.members
        member, refused_by, has_begun = members.choose(lora_name=name), None, False
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
                if has_begun or refused_by is not None or len(members) == 1:
                    raise
                refused_by = member
            member = members.choose(but=refused_by, lora_name=name)

    async def _continue(
        self, request: Request, stream: RequestStream
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of the rest of a request; waits while no server can continue it, or servers refuse it."""
        resuming, loop = self.members.resuming, asyncio.get_running_loop()
        deadline = loop.time() + RESUME_S

        def run(client: ClientT) -> AsyncGenerator[RequestOutput, None]:
            return client.run_part(request, stream)

        with self._known_as(wire_id(request), request.request_id) as is_wanted:
            while is_wanted() and await resuming.wait_for_engine(request):
                member = self.members.choose_equal(request)
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
        member: FleetMember[ClientT],
        request: Request,
        run: Callable[[ClientT], AsyncGenerator[T, None]],
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

    def abort(self, request_ids: str | Iterable[str]) -> list[str]:
        """Ends requests that wait for a server. Returns the ids by which servers know the requests."""
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self.members.resuming.abort(ids)
        return ids + [self._wire_ids.pop(one) for one in ids if one in self._wire_ids]
