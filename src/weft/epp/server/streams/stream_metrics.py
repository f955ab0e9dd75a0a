"""Metrics of the ext_proc server: processing times, refusals before a decision, and streams."""

from typing import Final

import grpc

from weft.epp.metrics.series import PickerMetrics
from weft.epp.request.values import Refused

# gRPC status names as spelled by Go's grpc, which dashboards filter by.
_CODES: Final = {
    code: "OK"
    if code is grpc.StatusCode.OK
    else "Canceled"
    if code is grpc.StatusCode.CANCELLED
    else code.name.title().replace("_", "")
    for code in grpc.StatusCode
}
_NO_LABELS: Final = ("", "", "", "")


class WireMetrics:
    """Metric series of one server. The series of streams exist only if they are enabled."""

    def __init__(self, metrics: PickerMetrics, *, measures_streams: bool = False) -> None:
        self._metrics = metrics
        self._measures_streams = measures_streams
        if measures_streams:
            metrics.make_stream_series()

    def refused(self, refused: Refused) -> None:
        """Counts a request that was refused before the director counted it; its model is unknown."""
        self._metrics.request.labels(*_NO_LABELS).inc()
        self._metrics.request_error.labels(*_NO_LABELS, refused.word).inc()

    def answered(self, seconds: float) -> None:
        """Records the time from the headers of a request to its routing or refusal."""
        self._metrics.request_processing.observe(seconds)

    def followed(self, seconds: float) -> None:
        """Records the total processing time of a response's messages."""
        self._metrics.response_processing.observe(seconds)

    def opened(self) -> None:
        """Counts a stream that has begun."""
        if self._measures_streams:
            self._metrics.streams_inflight.inc()

    def ended(self, seconds: float, code: grpc.StatusCode) -> None:
        """Records the duration and the status of a stream that has ended."""
        if self._measures_streams:
            self._metrics.streams_inflight.dec()
            self._metrics.stream_duration.observe(seconds)
            self._metrics.streams.labels(_CODES[code]).inc()
