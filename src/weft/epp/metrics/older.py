"""The picker's series once more, under the names and labels that older dashboards use."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

_OBJECTIVE: Final = "inference_objective_"
_POOL: Final = "inference_pool_"
_EXTENSION: Final = "inference_extension_"
_SCHEDULER: Final = "llm_d_inference_scheduler_"


@dataclass(frozen=True, slots=True)
class Older:
    """An earlier name, without the type's suffix, and labels that had other names then."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


# By the current name, without prefix and suffix.
OLDER_NAMES: Final[Mapping[str, Older]] = {
    "request": Older(_OBJECTIVE + "request"),
    "request_error": Older(_OBJECTIVE + "request_error"),
    "request_duration_seconds": Older(_OBJECTIVE + "request_duration_seconds"),
    "request_size_bytes": Older(_OBJECTIVE + "request_sizes"),
    "response_size_bytes": Older(_OBJECTIVE + "response_sizes"),
    "request_input_tokens": Older(_OBJECTIVE + "input_tokens"),
    "request_output_tokens": Older(_OBJECTIVE + "output_tokens"),
    "request_cached_tokens": Older(_OBJECTIVE + "prompt_cached_tokens"),
    "request_ntpot_seconds": Older(_OBJECTIVE + "normalized_time_per_output_token_seconds"),
    "request_ttft_seconds": Older(_OBJECTIVE + "request_ttft_seconds"),
    "request_streaming_tpot_seconds": Older(_OBJECTIVE + "request_tpot_seconds"),
    "request_predicted_ttft_seconds": Older(_OBJECTIVE + "request_predicted_ttft_seconds"),
    "request_predicted_tpot_seconds": Older(_OBJECTIVE + "request_predicted_tpot_seconds"),
    "request_ttft_prediction_duration_seconds": Older(
        _OBJECTIVE + "request_ttft_prediction_duration_seconds"
    ),
    "request_tpot_prediction_duration_seconds": Older(
        _OBJECTIVE + "request_tpot_prediction_duration_seconds"
    ),
    "request_slo_violation": Older(_OBJECTIVE + "request_slo_violation"),
    "inference_request_metric": Older(_OBJECTIVE + "inference_request_metric"),
    "request_running": Older(_OBJECTIVE + "running_requests"),
    "average_kv_cache_utilization": Older(_POOL + "average_kv_cache_utilization"),
    "average_queue_size": Older(_POOL + "average_queue_size"),
    "average_running_requests": Older(_POOL + "average_running_requests"),
    "ready_endpoints": Older(_POOL + "ready_pods"),
    "per_endpoint_queue_size": Older(
        _POOL + "per_pod_queue_size", {"model_server_endpoint": "model_server_pod"}
    ),
    "scheduler_e2e_duration_seconds": Older(_EXTENSION + "scheduler_e2e_duration_seconds"),
    "scheduler_attempts": Older(_EXTENSION + "scheduler_attempts", {"endpoint_name": "pod_name"}),
    "plugin_duration_seconds": Older(_EXTENSION + "plugin_duration_seconds"),
    "prefix_indexer_size": Older(_EXTENSION + "prefix_indexer_size"),
    "prefix_indexer_hit_ratio": Older(_EXTENSION + "prefix_indexer_hit_ratio"),
    "prefix_indexer_hit_bytes": Older(_EXTENSION + "prefix_indexer_hit_bytes"),
    "model_rewrite_decisions": Older(_EXTENSION + "model_rewrite_decisions"),
    "info": Older(_EXTENSION + "info"),
    "disagg_decision": Older(_SCHEDULER + "disagg_decision"),
    "datalayer_poll_errors": Older(_SCHEDULER + "datalayer_poll_errors"),
    "datalayer_extract_errors": Older(_SCHEDULER + "datalayer_extract_errors"),
    "kv_cache_index_admissions": Older("kvcache_index_admissions"),
    "kv_cache_index_evictions": Older("kvcache_index_evictions"),
    "kv_cache_index_lookup_requests": Older("kvcache_index_lookup_requests"),
    "kv_cache_index_lookup_hits": Older("kvcache_index_lookup_hits"),
    "kv_cache_index_max_pod_hit_count": Older("kvcache_index_max_pod_hit_count"),
    "kv_cache_index_lookup_latency_seconds": Older("kvcache_index_lookup_latency_seconds"),
    "kv_cache_events_dedup_removed_hashes_suppressed": Older(
        "kvcache_kvevents_dedup_removed_hashes_suppressed"
    ),
    "kv_cache_events_dedup_removed_hashes_forwarded": Older(
        "kvcache_kvevents_dedup_removed_hashes_forwarded"
    ),
}


class WithOlderNames:
    """Collects a registry, and each family that had an older name once more under that."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._registry = registry
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        """Every family under every name."""
        for family in self._registry.collect():
            yield family
            older = OLDER_NAMES.get(family.name.removeprefix(self._prefix))
            if older is not None:
                yield _renamed(family, older)


def _renamed(family: Metric, older: Older) -> Metric:
    copy = Metric(older.name, family.documentation, family.type, family.unit)
    copy.samples = [
        Sample(
            older.name + sample.name.removeprefix(family.name),
            {older.labels.get(key, key): value for key, value in sample.labels.items()},
            *sample[2:],
        )
        for sample in family.samples
    ]
    return copy
