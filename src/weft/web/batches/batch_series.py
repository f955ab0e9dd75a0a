"""The series of the batches that a process runs."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter

ENDED: Final = (
    "weft:batches",
    "status",
    "Number of batches that ended: completed, failed, expired or cancelled.",
)
REQUESTS: Final = (
    "weft:batch_requests",
    "outcome",
    "Number of requests of batches that ended: completed or failed with an answer; expired or cancelled without one.",
)
COUNTERS: Final = (ENDED, REQUESTS)


class BatchSeries:
    """Counts batches and their requests when they end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended, self._requests = (
            Counter(name, text, (label,), registry=registry) for name, label, text in COUNTERS
        )

    def count_batch(self, status: str) -> None:
        """Counts a batch that ended."""
        self._ended.labels(status).inc()

    def count_requests(self, outcome: str, number: int = 1) -> None:
        """Counts requests that ended."""
        self._requests.labels(outcome).inc(number)
