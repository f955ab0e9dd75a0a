"""`Rank`: one of several engines of a group, and functions that launch the engines' processes."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from weft.core.config.engine import EngineConfig
from weft.core.observe.metrics import Metrics
from weft.engine.clients.child import EngineChild
from weft.engine.clients.process_client import OnLoading, launched
from weft.engine.front.client import FrontClient
from weft.engine.front.kv_publisher import KvEventStream
from weft.engine.front.prefix_index import PrefixIndex
from weft.engine.ipc.weight_files import WeightFiles
from weft.text.tokenizer import Tokenizer

# Weight of an unfinished answer in the backlog, in prompt tokens: about the number of tokens that a short answer still
# has to generate.
ANSWER_TOKENS = 64


@dataclass(slots=True, eq=False)
class Rank:
    """A data-parallel rank: one engine of a group. `client` is None while the engine is down.

    `events` is the stream for ZeroMQ subscribers. A draining rank is about to be removed; a drained one gets no
    requests until an operator allows it or its engine is started again. The engine of a rank that is given up is not
    restarted. `idle` is set while the rank has no open requests (`num_open` is 0).
    """

    number: int
    client: FrontClient | None = None
    supervisor: asyncio.Task[None] | None = None
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    events: KvEventStream | None = None
    chosen_at: int = 0
    is_stalled: bool = False
    is_draining: bool = False
    is_drained: bool = False
    is_leaving: bool = False
    is_given_up: bool = False
    _open: set[object] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def is_live(self) -> bool:
        """True if the engine is running."""
        return self.client is not None and self.client.is_running

    @property
    def takes_requests(self) -> bool:
        """False if the rank gets no more requests, live or not."""
        return not (self.is_draining or self.is_drained)

    @property
    def num_open(self) -> int:
        """Number of open requests."""
        return len(self._open)

    @property
    def engine(self) -> FrontClient:
        """Client of the rank's engine, which must be live."""
        assert self.client is not None
        return self.client

    @property
    def backlog(self) -> int:
        """Estimated work of this rank, in prompt tokens."""
        return self.engine.num_uncached_tokens + ANSWER_TOKENS * self.engine.num_open_answers

    @contextmanager
    def holding(self, engine_id: object) -> Iterator[None]:
        """Context manager that counts a request as open on this rank."""
        self._open.add(engine_id)
        self.idle.clear()
        try:
            yield
        finally:
            self.let_go([engine_id])

    def let_go(self, engine_ids: Iterable[object]) -> None:
        """Counts requests as open no longer; unknown ones are ignored."""
        self._open.difference_update(engine_ids)
        if not self._open:
            self.idle.set()


class Nodes(Protocol):
    """Other machines whose engines join this machine's group of engines."""

    def expect(self, fingerprint: str) -> None:
        """Sets the fingerprint of the weights that every joining engine must have."""

    async def join(
        self,
        rank: int,
        tokenizer: Tokenizer,
        metrics: Metrics | None,
        on_loading: OnLoading = ...,
        on_leaving: Callable[[], None] = ...,
    ) -> FrontClient:
        """Waits until the engine of that rank has joined and loaded; returns its client. `on_leaving` is called when
        its node begins to shut down.
        """

    def close(self) -> None:
        """Stops accepting engines."""


def new_ranks(config: EngineConfig, numbers: Iterable[int]) -> list[Rank]:
    """Returns new ranks with these numbers; raises `ConfigError`, without any rank, if a rank cannot publish its
    events.
    """
    ranks: list[Rank] = []
    try:
        for number in numbers:
            given = config.kv_events_config
            ranks.append(
                Rank(number, events=None if given is None else KvEventStream(given, number))
            )
    except BaseException:
        close_events(ranks)
        raise
    return ranks


def close_events(ranks: Iterable[Rank]) -> None:
    """Stops publishing the events of these ranks."""
    for rank in ranks:
        if rank.events is not None:
            rank.events.close()
            rank.events = None


async def launch_all(
    config: EngineConfig,
    numbers: Sequence[int],
    *,
    begun: EngineChild | None = None,
    weights: WeightFiles | None = None,
) -> list[EngineChild]:
    """Launches a process for each rank; if one fails, none stays.

    `begun` is the process of the first rank, if it was launched already.
    """
    children = [] if begun is None else [begun]
    weights = weights if begun is None else begun.weights
    try:
        for number in numbers[len(children) :]:
            child = await launched(config.of_rank(number), weights)
            children.append(child)
            weights = child.weights
    except BaseException:
        await asyncio.gather(*(child.discard() for child in children))
        raise
    return children
