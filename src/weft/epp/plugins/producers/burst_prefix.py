"""`burst-prefix-cache-producer`: sends requests with the same prompt that arrive within a short time window to the same
server.

Until the server has computed the first of them, no cache contains their prompt, and load balancing alone would spread
them.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from weft.epp.config.parameters import AtLeastOne, Count, Kind, Parameters
from weft.epp.decision.cycle import Cycle, PrefixMatch
from weft.epp.decision.plugin import TOKENS, Producer, Surroundings, plugin
from weft.epp.plugins.pickers import freshness
from weft.epp.plugins.producers.approximate_prefix import hash_prompts
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.pool import reachable
from weft.epp.request.values import MAX_COMPARED_TOKENS

# Maximum length of a compared prefix if maxPrefixTokensToMatch is not set.
_MAX_BLOCKS: Final = 2048
_MAX_WINDOW_MS: Final = 10_000
_OrUnlimited = Annotated[int, msgspec.Meta(ge=-1)]


class BurstParameters(Parameters, frozen=True, kw_only=True):
    """Length of the time window, and the maximum number of its requests that one endpoint gets; -1 means any number."""

    needs = (TOKENS,)
    window_duration_ms: Annotated[int, msgspec.Meta(ge=1, le=_MAX_WINDOW_MS)] = 100
    max_batch_size: _OrUnlimited = 1000
    max_per_replica: _OrUnlimited = -1
    min_colocate_blocks: Count = 0  # 0: only identical prompts are placed together
    block_size_tokens: AtLeastOne = 64
    balance_by: Literal["requests", "tokens"] = "requests"
    max_prefix_tokens_to_match: Annotated[int, msgspec.Meta(ge=0, le=MAX_COMPARED_TOKENS)] = 0

    def __post_init__(self) -> None:
        if not self.max_batch_size:
            raise ValueError("maxBatchSize must be -1 (no limit) or at least 1")
        if not self.max_per_replica:
            raise ValueError("maxPerReplica must be -1 (no limit) or at least 1")
        if 0 < self.max_prefix_tokens_to_match < self.block_size_tokens:
            raise ValueError("maxPrefixTokensToMatch must be 0 or at least blockSizeTokens")

    @property
    def max_blocks(self) -> int:
        """Maximum number of prompt blocks that are compared."""
        return self.max_prefix_tokens_to_match // self.block_size_tokens or _MAX_BLOCKS


@dataclass(frozen=True, slots=True)
class Prompts:
    """Hashes of a request's prompts, and of their common prefix if that is long enough to share."""

    whole: tuple[int, ...]
    beginning: int | None
    num_blocks: int


class Batch:
    """The requests of one time window, and the chosen endpoint of each request that shares its prompt with another."""

    def __init__(self) -> None:
        self.is_closed = asyncio.Event()
        self.prompts: dict[int, Prompts] = {}  # by ticket
        self.wanted: Mapping[int, Endpoint] = {}


@plugin("burst-prefix-cache-producer", Kind.PRODUCER, BurstParameters, is_alpha=True)
class BurstProducer(Producer):
    """Delays each request until its time window ends, and assigns requests with shared prompts to one endpoint."""

    def __init__(self, parameters: BurstParameters, around: Surroundings) -> None:
        self._parameters = parameters
        self._name = around.name
        self._pool = around.pool
        self._gathering: Batch | None = None

    async def prepare(self, cycle: Cycle) -> None:
        """Waits for the end of the time window, then stores a full prefix match for the chosen endpoint and no match
        for the others.
        """
        prompts = self._read(cycle)
        if not prompts.num_blocks:
            return
        batch = self._gathering or self._open()
        batch.prompts[cycle.ticket_id] = prompts
        if len(batch.prompts) == self._parameters.max_batch_size:
            self._close(batch)
        await batch.is_closed.wait()
        home = batch.wanted.get(cycle.ticket_id)
        held = {} if home is None else {home: prompts.num_blocks}
        size = self._parameters.block_size_tokens
        cycle.prefixes[self._name] = PrefixMatch(prompts.num_blocks, size, held, held)

    def _read(self, cycle: Cycle) -> Prompts:
        parameters, least = self._parameters, self._parameters.min_colocate_blocks
        hashed = hash_prompts(cycle, parameters.block_size_tokens, parameters.max_blocks)
        chains = [chain for chain in hashed if chain]
        beginning = chains[0][least - 1] if least and chains and len(chains[0]) >= least else None
        # The last hash of a chain covers the whole prompt.
        return Prompts(tuple(chain[-1] for chain in chains), beginning, sum(map(len, chains)))

    def _open(self) -> Batch:
        batch = self._gathering = Batch()
        window_s = self._parameters.window_duration_ms / 1000
        asyncio.get_running_loop().call_later(window_s, self._close, batch)
        return batch

    def _close(self, batch: Batch) -> None:
        if batch is self._gathering:
            self._gathering = None
            # Endpoints are ordered by last use, and ties go to the first: a window in which all requests share a
            # prompt must not prefer one endpoint for ever.
            endpoints = sorted(reachable(self._pool.ready), key=freshness)
            batch.wanted = place(
                batch.prompts, endpoints, self._parameters.max_per_replica,
                by_tokens=self._parameters.balance_by == "tokens",
            )  # fmt: skip
            batch.is_closed.set()


def place(
    prompts: Mapping[int, Prompts],
    endpoints: Sequence[Endpoint],
    most: int,
    *,
    by_tokens: bool = False,
) -> Mapping[int, Endpoint]:
    """Returns an endpoint for every request that shares its prompt with another one, by ticket. An endpoint gets at
    most `most` requests in a row.

    Identical prompts are placed first, and long ones before short ones. A prompt with the same prefix as an earlier one
    goes to the same endpoint, until that endpoint has its fair share of requests, or of tokens to compute.
    """

    def size(each: Prompts) -> int:
        return each.num_blocks if by_tokens else 1

    groups: dict[Prompts, list[int]] = {}
    for ticket, each in prompts.items():
        groups.setdefault(each, []).append(ticket)
    beginnings: Counter[int | None] = Counter(
        each.beginning for each in prompts.values() if each.beginning is not None
    )
    shared = [
        each for each, tickets in groups.items()
        if len(tickets) > 1 or beginnings[each.beginning] > 1
    ]  # fmt: skip
    if not endpoints or not shared:
        return {}
    shared.sort(key=lambda each: (len(groups[each]) == 1, -each.num_blocks))
    fair = sum(len(groups[each]) * size(each) for each in shared) / len(endpoints)
    num_placed = dict.fromkeys(endpoints, 0)
    homes: dict[int | None, Endpoint] = {}
    wanted: dict[int, Endpoint] = {}
    for each in shared:
        home = homes.get(each.beginning)
        for position, ticket in enumerate(groups[each]):
            is_full = position > 0 and most > 0 and position % most == 0
            if home is None or is_full or (position == 0 and num_placed[home] >= fair):
                home = min(endpoints, key=num_placed.__getitem__)
            wanted[ticket] = home
            num_placed[home] += size(each)
        if each.beginning is not None:
            homes.setdefault(each.beginning, wanted[groups[each][0]])
    return wanted
