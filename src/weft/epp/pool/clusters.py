"""Clusters as endpoints: the load of a cluster is the average that its own picker reports."""

from statistics import fmean
from typing import Final

from weft.epp.config.parameters import Parameters
from weft.epp.pool.endpoint import Load, as_count, as_share
from weft.epp.pool.exposition import (
    SamplesBySeries,
    SeriesReader,
    finite,
    parse_series_spec,
    read_page,
    select,
)
from weft.epp.pool.poller import MetricsSourceParameters

CLUSTER_SOURCE: Final = "multicluster-metrics-data-source"
CLUSTER_EXTRACTOR: Final = "multicluster-metrics-extractor"
KV_ATTRIBUTE: Final = "llm-d.ai/multicluster-kv-cache-utilization"
QUEUE_ATTRIBUTE: Final = "llm-d.ai/multicluster-queue-size"


class ClusterSourceParameters(MetricsSourceParameters, frozen=True, kw_only=True):
    """Settings for fetching the metrics of clusters: over verified TLS, because clusters may be far away."""

    scheme: str = "https"
    insecure_skip_verify: bool = False


class ClusterExtractorParameters(Parameters, frozen=True, kw_only=True):
    """Names of the series in which a cluster's picker reports the averages over its pool."""

    kv_cache_utilization_metric: str = "llm_d_epp_average_kv_cache_utilization"
    queue_size_metric: str = "llm_d_epp_average_queue_size"

    def __post_init__(self) -> None:
        parse_series_spec(self.kv_cache_utilization_metric)
        parse_series_spec(self.queue_size_metric)


class ClusterReader:
    """Converts the metrics page of a cluster's picker to the load of the cluster."""

    path = "/metrics"

    def __init__(self, parameters: ClusterExtractorParameters) -> None:
        self._kv = parse_series_spec(parameters.kv_cache_utilization_metric)
        self._queue = parse_series_spec(parameters.queue_size_metric)
        self._reader = SeriesReader({self._kv.name, self._queue.name})

    async def read_page(self, page: bytes) -> Load | None:
        """Returns the averages of the page as attributes and load; None if the page has none of the series."""
        return self._load(await read_page(self._reader, page))

    def _load(self, found: SamplesBySeries) -> Load | None:
        attributes = {}
        if usages := finite(select(found, self._kv)):
            attributes[KV_ATTRIBUTE] = as_share(fmean(usages))
        if queues := finite(select(found, self._queue)):
            attributes[QUEUE_ATTRIBUTE] = max(0.0, fmean(queues))
        if not attributes:
            return None
        # Saturation detectors rate a cluster like an endpoint, so its values are averages per endpoint.
        return Load(
            num_waiting=as_count(attributes.get(QUEUE_ATTRIBUTE, 0.0)),
            kv_usage=attributes.get(KV_ATTRIBUTE, 0.0),
            attributes=attributes,
        )
