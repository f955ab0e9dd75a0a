"""`Draining`: hands the requests of engines that leave over to the other engines of a group.

The callers of the requests continue them, as after the loss of an engine (`failover`). So a drain takes milliseconds,
however long the requests are. Only prompts in pieces stay: their state is in one engine.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from weft.core.aio.failover import first_engine_id
from weft.core.aio.tasks import is_set_within
from weft.core.checks.scalars import check_number
from weft.core.config.elastic import MAX_DRAIN_S
from weft.core.errors import BadRequest, DeadlineExceeded, FailedPrecondition
from weft.core.values.controls import Drained
from weft.core.values.kv_transfer import remote_prompt
from weft.core.values.types import Request
from weft.engine.clients.engine_rank import Rank

# Maximum time for which a drain follows requests to their next engines. A caller that does not read its stream
# continues the request only when it reads on.
MOVE_S = 5.0


@dataclass(slots=True, eq=False)
class Handover:
    """Requests that an engine gives up, by their first engine ids. `moved` counts those that run at another engine, by
    its rank, and `num_transferred` those of them that fetch their blocks. `done` is set when all of them run.
    """

    engine_ids: set[str]
    moved: Counter[int] = field(default_factory=Counter)
    num_transferred: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        if not self.engine_ids:
            self.done.set()

    def note(self, request: Request, number: int) -> None:
        """Counts a request that now runs at the engine with this rank."""
        engine_id = first_engine_id(request)
        if engine_id in self.engine_ids:
            self.engine_ids.discard(engine_id)
            self.moved[number] += 1
            self.num_transferred += remote_prompt(request.params.extra_args) is not None
            if not self.engine_ids:
                self.done.set()


class Draining:
    """Drains the engines of a group. `ranks` returns all ranks of the group; `is_paused` is True if requests may be
    paused.
    """

    def __init__(self, ranks: Callable[[], list[Rank]], is_paused: Callable[[], bool]) -> None:
        self._ranks = ranks
        self._is_paused = is_paused
        self._followed: set[Handover] = set()

    def note(self, request: Request, rank: Rank) -> None:
        """Counts a request that begins to run at an engine, if a drained engine gave it up."""
        if self._followed and request.resumption is not None:
            for handover in self._followed:
                handover.note(request, rank.number)

    # -- an operator's calls ------------------------------------------------------------------

    async def drain(self, numbers: Sequence[int], timeout_s: float) -> list[Drained]:
        """Sends no more requests to these engines, hands their requests over, and waits up to `timeout_s` for those
        that cannot move.
        """
        check_number("timeout", timeout_s, 0, MAX_DRAIN_S)
        ranks = self._named(numbers)
        if not self._others(ranks):
            which = ", ".join(str(rank.number) for rank in ranks)
            raise FailedPrecondition(
                f"data_parallel_ranks {which} cannot be drained: no other engine takes requests"
            )
        for rank in ranks:
            rank.is_drained = True
        return await asyncio.gather(*(self._drain(rank, timeout_s) for rank in ranks))

    async def _drain(self, rank: Rank, timeout_s: float) -> Drained:
        handover = self._hand_over(rank)
        num_rest = rank.num_open
        self._followed.add(handover)
        try:
            await asyncio.gather(
                is_set_within(handover.done, MOVE_S), is_set_within(rank.idle, timeout_s)
            )
        finally:
            self._followed.discard(handover)
        return Drained(
            data_parallel_rank=rank.number,
            moved=dict(sorted(handover.moved.items())),
            transferred=handover.num_transferred,
            recomputed=handover.moved.total() - handover.num_transferred,
            waited=num_rest - rank.num_open,
            running=rank.num_open,
            left=len(handover.engine_ids),
        )

    def undrain(self, numbers: Sequence[int]) -> None:
        """Sends requests to these engines again."""
        for rank in self._named(numbers):
            rank.is_drained = False

    def _named(self, numbers: Sequence[int]) -> list[Rank]:
        by_number = {rank.number: rank for rank in self._ranks()}
        name = "data_parallel_ranks"
        if not numbers:
            raise BadRequest(name, f"{name} must name at least one engine")
        for number in numbers:
            if number not in by_number:
                known = ", ".join(map(str, by_number))
                raise BadRequest(name, f"{name} must be of {known}, got {number}")
        return [by_number[number] for number in dict.fromkeys(numbers)]

    # -- engines that leave -------------------------------------------------------------------

    def leave(self, rank: Rank) -> None:
        """Hands over the requests of an engine whose node shuts down. If no other engine takes requests, they stay."""
        if self._others([rank]):
            self._hand_over(rank)

    async def empty(self, ranks: Sequence[Rank], timeout_s: float) -> None:
        """Sends no more requests to these engines, hands their requests over, and waits for the others. If these take
        longer than `timeout_s`, the engines take requests again.
        """
        with _draining(ranks):
            if self._others(ranks):
                for rank in ranks:
                    self._hand_over(rank)
            if self._is_paused() and any(rank.num_open for rank in ranks):
                raise FailedPrecondition(
                    "requests of the engines to remove cannot finish while paused: call resume_generation first"
                )
            try:
                async with asyncio.timeout(timeout_s):
                    for rank in ranks:
                        await rank.idle.wait()
            except TimeoutError:
                count = sum(rank.num_open for rank in ranks)
                raise DeadlineExceeded(
                    f"after {timeout_s:g} s the engines to remove still had {count} open requests; "
                    "no engine was removed"
                ) from None

    def _others(self, leaving: Sequence[Rank]) -> bool:
        """True if a live engine beside these takes requests."""
        return any(
            rank.is_live and rank.takes_requests for rank in self._ranks() if rank not in leaving
        )

    @staticmethod
    def _hand_over(rank: Rank) -> Handover:
        given = rank.engine.hand_over() if rank.is_live else []
        rank.let_go(request.engine_id for request in given)
        return Handover({first_engine_id(request) for request in given})


@contextmanager
def _draining(ranks: Sequence[Rank]) -> Iterator[None]:
    """Marks ranks as draining; on an error they take requests again."""
    for rank in ranks:
        rank.is_draining = True
    try:
        yield
    except BaseException:
        for rank in ranks:
            rank.is_draining = False
        raise
