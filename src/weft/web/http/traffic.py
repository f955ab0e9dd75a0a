"""`Traffic`: the metrics of the HTTP server."""

import time
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

from weft.web.http.exchange import Exchange

_FINE_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4,
                        4.5, 5, 7.5, 10, 30, 60)  # fmt: skip
_COARSE_BUCKETS: Final = (0.1, 0.5, 1)


class Traffic:
    """Metrics of requests. Labels are paths of endpoints and HTTP methods, so clients cannot create new ones."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests", "Requests.", ("handler", "method", "status"), registry=registry
        )
        self._request_bytes = Summary(
            "http_request_size_bytes", "Bytes of bodies received.", ("handler",), registry=registry
        )
        self._response_bytes = Summary(
            "http_response_size_bytes", "Bytes of bodies sent.", ("handler",), registry=registry
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds",
            "From the request headers to the end of the response.",
            buckets=_FINE_BUCKETS,
            registry=registry,
        )
        self._coarse = Histogram(
            "http_request_duration_seconds",
            "From the request headers to the end of the response.",
            ("handler", "method"),
            buckets=_COARSE_BUCKETS,
            registry=registry,
        )

    def observe(self, exchange: Exchange) -> None:
        """Counts a finished request. A request whose client disconnected before the response counts as 4xx."""
        status = f"{(exchange.status or 499) // 100}xx"
        elapsed_s = time.monotonic() - exchange.started_at
        self._requests.labels(exchange.handler, exchange.method, status).inc()
        self._request_bytes.labels(exchange.handler).observe(exchange.num_bytes_in)
        self._response_bytes.labels(exchange.handler).observe(exchange.num_bytes_out)
        self._fine.observe(elapsed_s)
        self._coarse.labels(exchange.handler, exchange.method).observe(elapsed_s)
