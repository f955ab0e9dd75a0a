"""Prometheus series of the picker, with the names that llm-d's dashboards use."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest

from weft.core.observe.metric_series import MAX_LABEL_CHARS
from weft.epp.metrics.buckets import (
    HIT_BYTES,
    INPUT_TOKENS,
    ITL_SECONDS,
    NTPOT_SECONDS,
    OUTPUT_TOKENS,
    OWN_SECONDS,
    RATIOS,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    SECONDS,
    SHORT_SECONDS,
    STREAM_SECONDS,
    TPOT_SECONDS,
)
from weft.epp.metrics.histogram import Histogram
from weft.epp.metrics.older import WithOlderNames
from weft.epp.metrics.plugin_series import IndexSeries, LatencySeries

PREFIX: Final = "llm_d_epp_"
# Maximum number of model names, and of fairness ids, per process; further ones become "other".
MAX_LABEL_VALUES = 1000
# Maximum number of combinations of the request labels; further ones become "other".
MAX_REQUEST_SERIES = 4096
OTHER = "other"
REQUEST_LABELS = ("model_name", "target_model_name", "fairness_id", "priority")


class Timer(Protocol):
    """Records durations: a histogram with its label values set."""

    def observe(self, amount: float) -> None:
        """Adds one duration in seconds."""


class NameCap:
    """Limits the number and the length of a label's values.

    The first values pass unchanged. Further values, and values that are too long, are replaced by "other".
    """

    def __init__(self, limit: int = MAX_LABEL_VALUES) -> None:
        self._limit = limit
        self._seen: set[str] = set()
        # Label values from the configuration: never replaced by "other".
        self.allowed: frozenset[str] = frozenset()

    def __call__(self, value: str) -> str:
        """Returns `value`, or "other" if it is too long or the maximum number of values is reached."""
        if len(value) > MAX_LABEL_CHARS:
            return OTHER
        if value in self._seen or value in self.allowed:
            return value
        if len(self._seen) >= self._limit:
            return OTHER
        self._seen.add(value)
        return value


@dataclass(frozen=True, slots=True)
class Declared:
    """A series as the reference documentation lists it."""

    name: str  # the name as exposed
    kind: str
    labels: tuple[str, ...]
    text: str


class PickerMetrics:
    """All series of a picker. Each picker has its own registry, so that several can run in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.declared: list[Declared] = []
        self.model_names = NameCap()
        self.fairness_ids = NameCap()
        self._index: IndexSeries | None = None
        self._latency: LatencySeries | None = None
        self._gauges: dict[str, Gauge] = {}
        self._refreshers: list[Callable[[], None]] = []
        self._make_request_series()
        self._make_token_series()
        self._make_pool_series()
        self._make_scheduling_series()
        self._make_prefix_series()
        self._make_load_series()

    def before_text(self, refresh: Callable[[], None]) -> None:
        """Registers a function that is called before the series are read."""
        self._refreshers.append(refresh)

    def text(self) -> bytes:
        """Returns all series in Prometheus's text format."""
        self.refresh()
        return self.rendered()

    def refresh(self) -> None:
        """Calls the functions of `before_text`, on the event loop."""
        for refresh in self._refreshers:
            refresh()

    def rendered(self) -> bytes:
        """Returns the metrics page with the present values. May run on any thread, because it takes long with thousands
        of series.
        """
        exposed = CollectorRegistry()
        exposed.register(WithOlderNames(self.registry, PREFIX))
        return generate_latest(exposed)

    def counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        """Creates a counter; "_total" is appended to the name."""
        self._declare(f"{name}_total", "counter", text, labels)
        return Counter(PREFIX + name, text, tuple(labels), registry=self.registry)

    def gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        """Returns a gauge. All plugins of a type share the gauge of the same name."""
        if name not in self._gauges:
            self._declare(name, "gauge", text, labels)
            self._gauges[name] = Gauge(PREFIX + name, text, tuple(labels), registry=self.registry)
        return self._gauges[name]

    def histogram(
        self, name: str, text: str, labels: Iterable[str], buckets: Iterable[float]
    ) -> Histogram:
        """Creates a histogram."""
        self._declare(name, "histogram", text, labels)
        made = Histogram(PREFIX + name, text, labels, buckets)
        self.registry.register(made)
        return made

    def _declare(self, name: str, kind: str, text: str, labels: Iterable[str]) -> None:
        self.declared.append(Declared(PREFIX + name, kind, tuple(labels), text))

    def make_stream_series(self) -> None:
        """Creates the series of ext_proc streams if they are enabled."""
        self.streams_inflight = self.gauge(
            "extproc_streams_inflight", "Number of open ext_proc streams."
        )
        self.stream_duration = self.histogram(
            "extproc_stream_duration_seconds", "Duration of ext_proc streams.", (), STREAM_SECONDS
        )
        self.streams = self.counter(
            "extproc_streams", "Number of finished ext_proc streams, by gRPC status.", ("code",)
        )

    def make_index_series(self) -> IndexSeries:
        """Creates the series of precise prefix indexes."""
        if self._index is None:
            self._index = IndexSeries(self)
        return self._index

    def make_latency_series(self) -> LatencySeries:
        """Creates the series of predicted latencies; called only if a plugin predicts latencies."""
        if self._latency is None:
            self._latency = LatencySeries(self)
        return self._latency

    def _make_request_series(self) -> None:
        labels = REQUEST_LABELS
        self.request = self.counter("request", "Number of requests, scheduled or refused.", labels)
        self.request_error = self.counter(
            "request_error", "Number of failed requests, by reason.", (*labels, "error_code")
        )
        self.request_duration = self.histogram(
            "request_duration_seconds",
            "Request duration: from the request to the end of its response.",
            labels,
            SECONDS,
        )
        self.request_size = self.histogram(
            "request_size_bytes", "Size of request bodies.", labels, REQUEST_BYTES
        )
        self.response_size = self.histogram(
            "response_size_bytes", "Size of response bodies.", labels, RESPONSE_BYTES
        )
        self.ttft = self.histogram(
            "request_ttft_seconds", "Time to first token.", (*labels, "streaming"), SECONDS
        )
        self.running = self.gauge("request_running", "Number of running requests.", labels)

    def _make_token_series(self) -> None:
        labels = REQUEST_LABELS
        self.input_tokens = self.histogram(
            "request_input_tokens",
            "Prompt tokens per request, as reported by the server, else estimated.",
            labels,
            INPUT_TOKENS,
        )
        self.output_tokens = self.histogram(
            "request_output_tokens", "Number of generated tokens.", labels, OUTPUT_TOKENS
        )
        self.cached_tokens = self.histogram(
            "request_cached_tokens",
            "Cached prompt tokens per request, as reported by the server.",
            labels,
            INPUT_TOKENS,
        )
        self.ntpot = self.histogram(
            "request_ntpot_seconds",
            "Normalized time per output token: request duration divided by generated tokens.",
            labels,
            NTPOT_SECONDS,
        )
        self.streaming_tpot = self.histogram(
            "request_streaming_tpot_seconds",
            "Time per output token of streamed responses, without the first token.",
            labels,
            TPOT_SECONDS,
        )
        self.streaming_itl = self.histogram(
            "request_streaming_itl_seconds",
            "Inter-token latency of streamed responses, measured between two chunks.",
            labels,
            ITL_SECONDS,
        )

    def _make_pool_series(self) -> None:
        self.kv_usage = self._spread("kv_cache_utilization")
        self.queue_size = self._spread("queue_size")
        self.running_requests = self._spread("running_requests")
        self.ready_endpoints = self.gauge(
            "ready_endpoints", "Number of endpoints that accept connections.", ("name",)
        )
        self.per_endpoint_queue_size = self.gauge(
            "per_endpoint_queue_size",
            "Queue size per endpoint.",
            ("name", "model_server_endpoint"),
        )
        self.stale_endpoints = self.gauge(
            "flow_control_stale_endpoints",
            "Number of endpoints whose load data is missing or stale.",
            ("detector",),
        )
        self.pool_saturation = self.gauge(
            "flow_control_pool_saturation",
            "Saturation of the pool by stage, and the effective value; 1 or more means saturated.",
            ("inference_pool", "stage"),
        )
        self.leader = self.gauge(
            "leader",
            "1 if this picker is the leader of its pool, 0 if it is not; only with leader election.",
            ("name",),
        )
        self.poll_errors = self.counter(
            "datalayer_poll_errors", "Number of failed load polls.", ("source_type",)
        )
        self.extract_errors = self.counter(
            "datalayer_extract_errors",
            "Number of load polls whose answer had none of the expected metrics.",
            ("source_type", "extractor_type"),
        )
        self.info = self.gauge("info", "Build information, in labels.", ("commit", "build_ref"))

    def _spread(self, what: str) -> tuple[Gauge, Gauge]:
        """Creates two gauges: the mean of a quantity over the pool, and its standard deviation."""
        mean = self.gauge(f"average_{what}", f"Mean {what} over the pool.", ("name",))
        deviation = self.gauge(
            f"std_dev_{what}", f"Standard deviation of {what} over the pool.", ("name",)
        )
        return mean, deviation

    def _make_scheduling_series(self) -> None:
        self.scheduler_duration = self.histogram(
            "scheduler_e2e_duration_seconds",
            "Duration of a scheduling decision.",
            (),
            SHORT_SECONDS,
        )
        self.scheduler_attempts = self.counter(
            "scheduler_attempts",
            "Number of scheduling decisions, by outcome and endpoint.",
            ("status", "target_model_name", "endpoint_name", "namespace", "port"),
        )
        self.plugin_duration = self.histogram(
            "plugin_duration_seconds",
            "Duration of one plugin call.",
            ("extension_point", "plugin_type", "plugin_name"),
            SHORT_SECONDS,
        )
        self.request_processing = self.histogram(
            "request_processing_duration_seconds",
            "Time from the headers of a request to the picker's answer to its complete body.",
            (),
            OWN_SECONDS,
        )
        self.response_processing = self.histogram(
            "response_processing_duration_seconds",
            "Total processing time of a response's messages.",
            (),
            OWN_SECONDS,
        )
        self.rewrites = self.counter(
            "model_rewrite_decisions",
            "Number of requests whose model was rewritten.",
            ("model_rewrite_name", "model_name", "target_model"),
        )
        self.disagg_decisions = self.counter(
            "disagg_decision",
            "Number of requests, by disaggregation decision: the stages that they use.",
            ("plugin_name", "plugin_type", "model_name", "decision_type"),
        )

    def _make_prefix_series(self) -> None:
        labels = ("plugin_name", "plugin_type")
        self.prefix_size = self.gauge(
            "prefix_indexer_size", "Number of blocks in the prefix index.", labels
        )
        self.prefix_hit_ratio = self.histogram(
            "prefix_indexer_hit_ratio",
            "Share of the prompt that the chosen endpoint has cached.",
            labels,
            RATIOS,
        )
        self.prefix_hit_bytes = self.histogram(
            "prefix_indexer_hit_bytes",
            "Bytes of the prompt that the chosen endpoint has cached.",
            labels,
            HIT_BYTES,
        )
        self.kv_events = self.counter(
            "kv_cache_events",
            "Number of prefix-cache events from endpoints, by outcome.",
            ("outcome",),
        )

    def _make_load_series(self) -> None:
        labels = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")
        self.inflight_requests = self.gauge(
            "inflight_requests", "Number of running requests.", labels
        )
        self.inflight_tokens = self.gauge(
            "inflight_tokens", "Number of prompt tokens of running requests.", labels
        )
