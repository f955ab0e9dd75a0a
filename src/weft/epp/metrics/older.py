"""Exposes the picker's series a second time, with the names and labels that older dashboards use."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

_OBJECTIVE: Final = "inference_objective_"
_POOL: Final = "inference_pool_"
_EXTENSION: Final = "inference_extension_"
_SCHEDULER: Final = "llm_d_inference_scheduler_"


# Older name of each series by its current name, both without prefix and without the suffix of their type.
OLDER_NAMES: Final[Mapping[str, str]] = {
    "request": _OBJECTIVE + "request",
    "request_error": _OBJECTIVE + "request_error",
    "request_duration_seconds": _OBJECTIVE + "request_duration_seconds",
    "request_size_bytes": _OBJECTIVE + "request_sizes",
    "response_size_bytes": _OBJECTIVE + "response_sizes",
    "request_input_tokens": _OBJECTIVE + "input_tokens",
    "request_output_tokens": _OBJECTIVE + "output_tokens",
    "request_cached_tokens": _OBJECTIVE + "prompt_cached_tokens",
    "request_ntpot_seconds": _OBJECTIVE + "normalized_time_per_output_token_seconds",
    "request_ttft_seconds": _OBJECTIVE + "request_ttft_seconds",
    "request_streaming_tpot_seconds": _OBJECTIVE + "request_tpot_seconds",
    "request_predicted_ttft_seconds": _OBJECTIVE + "request_predicted_ttft_seconds",
    "request_predicted_tpot_seconds": _OBJECTIVE + "request_predicted_tpot_seconds",
    "request_ttft_prediction_duration_seconds": _OBJECTIVE
    + "request_ttft_prediction_duration_seconds",
    "request_tpot_prediction_duration_seconds": _OBJECTIVE
    + "request_tpot_prediction_duration_seconds",
    "request_slo_violation": _OBJECTIVE + "request_slo_violation",
    "inference_request_metric": _OBJECTIVE + "inference_request_metric",
    "request_running": _OBJECTIVE + "running_requests",
    "average_kv_cache_utilization": _POOL + "average_kv_cache_utilization",
    "average_queue_size": _POOL + "average_queue_size",
    "average_running_requests": _POOL + "average_running_requests",
    "ready_endpoints": _POOL + "ready_pods",
    "per_endpoint_queue_size": _POOL + "per_pod_queue_size",
    "scheduler_e2e_duration_seconds": _EXTENSION + "scheduler_e2e_duration_seconds",
    "scheduler_attempts": _EXTENSION + "scheduler_attempts",
    "plugin_duration_seconds": _EXTENSION + "plugin_duration_seconds",
    "prefix_indexer_size": _EXTENSION + "prefix_indexer_size",
    "prefix_indexer_hit_ratio": _EXTENSION + "prefix_indexer_hit_ratio",
    "prefix_indexer_hit_bytes": _EXTENSION + "prefix_indexer_hit_bytes",
    "model_rewrite_decisions": _EXTENSION + "model_rewrite_decisions",
    "info": _EXTENSION + "info",
    "disagg_decision": _SCHEDULER + "disagg_decision",
    "datalayer_poll_errors": _SCHEDULER + "datalayer_poll_errors",
    "datalayer_extract_errors": _SCHEDULER + "datalayer_extract_errors",
    "kv_cache_index_admissions": "kvcache_index_admissions",
    "kv_cache_index_evictions": "kvcache_index_evictions",
    "kv_cache_index_lookup_requests": "kvcache_index_lookup_requests",
    "kv_cache_index_lookup_hits": "kvcache_index_lookup_hits",
    "kv_cache_index_max_pod_hit_count": "kvcache_index_max_pod_hit_count",
    "kv_cache_index_lookup_latency_seconds": "kvcache_index_lookup_latency_seconds",
    "kv_cache_events_dedup_removed_hashes_suppressed": "kvcache_kvevents_dedup_removed_hashes_suppressed",
    "kv_cache_events_dedup_removed_hashes_forwarded": "kvcache_kvevents_dedup_removed_hashes_forwarded",
}
# Labels that were renamed; no other series has them.
_OLDER_LABELS: Final = {"model_server_endpoint": "model_server_pod", "endpoint_name": "pod_name"}


class WithOlderNames:
    """Collects a registry; a metric family that has an older name is returned under both names."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._registry = registry
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        """Yields every metric family, under each of its names."""
        for family in self._registry.collect():
            yield family
            older = OLDER_NAMES.get(family.name.removeprefix(self._prefix))
            if older is not None:
                yield _renamed(family, older)


def _renamed(family: Metric, older: str) -> Metric:
    copy = Metric(older, family.documentation, family.type, family.unit)
    copy.samples = [
        Sample(
            older + sample.name.removeprefix(family.name),
            {_OLDER_LABELS.get(key, key): value for key, value in sample.labels.items()},
            *sample[2:],
        )
        for sample in family.samples
    ]
    return copy
