"""`precise-prefix-cache-producer`: what endpoints hold, as their engines tell; needs real tokens."""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Annotated, Literal

import msgspec

from weft.epp.config.quantity import parse_duration_s
from weft.epp.decision.cycle import Cycle, PrefixMatch, Schedule
from weft.epp.decision.plugin import Kind, Parameters, Reference, Surroundings
from weft.epp.pool.endpoint import Endpoint
from weft.epp.prefix.keys import chain_keys, make_keys
from weft.epp.prefix.precise import PreciseIndex
from weft.epp.producers.tokens import TYPE as TOKENS
from weft.epp.scorers.prefix import PrefixScorer, PrefixScorerParameters

_log = logging.getLogger(__name__)

TYPE = "precise-prefix-cache-producer"

_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


def parse_selector(text: str) -> dict[str, str]:
    """ "key=value,..." as a mapping; raises `ValueError`."""
    labels = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key or key.endswith("!"):
            raise ValueError(f"podLabelSelector: {part!r} is not key=value")
        labels[key.strip()] = value.removeprefix("=").strip()
    return labels


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the parameters' parts."""


class TokenProcessorConfig(_Part, frozen=True, kw_only=True):
    """How tokens become keys. Keys never leave the picker, so the cheap hash is the default."""

    block_size_tokens: _AtLeastOne = 16
    hash_seed: str = ""
    hash_algorithm: Literal["cbor-fnv", "xxh64"] = "xxh64"


class InMemoryConfig(_Part, frozen=True, kw_only=True):
    """The largest number of keys per tier."""

    size: _AtLeastOne = 100_000_000


class BlockIndexConfig(_Part, frozen=True, kw_only=True):
    """Where keys are kept."""

    in_memory_config: InMemoryConfig = InMemoryConfig()
    redis_config: dict[str, object] | None = None
    cost_aware_memory_config: dict[str, object] | None = None
    enable_metrics: bool = False

    def __post_init__(self) -> None:
        if self.redis_config is not None or self.cost_aware_memory_config is not None:
            raise ValueError("only inMemoryConfig is offered: keys are kept in the picker's memory")


class TierConfig(_Part, frozen=True, kw_only=True):
    """What a block in this tier is worth."""

    name: str
    weight: Annotated[float, msgspec.Meta(ge=0, le=1)]


class IndexerConfig(_Part, frozen=True, kw_only=True):
    """The index."""

    kv_block_index_config: BlockIndexConfig = BlockIndexConfig()
    kv_cache_backend_configs: tuple[TierConfig, ...] = (
        TierConfig(name="gpu", weight=1.0),
        TierConfig(name="cpu", weight=0.8),
    )


class PodDiscoveryConfig(_Part, frozen=True, kw_only=True):
    """Where each endpoint publishes, and which endpoints do."""

    socket_port: _Port = 5557
    replay_socket_port: _Port | None = None
    pod_label_selector: str = ""

    def __post_init__(self) -> None:
        parse_selector(self.pod_label_selector)


class KvEventsConfig(_Part, frozen=True, kw_only=True):
    """Where events come from. Endpoints that speak VllmEngine send theirs over gRPC regardless."""

    zmq_endpoint: str | None = None  # bound here, for engines that connect to the picker
    topic_filter: str = "kv@"
    engine_type: Literal["vllm", "sglang"] = "vllm"  # what the places in an array mean
    concurrency: _AtLeastOne = 4  # how many endpoints' replays are read at once
    discover_pods: bool = True
    pod_discovery_config: PodDiscoveryConfig = PodDiscoveryConfig()


class PreciseParameters(Parameters, frozen=True, kw_only=True):
    """Keys, index, events, and guesses until events arrive."""

    token_processor_config: TokenProcessorConfig = TokenProcessorConfig()
    indexer_config: IndexerConfig = IndexerConfig()
    kv_events_config: KvEventsConfig = KvEventsConfig()
    speculative_indexing: bool = False
    speculative_ttl: str = msgspec.field(default="2s", name="speculativeTTL")

    def __post_init__(self) -> None:
        if parse_duration_s(self.speculative_ttl) <= 0:
            raise ValueError(f"speculativeTTL must be more than 0, got {self.speculative_ttl!r}")

    def references(self) -> Iterable[Reference]:
        """Tokens come first."""
        yield Reference("", TOKENS, Kind.PRODUCER, TOKENS)


class PrecisePrefixProducer:
    """Keys the prompt's full blocks and looks up who holds an unbroken run of them."""

    def __init__(self, parameters: PreciseParameters, around: Surroundings) -> None:
        self.events = parameters.kv_events_config
        self._name = around.name
        self._pool = around.pool
        processor, indexer = parameters.token_processor_config, parameters.indexer_config
        self.index = PreciseIndex(
            make_keys(processor.hash_algorithm, processor.hash_seed),
            block_size=processor.block_size_tokens,
            weights={tier.name.lower(): tier.weight for tier in indexer.kv_cache_backend_configs},
            max_keys=indexer.kv_block_index_config.in_memory_config.size,
        )
        self.base_models: dict[Endpoint, str] = {}  # as events or servers told
        self._ttl_s = parse_duration_s(parameters.speculative_ttl)
        self._is_speculative = parameters.speculative_indexing
        self._guesses: deque[tuple[float, Endpoint, Sequence[int]]] = deque()
        self._series = (
            around.metrics.make_index_series()
            if indexer.kv_block_index_config.enable_metrics
            else None
        )
        self._told = (0, 0, 0, 0)  # what the series have of the index's counts
        self._size = around.metrics.prefix_size.labels(self._name, TYPE)
        around.metrics.before_text(self._publish)
        self._hit_ratio = around.metrics.prefix_hit_ratio.labels(self._name, TYPE)
        around.pool.on_left(self._forget)

    def produce(self, cycle: Cycle) -> None:
        """Fill in the match; without real tokens there is none."""
        self._drop_old_guesses(cycle.now)
        if not cycle.has_real_tokens:
            return
        root = self.index.keys.root(self._model(cycle))
        salt = cycle.request.cache_salt
        chains = [
            chain_keys(
                self.index.keys, prompt, block_size=self.index.block_size, parent=root,
                first_extra=(salt,) if salt else None,
            )
            for prompt in cycle.prompts
        ]  # fmt: skip
        cycle.chains[self._name] = chains
        started = perf_counter()
        cycle.prefixes[self._name] = match = self._match(cycle, chains)
        if self._series is not None:
            best = max(match.held.values(), default=0)
            self._series.latency.observe(perf_counter() - started)
            self._series.lookups.inc()
            self._series.hits.inc(best)
            self._series.best_runs.inc(best)

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Measure the hit, and hold the blocks there until events confirm them, if wanted."""
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
        held: dict[Endpoint, int] = {}
        weight: dict[Endpoint, float] = {}
        for chain in chains:
            for holders, (count, total) in self.index.match(chain).items():
                for endpoint in cycle.candidates:
                    if holders >> endpoint.slot & 1:
                        held[endpoint] = held.get(endpoint, 0) + count
                        weight[endpoint] = weight.get(endpoint, 0.0) + total
        return PrefixMatch(sum(map(len, chains)), self.index.block_size, held, weight)

    def _publish(self) -> None:
        self._size.set(len(self.index))
        if self._series is None:
            return
        index, series, told = self.index, self._series, self._told
        self._told = (index.num_stored, index.num_dropped, index.num_kept, index.num_removed)
        counters = (series.admissions, series.evictions, series.suppressed, series.forwarded)
        for counter, now, before in zip(counters, self._told, told, strict=True):
            counter.inc(now - before)

    def _model(self, cycle: Cycle) -> str:
        """The name in the keys: an adapter's or a base model's, as events name it.

        A gRPC request names no model, and clients may use an alias that no event knows: with one
        base model in the pool, it is meant. An adapter's blocks are never the base model's.
        """
        model, bases = cycle.model, set(self.base_models.values())
        if (
            cycle.request.has_adapter
            or model in bases
            or model in self.index.adapters
            or len(bases) != 1
        ):
            return model
        return bases.pop()

    def _drop_old_guesses(self, now: float) -> None:
        while self._guesses and self._guesses[0][0] <= now:
            _, endpoint, chain = self._guesses.popleft()
            self.index.remove_speculative(endpoint, chain)

    def _forget(self, endpoint: Endpoint) -> None:
        self.index.clear(endpoint)
        self.base_models.pop(endpoint, None)


class PrecisePrefixScorer:
    """The deprecated plugin that is producer and scorer in one."""

    def __init__(self, parameters: PreciseParameters, around: Surroundings) -> None:
        self.inner = PrecisePrefixProducer(parameters, around)
        self.producer = around.name
        own = PrefixScorerParameters(prefix_match_info_producer_name=around.name)
        self._scorer = PrefixScorer(own, around)
        self.produce = self.inner.produce
        self.picked = self.inner.picked
        self.score = self._scorer.score
