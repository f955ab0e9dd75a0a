"""`Metrics`: the registry behind `/metrics`, with the metrics of each engine.

An engine's metrics are plain numbers, which the engine's client updates on the event loop. They become Prometheus
families only when scraped, so that a step or a request costs only a few additions.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest

from weft.core.config.engine import EngineConfig
from weft.core.errors import ConfigError
from weft.core.observe.metric_series import (
    ENGINE_LABELS,
    MAX_LABEL_CHARS,
    OLDER_NAMES,
    PREFIX,
    SERIES,
    Kind,
    Series,
)
from weft.core.observe.request_trace import RequestTraces
from weft.core.observe.stats import SequenceTimes, StepStats, TierStats, TransferStats
from weft.core.observe.tally import Tally, token_bounds
from weft.core.observe.tracing import Tracer
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import CacheConfig, Medium
from weft.core.values.types import FinishReason

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Values of one series, one for each combination of the series' own labels.
Values = Iterable[tuple[tuple[str, ...], float]]

# Returns the maximum number of adapters, the adapters of running requests, and those of waiting requests.
LoraUsage = Callable[[], tuple[int, list[str], list[str]]]

_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # by sleep level


class EngineMetrics:
    """Metrics of one engine; made by `Metrics.add_engine`. `clock` is monotonic, in seconds.

    An engine behind another server reports neither load nor steps, so its series about these have no samples. With a
    `tracer`, requests have spans too, in `traces`.
    """

    def __init__(
        self,
        config: EngineConfig,
        engine: str,
        clock: Callable[[], float],
        lora_usage: LoraUsage = lambda: (0, [], []),
        tracer: Tracer | None = None,
    ) -> None:
        model = config.model_config
        self.labels = (model.served_model_name[:MAX_LABEL_CHARS], engine)
        self.clock = clock
        name = model.served_model_name
        self.traces = None if tracer is None else RequestTraces(tracer, name, clock)
        bounds = token_bounds(model.max_model_len)
        self._tallies = {
            series.name: Tally(bounds if series.buckets is None else series.buckets)
            for series in SERIES
            if series.kind is Kind.HISTOGRAM
        }
        tally = self._tallies.__getitem__
        self.iteration_tokens = tally("iteration_tokens_total")
        self.prompt_tokens = tally("request_prompt_tokens")
        self.generation_tokens = tally("request_generation_tokens")
        self.max_generation_tokens = tally("request_max_num_generation_tokens")
        self.params_n = tally("request_params_n")
        self.params_max_tokens = tally("request_params_max_tokens")
        self.computed_tokens = tally("request_prefill_kv_computed_tokens")
        self.first_token = tally("time_to_first_token_seconds")
        self.inter_token = tally("inter_token_latency_seconds")
        self.time_per_token = tally("request_time_per_output_token_seconds")
        self.e2e = tally("e2e_request_latency_seconds")
        self.queue = tally("request_queue_time_seconds")
        self.inference = tally("request_inference_time_seconds")
        self.prefill = tally("request_prefill_time_seconds")
        self.decode = tally("request_decode_time_seconds")
        self.transfer_times = tally("nixl_xfer_time_seconds")
        self.transfer_bytes = tally("nixl_bytes_transferred")
        self.transfer_blocks = tally("nixl_num_descriptors")
        self.num_ended = dict.fromkeys(FinishReason, 0)
        self.num_resumed = 0
        self.stats = StepStats()
        self.load: EngineLoad | None = None
        self.sleep_level = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._offloading = config.kv_offloading_config
        self._has_transfers = config.kv_transfer_config is not None
        self._block_size = config.cache_config.block_size
        self._cache = _cache_values(config.cache_config)
        speculation = config.scheduler_config.speculation
        self._max_drafted = 0 if speculation is None else speculation.num_speculative_tokens
        self._lora_usage = lora_usage

    def take_step(self, stats: StepStats, load: EngineLoad) -> None:
        """Adds the engine's statistics and load after a step."""
        self.stats = stats
        self.load = load
        if stats.num_computed_tokens:
            self.iteration_tokens.add(stats.num_computed_tokens)
        for interval_s, count in stats.intervals:
            self.inter_token.add(interval_s, count)
        for times in stats.ended:
            self._take_times(times)
        if stats.transfer is not None:
            for seconds, num_bytes, num_blocks in stats.transfer.received:
                self.transfer_times.add(seconds)
                self.transfer_bytes.add(num_bytes)
                self.transfer_blocks.add(num_blocks)

    def _take_times(self, times: SequenceTimes) -> None:
        if times.engine_id is not None and self.traces is not None:
            self.traces.take(times)
        if times.queue_s is not None:
            self.queue.add(times.queue_s)
            self.computed_tokens.add(times.num_prompt_tokens - times.num_cached_tokens)
        if times.prefill_s is not None:
            self.prefill.add(times.prefill_s)
        if times.decode_s is not None:
            self.decode.add(times.decode_s)
            if times.num_output_tokens > 1:
                self.time_per_token.add(times.decode_s / (times.num_output_tokens - 1))
        if times.inference_s is not None:
            self.inference.add(times.inference_s)

    def count_tokens(self, num_prompt_tokens: int, num_generated_tokens: int) -> None:
        """Counts tokens for an engine that does not report its own counts."""
        self._num_prompt_tokens += num_prompt_tokens
        self._num_generated_tokens += num_generated_tokens

    def tally(self, series: Series) -> Tally:
        """Returns the tally of a histogram series."""
        return self._tallies[series.name]

    def values(self) -> dict[str, Values]:
        """Returns the values of every counter and gauge, by name of the series."""
        num_prompt = self._num_prompt_tokens + self.stats.total_prompt_tokens
        num_generated = self._num_generated_tokens + self.stats.total_generated_tokens
        counters: dict[str, Values] = {
            "prompt_tokens": [((), num_prompt)],
            "generation_tokens": [((), num_generated)],
            "request_success": [((reason.value,), n) for reason, n in self.num_ended.items()],
            "resumed_requests": [((), self.num_resumed)],
        }
        return counters | (self._own_values(self.load) if self.load is not None else {})

    def _own_values(self, load: EngineLoad) -> dict[str, Values]:
        """Returns the values of the series that only an engine of this process reports."""
        stats = self.stats
        own: dict[str, Values] = {
            "num_requests_running": [((), load.num_running)],
            "num_requests_waiting": [((), load.num_waiting)],
            "kv_cache_usage_perc": [((), load.token_usage)],
            "engine_sleep_state": [
                ((state,), float(level == self.sleep_level))
                for level, state in enumerate(_SLEEP_STATES)
            ],
            "cache_config_info": [(self._cache, 1.0)],
            "lora_requests_info": [(self._lora_labels(), time.time())],
            "prefix_cache_queries": [((), stats.total_queried_tokens)],
            "prefix_cache_hits": [((), stats.total_hit_tokens)],
            "mm_cache_queries": [((), stats.total_item_lookups)],
            "mm_cache_hits": [((), stats.total_item_hits)],
            "num_preemptions": [((), stats.total_preemptions)],
            "corrupted_requests": [((), stats.total_corrupted)],
            "expert_load_tokens": [
                ((expert,), tokens)
                for expert, tokens in zip(("mean", "max"), stats.total_expert_load, strict=True)
            ],
        }
        own |= self._transfer_values(stats.transfer or TransferStats())
        return own | self._draft_values(stats) | self._tier_values(stats.tier or TierStats())

    def _transfer_values(self, transfer: TransferStats) -> dict[str, Values]:
        """Returns the values of the series about KV transfer; empty without a KV transfer configuration."""
        if not self._has_transfers:
            return {}
        return {
            "nixl_num_failed_transfers": [((), transfer.num_failed_receives)],
            "nixl_num_failed_notifications": [((), transfer.num_failed_releases)],
            "nixl_num_kv_expired_reqs": [((), transfer.num_expired)],
            "kv_transfer_sent_bytes": [((), transfer.num_sent_bytes)],
            "kv_transfer_sent_blocks": [((), transfer.num_sent_blocks)],
            "kv_transfer_sent_seconds": [((), transfer.sent_s)],
            "kv_transfer_failed_sends": [((), transfer.num_failed_sends)],
        }

    def _tier_values(self, tier: TierStats) -> dict[str, Values]:
        """Returns the values of the series about the second tier; empty without a second tier."""
        if self._offloading is None:
            return {}
        pool, medium = Medium.POOL, self._offloading.medium
        return {
            "external_prefix_cache_queries": [((), tier.num_queried_blocks * self._block_size)],
            "external_prefix_cache_hits": [((), tier.num_loaded_blocks * self._block_size)],
            "kv_offload_total_bytes": [
                ((f"{pool}_to_{medium}",), tier.num_stored_bytes),
                ((f"{medium}_to_{pool}",), tier.num_loaded_bytes),
            ],
            "kv_offload_usage_bytes": [((), tier.num_bytes)],
            "kv_offload_lost_blocks": [
                (("evicted",), tier.num_evicted),
                (("dropped",), tier.num_dropped),
                (("damaged",), tier.num_damaged),
            ],
        }

    def _draft_values(self, stats: StepStats) -> dict[str, Values]:
        """Returns the values of the series about speculative decoding; empty without speculative decoding."""
        if not self._max_drafted:
            return {}
        missing = [0] * (self._max_drafted - len(stats.total_accepted_at))
        accepted_at = enumerate([*stats.total_accepted_at, *missing])
        return {
            "spec_decode_num_drafts": [((), stats.total_drafts)],
            "spec_decode_num_draft_tokens": [((), stats.total_draft_tokens)],
            "spec_decode_num_accepted_tokens": [((), sum(stats.total_accepted_at))],
            "spec_decode_num_accepted_tokens_per_pos": [((str(i),), n) for i, n in accepted_at],
        }

    def _lora_labels(self) -> tuple[str, ...]:
        """Returns the label values of the adapter series, in the order of `LORA_LABELS`."""
        max_loras, running, waiting = self._lora_usage()
        return (str(max_loras), ",".join(running), ",".join(waiting))


class Metrics:
    """Metrics of a server, one object per server. `registry` may have other series too.

    `hidden_for`, such as "0.11", also shows the older names that this version of vLLM still had. With a `tracer` the
    engines' requests are traced.
    """

    def __init__(
        self,
        *,
        hidden_for: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer | None = None,
    ) -> None:
        self.tracer = tracer
        if tracer is not None:
            tracer.before_close(self._end_all_traces)
        self._clock = clock
        self._older_names = _older_names(hidden_for)
        self._engines: dict[tuple[str, int], EngineMetrics] = {}  # by model and rank
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def add_engine(
        self,
        config: EngineConfig,
        lora_usage: LoraUsage = lambda: (0, [], []),
        *,
        is_remote: bool = False,
    ) -> EngineMetrics:
        """Returns the metrics of a new engine, all zero; they replace the metrics of a former engine with the same
        rank.

        The `engine` label is the rank; without a rank, the number of engines of this model added before. With
        `is_remote` the remote server traces the requests, and this process does not.
        """
        model, rank = config.model_config.served_model_name, config.data_parallel_rank
        number = sum(name == model for name, _ in self._engines) if rank is None else rank
        self._end_traces((model, number))
        tracer = None if is_remote else self.tracer
        made = EngineMetrics(config, str(number), self._clock, lora_usage, tracer)
        self._engines[model, number] = made
        return made

    def remove_engine(self, rank: int) -> None:
        """Removes the metrics of an engine that has left, of each model."""
        for place in [place for place in self._engines if place[1] == rank]:
            self._remove(place)

    def remove_model(self, name: str) -> None:
        """Removes the metrics of all engines of a model."""
        for place in [place for place in self._engines if place[0] == name]:
            self._remove(place)

    def _remove(self, place: tuple[str, int]) -> None:
        self._end_traces(place)
        del self._engines[place]

    def _end_all_traces(self) -> None:
        for place in self._engines:
            self._end_traces(place)

    def _end_traces(self, place: tuple[str, int]) -> None:
        engine = self._engines.get(place)
        if engine is not None and engine.traces is not None:
            engine.traces.flush()

    def collect(self) -> Iterator[Metric]:
        """Yields every metric family of every engine, for the registry; yields nothing without an engine."""
        if not self._engines:
            return
        values = [engine.values() for engine in self._engines.values()]
        for series in SERIES:
            for name in (series.name, *self._older_names.get(series.name, ())):
                yield self._family(series, PREFIX + name, values)

    def describe(self) -> Iterator[Metric]:
        """Yields the same as `collect`: nothing before the first engine is added; afterwards the call is cheap."""
        return self.collect()

    def _family(self, series: Series, name: str, values: list[dict[str, Values]]) -> Metric:
        labels = (*ENGINE_LABELS, *series.labels)
        if series.kind is Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(name, series.text, labels=labels)
            for engine in self._engines.values():
                tally = engine.tally(series)
                histogram.add_metric(engine.labels, tally.buckets(), tally.sum)
            return histogram
        make = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
        family = make(name, series.text, labels=labels)
        for engine, of_engine in zip(self._engines.values(), values, strict=True):
            for own_labels, value in of_engine.get(series.name, ()):
                family.add_metric((*engine.labels, *own_labels), value)
        return family


def expose(registry: CollectorRegistry) -> bytes:
    """Returns all series of a registry as a body of type `CONTENT_TYPE`, whatever format the scraper accepts.

    The client library's choice of format is not used: its OpenMetrics output turns `vllm:` into `vllm_` for
    Prometheus before 3.0 and for every scraper that does not request unescaped names.
    """
    return generate_latest(registry)


def _cache_values(cache: CacheConfig) -> tuple[str, ...]:
    """Returns the label values of the cache configuration, in the order of `CACHE_CONFIG_LABELS`."""
    return (
        str(cache.block_size),
        str(cache.num_blocks),
        str(cache.block_bytes),
        cache.kv_cache_dtype,
        str(cache.enable_prefix_caching),
        str(cache.states and cache.states.mamba_block_size),
    )


def _older_names(version: str | None) -> dict[str, list[str]]:
    """Returns the older names that a version of vLLM still had, by current name."""
    if version is None:
        return {}
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})(?:\.\d{1,4})?", version)
    requested = (int(match[1]), int(match[2])) if match else None
    found: dict[str, list[str]] = {}
    for older in OLDER_NAMES:
        if requested is not None and requested <= older.last_version:
            found.setdefault(older.current, []).append(older.name)
    if not found:
        last = max(older.last_version for older in OLDER_NAMES)
        raise ConfigError(
            f'--show-hidden-metrics-for-version "{version}" shows no older name; '
            f"give a version of vLLM up to {last[0]}.{last[1]}, such as 0.10"
        )
    return found
