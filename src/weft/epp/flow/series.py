"""Metric series of flow control."""

import math
from collections import Counter as Counts
from collections.abc import Iterable
from typing import Final

from weft.epp.flow.bands import Band, Occupancy
from weft.epp.flow.item import Item, Outcome
from weft.epp.metrics.buckets import SHORT_SECONDS
from weft.epp.metrics.rows import Rows
from weft.epp.metrics.series import PickerMetrics

_QUEUE_SECONDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
                         10, 30, 60, 120, 300, 600)  # fmt: skip
# Time that the gauges of a flow without waiting requests are shown. A scaler needs their 0: for it, a series that is
# missing is no number.
IDLE_FLOW_S: Final = 300.0
_FlowLabels = tuple[str, str, str, str, str]
_FLOW: Final = ("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")


class FlowSeries:
    """Metric series of one pool's flow control."""

    def __init__(self, metrics: PickerMetrics, pool: str) -> None:
        self._pool = pool
        self._used_at: dict[_FlowLabels, float] = {}  # by flow, the last time that a request waited
        name = "flow_control_"
        self._queue_duration = metrics.histogram(
            name + "request_queue_duration_seconds",
            "Time that a request waits in the queue.",
            ("fairness_id", "priority", "outcome", *_FLOW[2:]),
            _QUEUE_SECONDS,
        )
        self._enqueue_duration = metrics.histogram(
            name + "request_enqueue_duration_seconds",
            "Time to enqueue or refuse a request.",
            ("fairness_id", "priority", "outcome"),
            SHORT_SECONDS,
        )
        self.cycle_duration = metrics.histogram(
            name + "dispatch_cycle_duration_seconds",
            "Duration of a dispatch cycle, including its scheduling decisions.",
            (),
            SHORT_SECONDS,
        )
        self._requests = metrics.counter(
            name + "requests",
            "Number of requests that left the queue, by outcome.",
            ("outcome", "priority", "inference_pool"),
        )
        self._make_queue_gauges(metrics)
        self._make_eviction_series(metrics, pool)

    def _make_queue_gauges(self, metrics: PickerMetrics) -> None:
        name, band = "flow_control_", ("priority", "inference_pool")
        self._size = Rows(metrics.gauge(name + "queue_size", "Number of waiting requests.", _FLOW))
        self._bytes = Rows(metrics.gauge(name + "queue_bytes", "Bytes of waiting requests.", _FLOW))
        use = name + "capacity_utilization_"
        self._band_requests = Rows(
            metrics.gauge(
                use + "requests", "Waiting requests as a share of the priority band's limit.", band
            )
        )
        self._band_bytes = Rows(
            metrics.gauge(
                use + "bytes", "Waiting bytes as a share of the priority band's limit.", band
            )
        )
        use, text = (
            name + "global_capacity_utilization_",
            "Waiting load as a share of the global limit: ",
        )
        self._all_requests = metrics.gauge(use + "requests", text + "requests.", band[1:])
        self._all_bytes = metrics.gauge(use + "bytes", text + "bytes.", band[1:])

    def _make_eviction_series(self, metrics: PickerMetrics, pool: str) -> None:
        name, labels = "flow_control_", ("inference_pool",)
        self._issued = metrics.counter(
            name + "revocations_issued",
            "Number of running requests that were revoked, by the priority of the waiting requests they made room "
            "for.",
            ("priority", *labels),
        )
        self._revocations = metrics.counter(
            name + "revocations", "Number of revoked requests, by outcome.", ("outcome", *labels)
        )
        self._confirmation = metrics.histogram(
            name + "revocation_confirmation_seconds",
            "Time from the revocation of a request to the end of its stream.",
            labels,
            _QUEUE_SECONDS,
        ).labels(pool)
        self.reclaim_target = metrics.gauge(
            name + "reclaim_target", "Saturation above the ceiling at the last revocation.",
            labels,
        ).labels(pool)  # fmt: skip
        self.pending_reclaim = metrics.gauge(
            name + "pending_reclaim",
            "Number of revoked requests whose streams are still open.",
            labels,
        ).labels(pool)

    def enqueued(self, item: Item, seconds: float, outcome: Outcome | None) -> None:
        """Records that a request was queued (`outcome` is None) or refused at once."""
        _, _, fairness_id, priority = item.labels
        named = "NotYetFinalized" if outcome is None else outcome
        self._enqueue_duration.labels(fairness_id, priority, named).observe(seconds)
        if outcome is None:
            self._used_at[self._flow(item)] = item.arrived

    def ended(self, item: Item, outcome: Outcome, seconds: float) -> None:
        """Records the outcome of a request's wait."""
        model, target, fairness_id, priority = item.labels
        self._requests.labels(outcome, priority, self._pool).inc()
        self._queue_duration.labels(
            fairness_id, priority, outcome, self._pool, model, target
        ).observe(seconds)

    def revoked(self, priority: int) -> None:
        """Records that a running request was evicted for a request of this priority."""
        self._issued.labels(str(priority), self._pool).inc()

    def revocation_ended(self, outcome: str, seconds: float | None) -> None:
        """Records that the stream of an evicted request ended, or did not end in time."""
        self._revocations.labels(outcome, self._pool).inc()
        if seconds is not None:
            self._confirmation.observe(seconds)

    def refresh(self, bands: Iterable[Band], used: Occupancy, now: float) -> None:
        """Updates the gauges before they are read. The gauges of a flow without waiting requests are 0 for a while."""
        sizes: Counts[_FlowLabels] = Counts()
        num_bytes: Counts[_FlowLabels] = Counts()
        requests, volumes = {}, {}
        for band in bands:
            labels = (str(band.priority), self._pool)
            requests[labels] = band.used.num_requests / band.used.limits.max_requests
            volumes[labels] = band.used.num_bytes / band.used.limits.max_bytes
            for item in band:
                flow = self._flow(item)
                sizes[flow] += 1
                num_bytes[flow] += item.num_bytes
        self._used_at |= dict.fromkeys(sizes, now)
        self._used_at = {flow: at for flow, at in self._used_at.items() if now - at <= IDLE_FLOW_S}
        self._band_requests.show(requests)
        self._band_bytes.show(volumes)
        self._size.show({flow: sizes[flow] for flow in self._used_at})
        self._bytes.show({flow: num_bytes[flow] for flow in self._used_at})
        if math.isfinite(used.limits.max_requests):
            self._all_requests.labels(self._pool).set(used.num_requests / used.limits.max_requests)
        if math.isfinite(used.limits.max_bytes):
            self._all_bytes.labels(self._pool).set(used.num_bytes / used.limits.max_bytes)

    def _flow(self, item: Item) -> _FlowLabels:
        model, target, fairness_id, priority = item.labels
        return fairness_id, priority, self._pool, model, target
