"""Prometheus series of the picker, under their exact names and the older names dashboards still ask for."""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.samples import Sample

PREFIX: Final = "llm_d_epp_"
MAX_LABEL_VALUES = 1000  # model names, and fairness ids, per process; the rest is "other"
OTHER = "other"
REQUEST_LABELS = ("model_name", "target_model_name", "fairness_id", "priority")

_SECONDS = (0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15,
            20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)  # fmt: skip
_SHORT_SECONDS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.15, 0.2,
                  0.3, 0.5, 1, 2, 5, 10)  # fmt: skip
_BYTES = tuple(64 * 4**power for power in range(15))
_TOKENS = tuple(2**power for power in range(21))
_RATIOS = tuple(step / 10 for step in range(11))

# Current name to older ones, all without the type's suffix.
_OLDER_NAMES: Final = {
    "request": ("inference_objective_request",),
    "request_error": ("inference_objective_request_error",),
    "request_duration_seconds": ("inference_objective_request_duration_seconds",),
    "request_size_bytes": ("inference_objective_request_sizes",),
    "response_size_bytes": ("inference_objective_response_sizes",),
    "request_input_tokens": ("inference_objective_input_tokens",),
    "request_output_tokens": ("inference_objective_output_tokens",),
    "request_cached_tokens": ("inference_objective_prompt_cached_tokens",),
    "request_ntpot_seconds": ("inference_objective_normalized_time_per_output_token_seconds",),
    "request_ttft_seconds": ("inference_objective_request_ttft_seconds",),
    "request_running": ("inference_objective_running_requests",),
    "average_kv_cache_utilization": ("inference_pool_average_kv_cache_utilization",),
    "average_queue_size": ("inference_pool_average_queue_size",),
    "average_running_requests": ("inference_pool_average_running_requests",),
    "per_endpoint_queue_size": ("inference_pool_per_pod_queue_size",),
    "ready_endpoints": ("inference_pool_ready_pods",),
    "scheduler_e2e_duration_seconds": ("inference_extension_scheduler_e2e_duration_seconds",),
    "scheduler_attempts": ("inference_extension_scheduler_attempts",),
    "plugin_duration_seconds": ("inference_extension_plugin_duration_seconds",),
    "prefix_indexer_size": ("inference_extension_prefix_indexer_size",),
    "prefix_indexer_hit_ratio": ("inference_extension_prefix_indexer_hit_ratio",),
    "prefix_indexer_hit_bytes": ("inference_extension_prefix_indexer_hit_bytes",),
    "model_rewrite_decisions": ("inference_extension_model_rewrite_decisions",),
    "info": ("inference_extension_info",),
    "disagg_decision": ("llm_d_inference_scheduler_pd_decision",),
}


class Timer(Protocol):
    """Takes durations; a histogram with its labels filled in."""

    def observe(self, amount: float) -> None:
        """Add one duration in seconds."""
        ...


class NameCap:
    """Lets the first values through and turns the rest into "other": labels must not grow for ever."""

    def __init__(self, limit: int = MAX_LABEL_VALUES) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        """`value`, or "other" once there are too many."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit:
            return OTHER
        self._seen.add(value)
        return value


class _WithOlderNames:
    """Collects a registry, and each family once more under every older name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Every family under every name."""
        for family in self._registry.collect():
            yield family
            for older in _OLDER_NAMES.get(family.name.removeprefix(PREFIX), ()):
                yield _renamed(family, older)


class PickerMetrics:
    """Every series; each has its own registry, so that several pickers can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.model_names = NameCap()
        self.fairness_ids = NameCap()
        self._make_request_series()
        self._make_pool_series()
        self._make_scheduling_series()
        self._make_inflight_series()

    def text(self) -> bytes:
        """All series in Prometheus's text format."""
        exposed = CollectorRegistry()
        exposed.register(_WithOlderNames(self.registry))
        return generate_latest(exposed)

    def counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        """A new counter; `_total` is added."""
        return Counter(PREFIX + name, text, tuple(labels), registry=self.registry)

    def gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        """A new gauge."""
        return Gauge(PREFIX + name, text, tuple(labels), registry=self.registry)

    def histogram(
        self, name: str, text: str, labels: Iterable[str], buckets: Iterable[float]
    ) -> Histogram:
        """A new histogram."""
        return Histogram(
            PREFIX + name, text, tuple(labels), buckets=tuple(buckets), registry=self.registry
        )

    def _make_request_series(self) -> None:
        labels = REQUEST_LABELS
        self.request = self.counter("request", "Requests scheduled or refused.", labels)
        self.request_error = self.counter(
            "request_error", "Requests that failed, by reason.", (*labels, "error_code")
        )
        self.request_duration = self.histogram(
            "request_duration_seconds", "From request to end of response.", labels, _SECONDS
        )
        self.request_size = self.histogram("request_size_bytes", "Request bodies.", labels, _BYTES)
        self.response_size = self.histogram(
            "response_size_bytes", "Response bodies.", labels, _BYTES
        )
        self.input_tokens = self.histogram(
            "request_input_tokens", "Prompt tokens.", labels, _TOKENS
        )
        self.output_tokens = self.histogram(
            "request_output_tokens", "Generated tokens.", labels, _TOKENS
        )
        self.cached_tokens = self.histogram(
            "request_cached_tokens", "Prompt tokens the server had cached.", labels, _TOKENS
        )
        self.ntpot = self.histogram(
            "request_ntpot_seconds", "Duration per generated token.", labels, _TOKEN_SECONDS
        )
        self.streaming_tpot = self.histogram(
            "request_streaming_tpot_seconds",
            "Time per token after the first, streamed responses.",
            labels,
            _TOKEN_SECONDS,
        )
        self.ttft = self.histogram(
            "request_ttft_seconds", "Time to the first token.", (*labels, "streaming"), _SECONDS
        )
        self.running = self.gauge("request_running", "Requests under way.", labels)

    def _make_pool_series(self) -> None:
        self.kv_usage = self._spread("kv_cache_utilization")
        self.queue_size = self._spread("queue_size")
        self.running_requests = self._spread("running_requests")
        self.ready_endpoints = self.gauge(
            "ready_endpoints", "Endpoints that do not refuse connections.", ("name",)
        )
        self.per_endpoint_queue_size = self.gauge(
            "per_endpoint_queue_size",
            "Requests waiting at an endpoint.",
            ("name", "model_server_endpoint"),
        )
        self.stale_endpoints = self.gauge(
            "flow_control_stale_endpoints", "Endpoints whose load is unknown or old.", ("detector",)
        )
        self.poll_errors = self.counter(
            "datalayer_poll_errors", "Polls of an endpoint's load that failed.", ("source_type",)
        )
        self.extract_errors = self.counter(
            "datalayer_extract_errors",
            "Polls whose answer had none of the expected series.",
            ("source_type", "extractor_type"),
        )
        self.info = self.gauge("info", "Which build this is.", ("commit", "build_ref"))

    def _spread(self, what: str) -> tuple[Gauge, Gauge]:
        """Mean and standard deviation over the pool."""
        mean = self.gauge(f"average_{what}", f"Mean {what} over the pool.", ("name",))
        deviation = self.gauge(f"std_dev_{what}", f"Deviation of {what} in the pool.", ("name",))
        return mean, deviation

    def _make_scheduling_series(self) -> None:
        self.scheduler_duration = self.histogram(
            "scheduler_e2e_duration_seconds", "Time of one decision.", (), _SHORT_SECONDS
        )
        self.scheduler_attempts = self.counter(
            "scheduler_attempts",
            "Decisions by outcome and endpoint.",
            ("status", "target_model_name", "endpoint_name", "namespace", "port"),
        )
        self.plugin_duration = self.histogram(
            "plugin_duration_seconds",
            "Time in one plugin.",
            ("extension_point", "plugin_type", "plugin_name"),
            _SHORT_SECONDS,
        )
        self.request_processing = self.histogram(
            "request_processing_duration_seconds", "The picker's own time.", (), _SHORT_SECONDS
        )
        self.response_processing = self.histogram(
            "response_processing_duration_seconds", "The picker's own time.", (), _SHORT_SECONDS
        )
        self.rewrites = self.counter(
            "model_rewrite_decisions",
            "Requests whose model was rewritten.",
            ("model_rewrite_name", "model_name", "target_model"),
        )
        self.disagg_decisions = self.counter(
            "disagg_decision",
            "Which stages requests ran through.",
            ("plugin_name", "plugin_type", "model_name", "decision_type"),
        )

    def _make_inflight_series(self) -> None:
        labels = ("plugin_name", "plugin_type")
        self.prefix_size = self.gauge("prefix_indexer_size", "Blocks in a prefix index.", labels)
        self.prefix_hit_ratio = self.histogram(
            "prefix_indexer_hit_ratio",
            "Share of a prompt the chosen endpoint holds.",
            labels,
            _RATIOS,
        )
        self.prefix_hit_bytes = self.histogram(
            "prefix_indexer_hit_bytes",
            "Bytes of a prompt the chosen endpoint holds.",
            labels,
            _BYTES,
        )
        self._make_load_series()

    def _make_load_series(self) -> None:
        labels = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")
        self.inflight_requests = self.gauge("inflight_requests", "Requests under way.", labels)
        self.inflight_tokens = self.gauge("inflight_tokens", "Prompt tokens under way.", labels)
        self.index_lookups = self.counter(
            "kv_cache_index_lookup_requests", "Prompts looked up in a precise prefix index."
        )
        self.index_hits = self.counter(
            "kv_cache_index_lookup_hits", "Blocks the best endpoint held, over all look-ups."
        )
        self.kv_events = self.counter(
            "kv_cache_events", "Events of the endpoints' prefix caches.", ("outcome",)
        )


def _renamed(family: Metric, name: str) -> Metric:
    copy = Metric(name, family.documentation, family.type, family.unit)
    copy.samples = [
        Sample(name + sample.name.removeprefix(family.name), *sample[1:])
        for sample in family.samples
    ]
    return copy
