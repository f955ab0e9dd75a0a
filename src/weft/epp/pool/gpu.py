"""GPU utilization of endpoints, from DCGM exporters next to the endpoints or on their nodes."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

from weft.epp.config.parameters import Port
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint, Load
from weft.epp.pool.exposition import SeriesReader, finite, read_page
from weft.epp.pool.poller import (
    LoadSource,
    MetricsSourceParameters,
    Poller,
    defect_in,
    http_sources,
    own_metrics_host,
)
from weft.epp.pool.pool import Pool

_log = logging.getLogger(__name__)

DCGM_SOURCE: Final = "dcgm-data-source"
DCGM_EXTRACTOR: Final = "dcgm-extractor"
UTILIZATION: Final = "GPUUtilization"
_SERIES: Final = "DCGM_FI_DEV_GPU_UTIL"  # in percent
_POD: Final = "pod"  # label with the name of the pod that uses the GPU


class GpuSourceParameters(MetricsSourceParameters, frozen=True, kw_only=True):
    """Port and path of the exporter's metrics page, at the endpoint's address or at that of its node."""

    port: Port = 9400
    use_node_address: bool = False  # for an exporter of each node, which names the pod of each GPU


class GpuReader:
    """Converts an exporter's page to the utilization of one endpoint's GPUs."""

    path = "/metrics"

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._reader = SeriesReader({_SERIES})

    async def read_page(self, page: bytes) -> Load | None:
        """Returns the utilization of the endpoint's busiest GPU, 0 to 1; None if the page has no GPU of this endpoint.

        An exporter that labels GPUs with pods reports all GPUs of a node; GPUs of other pods, and GPUs without a pod,
        are then ignored.
        """
        samples = (await read_page(self._reader, page)).get(_SERIES, [])
        if any(each.labels.get(_POD) for each in samples):
            samples = [each for each in samples if each.labels.get(_POD, self._pod) == self._pod]
        if not (values := finite(samples)):
            return None
        return Load(attributes={UTILIZATION: min(1.0, max(0.0, max(values) / 100.0))})


def _node_of(endpoint: Endpoint) -> str | None:
    """Returns the address of the endpoint's node; of the endpoint's own metrics if the node is unknown."""
    return endpoint.spec.node_address or own_metrics_host(endpoint)


class GpuPoller(Poller):
    """Polls exporters. Their values and failures do not affect the load of endpoints."""

    def __init__(
        self,
        pool: Pool,
        metrics: PickerMetrics,
        parameters: GpuSourceParameters,
        interval_s: float,
        max_age_s: float,
        observe: Callable[[Endpoint, float, float], None],
    ) -> None:
        self._observe = observe
        self._max_age_s = max(max_age_s, 3 * interval_s)
        self._failing: WeakSet[Endpoint] = WeakSet()
        make_source = http_sources(
            parameters,
            lambda each: GpuReader(each.spec.pod or each.spec.name),
            host_of=_node_of if parameters.use_node_address else own_metrics_host,
        )
        super().__init__(pool, metrics, make_source, interval_s, (DCGM_SOURCE, DCGM_EXTRACTOR))

    async def _pause(self, _endpoint: Endpoint) -> None:
        """Waits for the full poll interval, also while requests are sent or wait."""
        await asyncio.sleep(self._interval_s * random.uniform(0.9, 1.1))

    def _took(self, endpoint: Endpoint, load: Load, polled_at: float) -> None:
        if endpoint in self._failing:
            self._failing.discard(endpoint)
            _log.info("GPU telemetry of %s is known again", endpoint.host_port)
        self._observe(endpoint, load.attributes[UTILIZATION], polled_at + self._max_age_s)

    def _refused(self, endpoint: Endpoint, source: LoadSource) -> None:
        """Does nothing: an exporter that refuses connections says nothing about the server beside it."""

    def _failed(self, endpoint: Endpoint, error: Exception) -> None:
        self.count_failure()
        if endpoint not in self._failing:
            self._failing.add(endpoint)
            where, defect = endpoint.host_port, defect_in(error)
            _log.warning("GPU telemetry of %s cannot be read: %r", where, error, exc_info=defect)
