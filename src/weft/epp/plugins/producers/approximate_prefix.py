"""`approx-prefix-cache-producer`: estimates the cached prefixes of endpoints from the requests sent to them."""

from collections import Counter
from typing import Annotated

import msgspec

from weft.epp.config.parameters import AtLeastOne, Count, Kind, Parameters
from weft.epp.decision.cycle import Cycle, PrefixMatch, Schedule
from weft.epp.decision.plugin import APPROXIMATE, TOKENS, Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint
from weft.epp.prefix.approximate import ApproximateIndex
from weft.epp.prefix.holders import by_endpoint
from weft.epp.prefix.keys import chain_hashes
from weft.epp.prefix.leaving import Leaving
from weft.epp.request.values import MAX_COMPARED_TOKENS

MIN_BLOCK_SIZE = 64  # smaller blocks cost memory and time with little gain
PREFILL_PROFILE = "prefill"


class ApproximateParameters(Parameters, frozen=True, kw_only=True):
    """Limits of the index. With `auto_tune`, values that servers report replace the configured ones."""

    needs = (TOKENS,)
    auto_tune: bool = True
    block_size_tokens: AtLeastOne = 16
    block_size: Count = 0  # deprecated; in characters
    max_prefix_tokens_to_match: Annotated[int, msgspec.Meta(ge=0, le=MAX_COMPARED_TOKENS)] = 131072
    max_prefix_blocks_to_match: Count = 2048  # used only if maxPrefixTokensToMatch is 0
    lru_capacity_per_server: AtLeastOne = 31250


@plugin(APPROXIMATE, Kind.PRODUCER, ApproximateParameters)
class ApproximatePrefixProducer:
    """Hashes the prompt in blocks, finds the endpoints that got these blocks before, and records the endpoint that gets
    them now.
    """

    def __init__(self, parameters: ApproximateParameters, surroundings: Surroundings) -> None:
        self._parameters = parameters
        self._name = surroundings.name
        self._index = ApproximateIndex()
        self._size = surroundings.metrics.prefix_size.labels(self._name, APPROXIMATE)
        self._hit_ratio = surroundings.metrics.prefix_hit_ratio.labels(self._name, APPROXIMATE)
        self._hit_bytes = surroundings.metrics.prefix_hit_bytes.labels(self._name, APPROXIMATE)
        leaving = Leaving(surroundings.pool, self._index.remove_some)
        self.aclose = leaving.aclose
        surroundings.metrics.before_text(lambda: self._size.set(len(self._index)))

    def produce(self, cycle: Cycle) -> None:
        """Stores the cached prefix of each endpoint in the cycle."""
        block_size = self._block_size(cycle.candidates[0])
        limit = self._parameters.max_prefix_tokens_to_match // block_size
        if not self._parameters.max_prefix_tokens_to_match:
            limit = self._parameters.max_prefix_blocks_to_match
        chains = hash_prompts(cycle, block_size, limit)
        cycle.chains[self._name] = chains
        cycle.prefixes[self._name] = self._match(cycle, chains, block_size)

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Records the blocks of a scheduled request at the destination and at the prefill endpoint."""
        match = cycle.prefixes[self._name]
        target = schedule.target
        targets = {target, *schedule.picks.get(PREFILL_PROFILE, ())[:1]}
        for endpoint in targets:
            for chain in cycle.chains[self._name]:
                self._index.add(endpoint, chain, capacity=self._capacity(endpoint))
        if match.num_blocks:
            held = match.held.get(target, 0)
            self._hit_ratio.observe(held / match.num_blocks)
            self._hit_bytes.observe(4 * match.num_tokens(target, cycle.num_prompt_tokens))

    def _match(self, cycle: Cycle, chains: list[list[int]], block_size: int) -> PrefixMatch:
        counts: Counter[int] = Counter()
        for chain in chains:
            counts.update(self._index.match(chain))
        held = by_endpoint(counts, cycle.candidates)
        num_blocks = sum(map(len, chains))
        return PrefixMatch(num_blocks, block_size, held, held)

    def _block_size(self, first: Endpoint) -> int:
        size = self._parameters.block_size_tokens
        if self._parameters.block_size:
            size = max(1, self._parameters.block_size // 4)
        if self._parameters.auto_tune and first.load.block_size:
            size = first.load.block_size
        return max(size, MIN_BLOCK_SIZE)

    def _capacity(self, endpoint: Endpoint) -> int:
        if self._parameters.auto_tune and endpoint.load.num_blocks:
            return endpoint.load.num_blocks
        return self._parameters.lru_capacity_per_server


def hash_prompts(cycle: Cycle, block_size: int, max_blocks: int) -> list[list[int]]:
    """Returns the hashes of each prompt's first blocks."""
    return [
        chain_hashes(
            prompt,
            block_size=block_size,
            max_blocks=max_blocks,
            model=cycle.model,
            cache_salt=cycle.request.cache_salt,
        )
        for prompt in cycle.prompts
    ]
