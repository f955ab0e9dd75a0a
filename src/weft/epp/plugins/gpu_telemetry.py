"""`dcgm-data-source` and `dcgm-extractor`: GPU utilization of endpoints."""

from typing import Final

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.plugin import Surroundings, plugin, plugin_type
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.gpu import DCGM_EXTRACTOR, DCGM_SOURCE, UTILIZATION, GpuSourceParameters


@plugin(DCGM_EXTRACTOR, (Kind.TELEMETRY_EXTRACTOR, Kind.ATTRIBUTES), is_alpha=True)
class GpuTelemetry:
    """The attribute `GPUUtilization`, 0 to 1: the utilization of an endpoint's busiest GPU."""

    def __init__(self, _: NoParameters, around: Surroundings) -> None:
        self._values: dict[Endpoint, tuple[float, float]] = {}  # value and time of expiry
        around.pool.on_left(self._forget)

    def observe(self, endpoint: Endpoint, utilization: float, good_until: float) -> None:
        """Stores a value that the exporter reported."""
        self._values[endpoint] = utilization, good_until

    def attribute(self, endpoint: Endpoint, name: str, now: float) -> float | None:
        """Returns the utilization; None if it is unknown or too old."""
        value, good_until = self._values.get(endpoint, (None, 0.0))
        return value if name == UTILIZATION and now <= good_until else None

    def _forget(self, endpoint: Endpoint) -> None:
        self._values.pop(endpoint, None)


ROWS: Final = (
    plugin_type(DCGM_SOURCE, Kind.TELEMETRY_SOURCE, parameters=GpuSourceParameters, is_alpha=True),
)
