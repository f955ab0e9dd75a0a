"""`precise-prefix-cache-producer`: cached prefixes of endpoints by the events of their engines; needs token ids."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, Final, Literal

import msgspec

from weft.core.config.quantity import check_positive, parse_duration_s
from weft.epp.config.parameters import AtLeastOne, Kind, Parameters, Part, Share
from weft.epp.decision.cycle import Cycle, PrefixMatch, Schedule
from weft.epp.decision.plugin import TOKENS, Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint
from weft.epp.prefix.holders import by_endpoint
from weft.epp.prefix.keys import iter_keys, make_keys
from weft.epp.prefix.kv_subscriptions import KvEventsConfig
from weft.epp.prefix.leaving import Leaving
from weft.epp.prefix.precise import PreciseIndex

_log = logging.getLogger(__name__)

TYPE = "precise-prefix-cache-producer"
# Maximum number of leading tokens of a prompt that are compared: more would delay other requests.
MAX_KEYED_TOKENS: Final = 2**18
_KEYS_AT_ONCE: Final = 2048


class TokenProcessorConfig(Part, frozen=True, kw_only=True):
    """How tokens are hashed to block keys. Keys never leave the picker, so the fast hash is the default."""

    block_size_tokens: AtLeastOne = 16
    block_size: AtLeastOne | None = None  # older name of blockSizeTokens
    hash_seed: str = ""
    hash_algorithm: Literal["cbor-fnv", "xxh64"] = "xxh64"


class InMemoryConfig(Part, frozen=True, kw_only=True):
    """The maximum number of keys per cache tier."""

    size: AtLeastOne = 100_000_000
    pod_cache_size: AtLeastOne | None = None


class BlockIndexConfig(Part, frozen=True, kw_only=True):
    """The storage of the block index."""

    in_memory_config: InMemoryConfig = InMemoryConfig()
    redis_config: dict[str, object] | None = None
    cost_aware_memory_config: dict[str, object] | None = None
    enable_metrics: bool = False
    metrics_logging_interval: int | str | None = None  # in nanoseconds, or as a duration

    def __post_init__(self) -> None:
        if self.redis_config is not None or self.cost_aware_memory_config is not None:
            raise ValueError(
                "only inMemoryConfig is supported: keys are stored in the picker's memory"
            )


class TierConfig(Part, frozen=True, kw_only=True):
    """Weight of a block in a cache tier."""

    name: str
    weight: Share


class IndexerConfig(Part, frozen=True, kw_only=True):
    """Settings of the block index."""

    tokenizers_pool_config: dict[str, Any] | None = None
    kv_block_index_config: BlockIndexConfig = BlockIndexConfig()
    kv_cache_backend_configs: tuple[TierConfig, ...] = (
        TierConfig(name="gpu", weight=1.0),
        TierConfig(name="cpu", weight=0.8),
    )


class PreciseParameters(Parameters, frozen=True, kw_only=True):
    """Settings of block keys, index and events, and of speculative blocks, which count until events arrive."""

    needs = (TOKENS,)
    token_processor_config: TokenProcessorConfig = TokenProcessorConfig()
    indexer_config: IndexerConfig = IndexerConfig()
    kv_events_config: KvEventsConfig = KvEventsConfig()
    speculative_indexing: bool = False
    speculative_ttl: str = msgspec.field(default="2s", name="speculativeTTL")

    def __post_init__(self) -> None:
        check_positive(speculativeTTL=self.speculative_ttl)

    def without_effect(self) -> Iterable[tuple[str, str]]:
        """Yields the given settings of the reference picker that this index does not need."""
        indexer = self.indexer_config
        index = indexer.kv_block_index_config
        if index.in_memory_config.pod_cache_size is not None:
            yield (
                "indexerConfig.kvBlockIndexConfig.inMemoryConfig.podCacheSize",
                "a key can be held by every endpoint of the pool",
            )
        if index.metrics_logging_interval is not None:
            yield (
                "indexerConfig.kvBlockIndexConfig.metricsLoggingInterval",
                "the series are on the metrics page, and not logged",
            )
        if indexer.tokenizers_pool_config is not None:
            yield "indexerConfig.tokenizersPoolConfig", "token-producer makes the tokens"


@plugin(TYPE, Kind.PRODUCER, PreciseParameters)
class PrecisePrefixProducer:
    """Computes the keys of the prompt's full blocks, and finds the endpoints that have an unbroken run of leading
    blocks.
    """

    def __init__(self, parameters: PreciseParameters, around: Surroundings) -> None:
        self.events = parameters.kv_events_config
        self._name = around.name
        self._pool = around.pool
        processor, indexer = parameters.token_processor_config, parameters.indexer_config
        self.index = PreciseIndex(
            make_keys(processor.hash_algorithm, processor.hash_seed),
            block_size=processor.block_size or processor.block_size_tokens,
            weights={tier.name.lower(): tier.weight for tier in indexer.kv_cache_backend_configs},
            max_keys=indexer.kv_block_index_config.in_memory_config.size,
        )
        self._ttl_s = parse_duration_s(parameters.speculative_ttl)
        self._is_speculative = parameters.speculative_indexing
        self._guesses: deque[tuple[float, Endpoint, Sequence[int]]] = deque()
        self._series = (
            around.metrics.make_index_series()
            if indexer.kv_block_index_config.enable_metrics
            else None
        )
        self._reported = (0, 0, 0, 0)  # counts of the index that the series already include
        self._size = around.metrics.prefix_size.labels(self._name, TYPE)
        around.metrics.before_text(self._publish)
        self._hit_ratio = around.metrics.prefix_hit_ratio.labels(self._name, TYPE)
        around.pool.on_left(self._forget)
        leaving = Leaving(around.pool, self.index.clear_some)
        self.aclose = leaving.aclose

    async def prepare(self, cycle: Cycle) -> None:
        """Computes the block keys; those of a long prompt in parts, so that other requests get a turn."""
        if not cycle.has_real_tokens:
            return
        keys, salt = self.index.keys, cycle.request.cache_salt
        root = keys.root(self._model(cycle))
        room = 4 * MAX_KEYED_TOKENS
        chains = []
        for prompt in cycle.prompts:
            chain: list[int] = []
            made = iter_keys(
                keys, prompt[:room], block_size=self.index.block_size, parent=root,
                first_extra=(salt,) if salt else None,
            )  # fmt: skip
            while part := list(islice(made, _KEYS_AT_ONCE)):
                chain += part
                if len(part) == _KEYS_AT_ONCE:
                    await asyncio.sleep(0)
            chains.append(chain)
            room = max(0, room - len(prompt))
        cycle.chains[self._name] = chains

    def produce(self, cycle: Cycle) -> None:
        """Stores the cached prefix of each endpoint in the cycle; nothing without token ids."""
        self._drop_old_guesses(cycle.now)
        chains = cycle.chains.get(self._name)
        if chains is None:
            return
        started = perf_counter()
        cycle.prefixes[self._name] = match = self._match(cycle, chains)
        if self._series is not None:
            best = max(match.held.values(), default=0)
            self._series.latency.observe(perf_counter() - started)
            self._series.lookups.inc()
            self._series.hits.inc(best)
            self._series.best_runs.inc(best)

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Records the cache hit and, if configured, adds the prompt's blocks as speculative ones until events confirm
        them.
        """
        match = cycle.prefixes.get(self._name)
        if match is None or not match.num_blocks:
            return
        self._hit_ratio.observe(match.held.get(schedule.target, 0) / match.num_blocks)
        if self._is_speculative:
            for picks in schedule.picks.values():
                for chain in cycle.chains[self._name]:
                    self.index.add_speculative(picks[0], chain)
                    self._guesses.append((cycle.now + self._ttl_s, picks[0], chain))

    def _match(self, cycle: Cycle, chains: list[list[int]]) -> PrefixMatch:
        held: dict[int, int] = {}
        weight: dict[int, float] = {}
        for chain in chains:
            for holders, count, total in self.index.match(chain):
                held[holders] = held.get(holders, 0) + count
                weight[holders] = weight.get(holders, 0.0) + total
        return PrefixMatch(
            sum(map(len, chains)),
            self.index.block_size,
            by_endpoint(held, cycle.candidates),
            by_endpoint(weight, cycle.candidates),
        )

    def _publish(self) -> None:
        self._size.set(len(self.index))
        if self._series is None:
            return
        index, series, reported = self.index, self._series, self._reported
        self._reported = (
            index.num_stored,
            index.num_dropped,
            index.num_retained,
            index.num_removed,
        )
        counters = (series.admissions, series.evictions, series.suppressed, series.forwarded)
        for counter, now, before in zip(counters, self._reported, reported, strict=True):
            counter.inc(now - before)

    def _model(self, cycle: Cycle) -> str:
        """Returns the model name that the block keys contain: the name of an adapter or of the base model, as in the
        engines' events.

        A gRPC request names no model, and clients may use an alias that events lack: if the pool has a single base
        model, its name is used. Blocks of an adapter are never shared with the base model.
        """
        model, bases = cycle.model, set(self.index.base_models.values())
        if (
            cycle.request.has_adapter
            or model in bases
            or model in self.index.adapters
            or len(bases) != 1
        ):
            return model
        return bases.pop()

    def _drop_old_guesses(self, now: float) -> None:
        """Drops expired speculative blocks, a limited number per call."""
        num_dropped = 0
        while self._guesses and self._guesses[0][0] <= now and num_dropped < _KEYS_AT_ONCE:
            _, endpoint, chain = self._guesses.popleft()
            self.index.remove_speculative(endpoint, chain)
            num_dropped += len(chain)

    def _forget(self, endpoint: Endpoint) -> None:
        self.index.base_models.pop(endpoint, None)
