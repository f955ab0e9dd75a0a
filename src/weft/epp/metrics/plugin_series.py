"""Series that exist only while a plugin of the picker needs them."""

from typing import TYPE_CHECKING

from weft.epp.metrics.buckets import (
    PREDICTED_TPOT_SECONDS,
    PREDICTION_SECONDS,
    SECONDS,
    SHORT_SECONDS,
)

if TYPE_CHECKING:  # the series are made by the picker's metrics
    from weft.epp.metrics.series import PickerMetrics


class IndexSeries:
    """Series of precise prefix indexes, summed over all indexes of a picker."""

    def __init__(self, metrics: "PickerMetrics") -> None:
        index, dedup = "kv_cache_index_", "kv_cache_events_dedup_removed_hashes_"
        self.admissions = metrics.counter(
            index + "admissions", "Number of blocks added to the index."
        )
        self.evictions = metrics.counter(
            index + "evictions", "Number of blocks removed from the index."
        )
        self.lookups = metrics.counter(
            index + "lookup_requests", "Number of prompts looked up in the index."
        )
        self.hits = metrics.counter(
            index + "lookup_hits",
            "Sum over all look-ups of the blocks that the best endpoint had cached.",
        )
        self.best_runs = metrics.counter(
            index + "max_pod_hit_count",
            "Sum over all look-ups of the longest run of cached blocks at one endpoint.",
        )
        self.latency = metrics.histogram(
            index + "lookup_latency_seconds", "Duration of a look-up.", (), SHORT_SECONDS
        )
        self.suppressed = metrics.counter(
            dedup + "suppressed",
            "Number of block removals that were suppressed, because the endpoint still has "
            "the block in another place.",
        )
        self.forwarded = metrics.counter(
            dedup + "forwarded", "Number of block removals that were applied."
        )


class LatencySeries:
    """Series of predicted latencies. Labels name the producer of the predictions."""

    def __init__(self, metrics: "PickerMetrics") -> None:
        labels = ("plugin_name", "plugin_type", "model_name", "target_model_name")
        self.predicted_ttft = metrics.histogram(
            "request_predicted_ttft_seconds",
            "Predicted time to first token at the chosen endpoint; without streamingMode, predicted request "
            "duration.",
            labels,
            SECONDS,
        )
        self.predicted_tpot = metrics.histogram(
            "request_predicted_tpot_seconds",
            "Predicted time per output token at the chosen endpoint.",
            labels,
            PREDICTED_TPOT_SECONDS,
        )
        self.ttft_prediction = metrics.histogram(
            "request_ttft_prediction_duration_seconds",
            "Time to predict the time to first token for all candidates.",
            labels,
            PREDICTION_SECONDS,
        )
        self.tpot_prediction = metrics.histogram(
            "request_tpot_prediction_duration_seconds",
            "Time to predict the time per output token for all candidates.",
            labels,
            PREDICTION_SECONDS,
        )
        self.violations = metrics.counter(
            "request_slo_violation",
            "Number of responses that missed their latency objective, by type: ttft or tpot.",
            (*labels, "type"),
        )
        self.last = metrics.gauge(
            "inference_request_metric",
            "Last value by type: predicted and measured latencies in seconds, and 1 or 0 for a missed objective.",
            (*labels, "type"),
        )
