"""Series of the reference picker that Weft's picker does not have, each with the reason, for users of its
dashboards.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_EVENTS: Final = (
    "kv_cache_events_total counts events by outcome; Weft applies events without a queue"
)
_MEDIA: Final = "Weft identifies media by hash, not by modality"
_ROLLOUTS: Final = "Weft does not follow rollouts of DisaggregatedSets yet"

# By the current series name, without prefix, as scraped.
ABSENT_SERIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "disaggregatedset_revision_gating_share": _ROLLOUTS,
        "disaggregatedset_strict_revision_no_match_total": _ROLLOUTS,
        "encoder_cache_hit_ratio": _MEDIA,
        "encoder_cache_hits_total": _MEDIA,
        "encoder_cache_queries_total": _MEDIA,
        "kv_cache_events_active_subscribers": _EVENTS,
        "kv_cache_events_messages_received_total": _EVENTS,
        "kv_cache_events_pool_capacity": _EVENTS,
        "kv_cache_events_pool_queue_depth": _EVENTS,
        "kv_cache_events_removals_skipped_total": _EVENTS,
        "kv_cache_events_stores_skipped_total": _EVENTS,
        "kv_cache_events_subscriber_reconnections_total": _EVENTS,
        "kv_cache_events_zmq_errors_total": _EVENTS,
        "pd_decision_total": "disagg_decision_total counts the decisions of every profile handler",
        "plugin_data_scope_violations_total": "a plugin can read only the data of producers that it names",
    }
)
